"""The smallest machine of each kind of GPU that holds a load, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsa_ledger.render.data import rows_csv, rows_md
from dsa_ledger.render.plan import command_lines, json_text, wrapped
from dsa_ledger.render.ranking import deployment_record, one_line, place_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.plan.ranking import Ranking
    from dsa_ledger.schema import Scenario


def machines_text(scenario: Scenario, rankings: Sequence[Ranking], form: str) -> str:
    """Return for each kind of GPU the fewest that hold the load."""
    records = [_machine_record(ranking) for ranking in rankings]
    if form == "json":
        return json_text(scenario, "machines", records)
    if form == "csv":
        return rows_csv([one_line(record) for record in records])
    if form == "md":
        return rows_md([one_line(record) for record in records])
    if form == "html":
        from dsa_ledger.render.html_plan import machines_page

        return machines_page(scenario, records)
    load = scenario.load
    context = load.context or 0
    lines = [f"smallest machine for {load.batch:,} request{'s' * (load.batch != 1)} of {context:,} tokens", ""]
    for ranking, record in zip(rankings, records, strict=True):
        if not ranking.best:
            why = f"; {ranking.nearest[0].outcome.why_not}" if ranking.nearest else ""
            lines += wrapped(f"  {record['gpu']}: none up to {record['gpus']} GPUs{why}", "    ")
            continue
        one = ranking.best[0]
        name = f"{one.outcome.scenario.engine.name}@{one.outcome.scenario.engine.version}"
        mark = " (at most)" if one.outcome.is_bound else ""
        lines += wrapped(
            f"  {record['gpus']:>2} x {record['gpu']:<10} holds {one.requests:,}{mark}; {name}, {place_text(one)}",
            "       ",
        )
        if len(rankings) == 1:
            lines += [*wrapped(f"  breaks first: {one.breaks}", "    "), *command_lines(one.outcome.scenario)]
    return "\n".join(lines) + "\n"


def _machine_record(ranking: Ranking) -> dict[str, Any]:
    if ranking.best:
        return deployment_record(ranking.best[0])
    machine = ranking.machines[0]
    empty = deployment_record(ranking.nearest[0]) if ranking.nearest else {}
    return {"warnings": [], **empty, "gpu": machine.gpu, "gpus": machine.gpus, "requests": 0, "command": ""}
