"""The table of claims in their README, for cog: cog -r scenarios/claims/README.md."""

from __future__ import annotations

from dsa_ledger import claims


def claims_table() -> str:
    """Return one row a claim: id, verdict, what is claimed in our words."""
    rows = ["| claim | verdict | what is claimed |", "|---|---|---|"]
    for name in claims.known():
        claim = claims.find(name)
        rows.append(f"| [{name}]({name}.toml) | {claim.verdict} | {claim.says} |")
    return "\n".join(rows) + "\n"
