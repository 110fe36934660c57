"""Predicts points that a fit has not seen: whole cells, batches, contexts, GPUs or head counts are left out in turn.

Each function returns predicted / measured - 1 for every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calib.decode_fit import DecodeFit
from calib.prefill_fit import PrefillFit, is_dense
from calib.stored import decode_table, predicted_decode, predicted_prefill, prefill_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from calib.points import Points
    from calib.smooth import Array, Indices

FOLDS = 10
SEED = 0


def model_of(points: Points) -> Callable[[Points], Array]:
    """Return the predictor fitted to the points, through the coefficients as they would be stored."""
    if points.group.phase == "decode":
        table = decode_table(DecodeFit(points), points.group.engine)
        return lambda some: predicted_decode(table, some)
    dense = bool(is_dense(points).all())
    path = prefill_path(PrefillFit(points, dense=dense), points)
    return lambda some: predicted_prefill({"dense" if dense else "sparse": path}, some)


def by_fold(points: Points, fold: Indices) -> Array:
    """Return the errors of each row, predicted from the rows of other folds."""
    off = np.full(len(points), np.nan)
    for number in np.unique(fold):
        out = fold == number
        off[out] = model_of(points.where(~out))(points.where(out)) / points.us[out] - 1
    return off


def cells(points: Points) -> Array:
    """Return the errors of left-out cells (batch, new tokens, prefix): a tenth at a time, in all series at once."""
    place = np.stack([points.batch, points.new, points.prefix], axis=1)
    found, cell = np.unique(place, axis=0, return_inverse=True)
    order = np.random.default_rng(SEED).permutation(len(found))
    return by_fold(points, order[cell.ravel()] % min(FOLDS, len(found)))


def batches(points: Points) -> Array:
    """Return the errors of whole left-out batches."""
    return by_fold(points, np.unique(points.batch, return_inverse=True)[1].ravel())


def contexts(points: Points) -> Array:
    """Return the errors of whole left-out contexts."""
    return by_fold(points, np.unique(points.prefix, return_inverse=True)[1].ravel())
