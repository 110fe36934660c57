"""Memory and bandwidth ledger of LLM servers with DeepSeek sparse attention.

The public names load on first use, so that `dsa-ledger --version` does not pay for pydantic.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would cost `--version` 8 ms
if TYPE_CHECKING:
    from dsa_ledger.account import estimate
    from dsa_ledger.catalog import load_gpu, load_model
    from dsa_ledger.errors import BadInput, NotModelled
    from dsa_ledger.ledger import Ledger
    from dsa_ledger.schema import Gpu, Model, Scenario

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "Gpu",
    "Ledger",
    "Model",
    "NotModelled",
    "Scenario",
    "__version__",
    "estimate",
    "load_gpu",
    "load_model",
]

_HOME = {
    "BadInput": "errors",
    "Gpu": "schema",
    "Ledger": "ledger",
    "Model": "schema",
    "NotModelled": "errors",
    "Scenario": "schema",
    "estimate": "account",
    "load_gpu": "catalog",
    "load_model": "catalog",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (AttributeError for any other)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
