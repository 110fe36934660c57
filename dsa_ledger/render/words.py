"""What the table shows first, in which order, and the words beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsa_ledger.account.deploy import ranks_of_server
from dsa_ledger.engines.releases import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Scenario


MOST_GROUPS = 8  # of a fleet in the table; the JSON has all
PACE_KEYS = ("time.attention_s", "time.step_high_s")
MOST_PACED = 16  # so many keys have so many groups


class Group(NamedTuple):
    """One block of the table."""

    title: str
    says: str
    keys: tuple[str, ...]
    prefixes: tuple[str, ...]


GROUPS = (
    Group(
        "storage",
        "what is stored, and where",
        (
            "model.parameters",
            "model.layers",
            "model.full_layers",
            "model.shared_layers",
            "model.draft_layers",
            "record.main_kv_bytes",
            "record.index_k_bytes",
            "cell.bytes",
            "cell.main_kv_bytes",
            "cell.index_k_bytes",
            "cell.draft_bytes",
            "weights.checkpoint_bytes",
            "weights.rank_bytes",
            "weights.indexer_rank_bytes",
            "weights.draft_rank_bytes",
        ),
        ("model.", "config.", "quant.", "record.", "cell.", "layout.", "weights.", "checkpoint."),
    ),
    Group(
        "pool",
        "of one rank; system: of the server",
        (
            "engine.mem_fraction",
            "pool.budget_bytes",
            "pool.tokens",
            "pool.reported_tokens",
            "pool.system_tokens",
            "pool.target_bytes",
            "pool.draft_bytes",
            "pool.requests_at_context",
            "pool.longest_request_tokens",
        ),
        ("gpu.", "sharding.", "memory.", "engine.", "reserve.", "limits.", "observed.", "pool."),
    ),
    Group(
        "workspace",
        "of one rank, beside pool and weights; prefill logits before any cut",
        (
            "workspace.decode_logits_bytes",
            "workspace.prefill_logits_bytes",
            "workspace.prefill_logits_budget_bytes",
            "workspace.prefill_chunks",
            "workspace.req_to_token_bytes",
            "workspace.page_table_bytes",
        ),
        ("workspace.",),
    ),
    Group(
        "step",
        "of one rank, one forward of the running batch",
        (
            "step.index_k_passes",
            "step.index_k_read_bytes",
            "step.index_k_read_bytes_high",
            "step.index_k_write_bytes",
            "step.main_kv_read_bytes",
            "step.main_kv_write_bytes",
            "step.logits_write_bytes",
            "step.logits_read_bytes",
            "step.index_q_bytes",
            "step.page_table_read_bytes",
            "step.weights_read_bytes",
            "step.indexer_weights_read_bytes",
        ),
        ("step.", "load.", "draft."),
    ),
    Group(
        "time",
        "floors, the attention layers, and the ends of a step; a floor is no prediction",
        (
            "time.step_floor_s",
            "time.indexer_floor_s",
            "time.attention_s",
            "time.attention_prior_s",
            "time.attention_low_s",
            "time.attention_high_s",
            "time.indexer_s",
            "time.weights_s",
            "time.step_low_s",
            "time.step_s",
            "time.step_high_s",
            "time.tokens_per_s",
            "time.tokens_per_s_per_request",
        ),
        ("time.", "box."),
    ),
    Group(
        "fleet",
        f"the slowest rank of each group, slowest group first; at most {MOST_GROUPS} here",
        (),
        ("group[",),
    ),
    Group(
        "prefill",
        "of the whole model, one request",
        (
            "prefill.attention_s",
            "prefill.indexer_s",
            "prefill.index_k_read_bytes",
            "prefill.index_k_read_bytes_high",
            "prefill.index_k_write_bytes",
            "prefill.score_flops",
        ),
        ("prefill.",),
    ),
    Group(
        "transfer",
        "one copy of one request's cache",
        ("transfer.main_kv_bytes", "transfer.index_k_bytes", "transfer.seed_bytes"),
        ("transfer.",),
    ),
)
OTHER = Group("other", "", (), ("",))


def rows_of(ledger: Ledger, *, every: bool) -> list[tuple[Group, list[str]]]:
    """Return the keys to show by group: the headline ones, or all of them with stages where they are posted."""
    left = list(ledger.entries)
    shown: list[tuple[Group, list[str]]] = []
    for group in (*GROUPS, OTHER):
        if every:
            # In the order of the prefixes; within one, and for its stages, as posted.
            keys = [key for prefix in group.prefixes for key in left if _plain(key).startswith(prefix)]
            left = [key for key in left if key not in keys]
        else:
            keys = [key for key in group.keys if key in ledger] or _paced(left, group)
        if keys:
            shown.append((group, keys))
    return shown


def _paced(keys: Sequence[str], group: Group) -> list[str]:
    """Return the keys of a fleet's slowest groups; a fleet has names of its own, so no list of keys holds them."""
    if group.keys or group is OTHER:
        return []
    found = [key for key in keys if key.startswith(group.prefixes) and key.partition("].")[2] in PACE_KEYS]
    return found[:MOST_PACED]


def _plain(key: str) -> str:
    """Return a key without its `stage[i].`."""
    return key.partition("].")[2] if key.startswith(("stage[", "rank[")) else key


def between(low: str, high: str) -> str:
    """Return both ends of an interval, or the one figure where they read alike."""
    return low if low == high else f"{low} to {high}"


def headline(scenario: Scenario) -> str:
    """Return model, machine, engine, layout and load in one line."""
    release, _ = resolve(scenario.engine)
    machine = f"{ranks_of_server(scenario)} x {scenario.gpu_name}"
    return f"{scenario.model_name} on {machine}, {release.label}: {layout(scenario)}"


def layout(scenario: Scenario) -> str:
    """Return what differs from one plain rank, such as `tp 8, pp 2, batch 16, context 131,072`."""
    cut, load = scenario.sharding, scenario.load
    counts = {
        "tp": cut.tp,
        "pp": cut.pp,
        "ep": cut.ep,
        "cp": cut.cp,
        "dcp": cut.dcp,
        "attention dp": cut.dp_attention,
    }
    words = [f"{name} {count}" for name, count in counts.items() if count > 1 or name == "tp"]
    words += ["layer split"] if cut.layer_split else []
    words += [f"kv {scenario.kv_dtype}"] if scenario.kv_dtype != "auto" else []
    words += [f"draft steps {scenario.draft.steps}"] if scenario.draft.steps else []
    words += scenario.features
    words += [f"batch {load.batch:,}"] if load.context else []
    words += [f"context {load.context:,}"] if load.context else []
    words += [f"new tokens {load.new_tokens:,}"] if load.new_tokens else []
    return ", ".join(words)
