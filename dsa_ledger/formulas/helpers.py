"""The few operations a formula may use beside + - * // %: each takes ints (or floats) and int64 arrays alike.

Arrays are told apart by their `dtype`; numpy is never imported unless an array comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _arrays(*values: Any) -> bool:
    return any(hasattr(value, "dtype") for value in values)


def most(first: Any, second: Any) -> Any:
    """Return the larger of two values, element by element."""
    if hasattr(first, "dtype") or hasattr(second, "dtype"):
        import numpy as np

        return np.maximum(first, second)
    return second if second > first else first


def least(first: Any, second: Any) -> Any:
    """Return the smaller of two values, element by element."""
    if hasattr(first, "dtype") or hasattr(second, "dtype"):
        import numpy as np

        return np.minimum(first, second)
    return second if second < first else first


def choice(condition: Any, then: Any, otherwise: Any) -> Any:
    """Return `then` where the condition holds, else `otherwise`; both are already computed."""
    if _arrays(condition, then, otherwise):
        import numpy as np

        return np.where(condition, then, otherwise)
    return then if condition else otherwise


def ceil_div(value: Any, divisor: Any) -> Any:
    """Return value / divisor rounded up, in whole numbers."""
    return -(-value // divisor)


def round_up(value: Any, unit: Any) -> Any:
    """Return the smallest multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit


def truncated(value: Any) -> Any:
    """Return a float cut to a whole number toward zero, as the engines' int() does."""
    return value.astype("int64") if _arrays(value) else int(value)


def ceiled(value: Any) -> Any:
    """Return a float rounded up to a whole number, as math.ceil does."""
    if _arrays(value):
        import numpy as np

        return np.ceil(value).astype("int64")
    return -int(-value // 1)


def rounded(value: Any, digits: int) -> Any:
    """Return a float rounded to so many decimal digits, ties as Python's round()."""
    if _arrays(value):
        import numpy as np

        # numpy rounds the product with 10^digits, Python the double itself: at ties they differ.
        return np.array([round(number, digits) for number in value.ravel().tolist()]).reshape(value.shape)
    return round(value, digits)


def quotient(value: Any, divisor: Any) -> Any:
    """Return the true quotient as a float."""
    return value / divisor


def power(base: Any, exponent: Any) -> Any:
    """Return base to the exponent, as a float."""
    if _arrays(base, exponent):
        import numpy as np

        # numpy's own power may differ from Python's in the last bit: each distinct pair is raised by Python.
        pairs = np.stack([np.asarray(part, dtype=np.float64) for part in np.broadcast_arrays(base, exponent)], axis=-1)
        distinct, place = np.unique(pairs.view(np.complex128).ravel(), return_inverse=True)
        return np.array([pair.real**pair.imag for pair in distinct.tolist()])[place].reshape(pairs.shape[:-1])
    return base**exponent


def series(count: Any, term: Callable[[int], Any]) -> Any:
    """Return term(0) + ... + term(count - 1); where count is an array, its largest: later terms must then be 0."""
    last = int(count.max()) if _arrays(count) else int(count)
    total: Any = 0
    for index in range(last):
        total = total + term(index)
    return total
