"""Exchanges over the axis "x", as most tests have them."""

from functools import partial
from typing import Any

import jax

import fastjax

exchange = partial(fastjax.fast_ragged_all_to_all, axis_name="x")


def planned(operand: Any, output: Any, *arrays: Any, **options: Any) -> jax.Array:
    """An exchange with a plan that is made before."""
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x", **options)
    return exchange(operand, output, *arrays, plan=plan)
