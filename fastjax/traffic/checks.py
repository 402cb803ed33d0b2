"""Checks of the numbers and matrices that users give."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError


def integer(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """The value as an int; refuses what is none, or out of bounds."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not whole or not least <= value <= most:
        too_few = not whole or value < least
        bounds = f"{least} or more" if too_few and most >= 2**31 - 1 else f"from {least} to {most}"
        raise ArgumentError(f"{name} must be an integer, {bounds}; got {value!r}.")
    return int(value)


def real(name: str, value: Any, least: float, most: float = math.inf) -> float:
    """The value as a float; refuses what is none, not finite, or out of bounds."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
        value, bool
    )
    if not number or not least <= value <= min(most, sys.float_info.max):
        wanted = f"number, from {least:g} to {most:g}"
        if most == math.inf:
            wanted = f"finite number, {least:g} or more"
        raise ArgumentError(f"{name} must be a {wanted}; got {value!r}.")
    return float(value)


def matrix(name: str, value: Any, size: int | None = None, of: str = "") -> np.ndarray:
    """The value as an array; refuses what is not a square matrix of integers of 0 or more.

    Where it must have a size, errors say what that is the size of.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentError(f"{name} must be a matrix: {error}") from None
    if size is not None and array.shape != (size, size):
        raise ArgumentError(f"{name} must have shape ({size}, {size}) for {of}, got {array.shape}.")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
        raise ArgumentError(f"{name} must be a square matrix, got shape {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise ArgumentError(f"{name} must be integers (rows), got {array.dtype}.")
    if int(array.min()) < 0:
        i, j = np.unravel_index(int(array.argmin()), array.shape)
        raise ArgumentError(f"{name} must be 0 or more, got {name}[{i}, {j}] = {array[i, j]}.")
    return array
