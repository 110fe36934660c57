"""The one place that reads YAML: every scalar stays text, nothing is constructed, size and depth are bounded."""

from __future__ import annotations

from typing import Any

from dsa_ledger.errors import BadInput, Fault, Words

LONGEST_YAML = 1 << 18
DEEPEST_FLOW = 64


def documents(text: str, what: str) -> list[Any]:
    """Return the documents of a YAML text, scalars as text (BadInput, also where PyYAML is not installed)."""
    try:
        import yaml
    except ImportError:
        expected = "PyYAML, which reads it (pip install 'dsa-ledger[yaml]'), or the command itself"
        raise BadInput([Fault(what, Words("YAML"), expected)]) from None
    if len(text) > LONGEST_YAML:
        raise BadInput([Fault(what, Words(f"{len(text)} characters"), f"at most {LONGEST_YAML} of YAML")])
    if text.count("[") + text.count("{") > 32 * DEEPEST_FLOW and _depth(text) > DEEPEST_FLOW:
        raise BadInput([Fault(what, Words("YAML"), f"brackets nested at most {DEEPEST_FLOW} deep")])
    try:
        # BaseLoader makes lists, tables and text, nothing else: no tag, no number, no yes that turns true.
        return list(yaml.load_all(text, Loader=yaml.BaseLoader))
    except RecursionError:
        raise BadInput([Fault(what, Words("YAML"), "not nested so deeply")]) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise BadInput([Fault(what, Words("YAML"), f"text that parses: {reason}")]) from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth = max(depth - 1, 0)
    return deepest
