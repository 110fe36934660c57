"""The command `claims`: the source articles' figures against the ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from dsa_ledger.console import complain, write
from dsa_ledger.options import Format, check_format


def _ids(incomplete: str) -> list[str]:
    from dsa_ledger.claims import known

    return [name for name in known() if name.startswith(incomplete.upper())]


ClaimId = Annotated[
    str | None, typer.Argument(metavar="ID", help="One claim, such as C18; default all.", autocompletion=_ids)
]


def claims(*, name: ClaimId = None, format: Format = "table") -> None:  # noqa: A002 - the option's name
    """Hold the source articles' claims against the ledger. Claimed figure, ledger's figure, verdict, reason."""
    check_format(format)
    from dsa_ledger.claims import answered, find, known
    from dsa_ledger.render.claims import claims_text

    found = [answered(find(one)) for one in ([name] if name else known())]
    write(claims_text(found, format, whole=name is not None))
    if format == "csv":  # which has no place for sentences
        complain("in doubt: ", [f"{one.claim.id}: {one.doubt}" for one in found if one.doubt])
