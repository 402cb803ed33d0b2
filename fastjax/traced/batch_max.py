"""The largest value of a batch, for decisions that `vmap` must not divide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive

from fastjax import jax_compat

batch_max_p = Primitive("batch_max")


def batch_max(value: jax.Array) -> jax.Array:
    """The value; under `vmap`, the largest of the batch for all of it.

    A batch exchanges as one, so all of it must go through a `cond` or a loop in the same way.
    """
    return batch_max_p.bind(value)


@batch_max_p.def_abstract_eval
def _abstract_eval(value: jax_compat.Aval) -> jax_compat.Aval:
    return value.update(weak_type=False)


def _lowering(
    ctx: jax_compat.LoweringContext, value: jax_compat.MlirValue, *, platform: str
) -> list[jax_compat.MlirValue]:
    del ctx, platform
    return [value]


def _batch(
    axis_data: Any, values: Sequence[jax.Array], dims: Sequence[int | None]
) -> tuple[jax.Array, None]:
    del axis_data
    (value,), (dim,) = values, dims
    return batch_max_p.bind(value if dim is None else value.max(dim)), None


jax_compat.set_impl(batch_max_p)
jax_compat.set_lowering(batch_max_p, _lowering)
jax_compat.set_batcher(batch_max_p, _batch)
jax_compat.set_no_derivative(batch_max_p)
