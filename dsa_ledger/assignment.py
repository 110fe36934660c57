"""PATH=VALUE, as `--set` takes it and as the runs of a claim are written."""

from __future__ import annotations

import json
from typing import Any


def set_path(text: str) -> str:
    """Return the field that a PATH=VALUE sets: `model.KEY` is a key of config.json."""
    path = text.partition("=")[0].strip()
    return "model_overrides." + path.removeprefix("model.") if path.startswith("model.") else path


def set_value(written: str) -> Any:
    """Return JSON where the text parses, else the text itself."""
    try:
        return json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return written


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity are no JSON
