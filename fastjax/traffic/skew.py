"""How uneven traffic is."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastjax.errors import ArgumentError


def gini(counts: Any) -> float:
    """The Gini coefficient: 0 where all counts are equal, towards 1 where one has everything.

    Half the mean difference of two counts, over all ordered pairs, divided by the mean count.

    Args:
      counts: numbers of 0 or more, of any shape; tokens of each expert, for one.

    Returns:
      From 0 to 1 - 1 / number of counts; 0 where all counts are 0.

    Raises:
      ArgumentError: there are no counts, or some is negative or not finite.
    """
    values = np.sort(np.asarray(counts, dtype=np.float64), axis=None)
    if not values.size or values[0] < 0 or not np.isfinite(values).all():
        raise ArgumentError("counts must be one number or more, each finite and 0 or more.")
    total = values.sum()
    if not total:
        return 0.0
    size = values.size
    order = 2 * np.arange(1, size + 1) - size - 1  # how many are smaller, minus how many larger
    return float(order @ values / (size * total))


__all__ = ["gini"]
