"""One load or arrays of loads: a function of whole numbers called once for each different load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def each_load(function: Callable[..., Any], *counts: Any) -> Any:
    """Return function(*counts); with arrays a named tuple of arrays, one place a load (None where any load has None).

    Fields that are no numbers are taken from the first load, sentences collected.
    """
    if not any(hasattr(count, "dtype") for count in counts):
        return function(*map(int, counts))
    import numpy as np

    columns = np.broadcast_arrays(*counts)
    loads, place = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    results = [function(*map(int, load)) for load in loads.tolist()]
    if any(result is None for result in results):
        return None
    first = results[0]
    if not isinstance(first, tuple):
        return np.array(results)[place.ravel()]
    fields: dict[str, Any] = {}
    for name in first._fields:  # type: ignore[attr-defined]
        values = [getattr(result, name) for result in results]
        if isinstance(values[0], float | int) and not isinstance(values[0], bool):
            fields[name] = np.array(values)[place.ravel()]
        elif name == "warnings":
            fields[name] = tuple(dict.fromkeys(sentence for value in values for sentence in value))
        elif values[0] and isinstance(values[0], tuple) and isinstance(values[0][0], float):
            fields[name] = tuple(np.array(column)[place.ravel()] for column in zip(*values, strict=True))
        else:
            fields[name] = values[0]
    return type(first)(**fields)
