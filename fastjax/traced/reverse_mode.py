"""Values whose derivatives are those of reverse mode alone: forward mode is refused in words.

A `custom_vjp` tells forward mode from reverse mode as late as JAX does: both make a program of
tangents, which forward mode runs and reverse mode transposes. So a mark on tangents, whose
transpose is nothing, is met by forward mode alone.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from fastjax import jax_compat
from fastjax.errors import UnsupportedError

_tangent_p = Primitive("reverse_mode_tangent")


def in_reverse_mode(values: Any) -> Any:
    """A pytree of arrays, for a `custom_vjp`; integers have no derivatives."""
    return jax.tree.map(lambda v: _marked(v) if jnp.issubdtype(v.dtype, jnp.inexact) else v, values)


@jax.custom_jvp
def _marked(value: jax.Array) -> jax.Array:
    return value


@_marked.defjvp
def _of_tangents(primals: Any, tangents: Any) -> Any:
    (value,), (tangent,) = primals, tangents
    return _marked(value), _tangent_p.bind(tangent)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        "no forward-mode derivatives (jax.jvp, jax.jacfwd, jax.hessian) of grouped_map and "
        "grouped_dot, so of layers with an expert_fn, nor of layers in chunks or rounds, with "
        "deduplicated tokens, or with rows of one byte. Reverse mode has those of any order: "
        "jax.grad of jax.grad, or jax.jacrev(jax.jacrev(f)) in place of jax.hessian(f)."
    )


_tangent_p.def_abstract_eval(lambda tangent: tangent)
jax_compat.set_impl(_tangent_p)
jax_compat.set_lowering(_tangent_p, _refuse)
jax_compat.set_jvp(_tangent_p, _refuse)
jax_compat.set_batcher(_tangent_p, lambda _, values, dims: (_tangent_p.bind(*values), *dims))
ad.primitive_transposes[_tangent_p] = lambda ct, _: [ct]
