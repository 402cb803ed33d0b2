"""One derivative rule for all linear maps that send rows: their transposes send cotangents."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values

from fastjax import jax_compat
from fastjax.jax_compat import Axes
from fastjax.moe.routing import Token
from fastjax.traced.reverse_mode import in_reverse_mode

Arrays = tuple[jax.Array, ...]


class Map(Protocol):
    """A linear map of arrays, of which the n-th result is made of the n-th operand alone.

    It is an exchange with a start and an end. An array of no columns stands for one that is left
    out. Instances can be hashed.
    """

    def start(self, operands: Arrays, constants: Any, token: Token) -> Any:
        """Sends the operands; what it returns has the `token` of the exchange."""
        ...

    def finish(self, sent: Any, constants: Any, token: Token) -> Arrays:
        """The results, after a token; those behind the last operand's have no derivative."""
        ...

    def transposed(self, dtypes: tuple[np.dtype, ...]) -> Map:
        """The transpose, for operands of these types."""
        ...


class Begun(NamedTuple):
    """A map on its way.

    Attributes:
      token: of its exchange.
      results: the function of a token that waits for it.
    """

    token: Token
    results: Callable[[Token], Arrays]


def start(linear: Map, operands: Arrays, constants: Any, token: Token) -> Begun:
    """Begins a linear map after a token, with the derivatives that JAX finds: none in an order."""
    sent = linear.start(operands, constants, token)
    return Begun(sent.token, lambda token: linear.finish(sent, constants, token))


def begin(linear: Map, operands: Arrays, constants: Any, axes: Axes, token: Token) -> Begun:
    """Begins a linear map after a token, or, without an order, applies it; see `apply`."""
    if token is not None:
        return start(linear, operands, constants, token)
    made = apply(linear, operands, constants, axes)
    return Begun(None, lambda _: made)


def apply(linear: Map, operands: Arrays, constants: Any, axes: Axes) -> Arrays:
    """The results of a linear map, on devices along these mesh axes.

    Cotangents that nobody wants, or that are known to be zero, are not sent.
    """
    leaves, structure = jax.tree.flatten((operands, constants))
    given = jax.tree.unflatten(structure, jax_compat.vary_together(leaves, axes))
    operands, constants = given
    return _applied(linear, in_reverse_mode(operands), constants)


def _applied(linear: Map, operands: Arrays, constants: Any) -> Arrays:
    rule = functools.partial(_apply, linear)
    return jax_compat.with_symbolic_zeros(rule, operands, constants)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(linear: Map, operands: Arrays, constants: Any) -> Arrays:
    return linear.finish(linear.start(operands, constants, None), constants, None)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Of each operand, whether anybody wants its cotangent."""

    each: tuple[bool, ...]


def _forward(linear: Map, *primals: Any) -> Any:
    wanted = _Wanted(tuple(operand.perturbed for operand in primals[0]))
    operands, constants = custom_vjp_primal_tree_values(primals)
    made: Any = _apply(linear, operands, constants)  # which further derivatives need
    return made, ([o[:0] for o in operands], wanted, constants)


@jax.named_scope("moe_gradient")
def _backward(linear: Map, residuals: Any, cts: Any) -> Any:
    likes, wanted, constants = residuals
    moves = [
        want and like.shape[1] > 0 and is_moving(like.dtype, ct)
        for like, want, ct in zip(likes, wanted.each, cts, strict=False)
    ]
    if not any(moves):
        return tuple(None for _ in likes), None
    given = tuple(
        ct.astype(like.dtype) if move else jnp.zeros((ct.shape[0], 0), jnp.float32)
        for like, ct, move in zip(likes, cts, moves, strict=False)
    )
    dtypes = tuple(like.dtype for like in likes)
    made = _applied(linear.transposed(dtypes), given, constants)
    return tuple(
        ct.astype(like.dtype) if move else None
        for like, ct, move in zip(likes, made, moves, strict=False)
    ), None


_apply.defvjp(_forward, _backward, symbolic_zeros=True)


def is_moving(dtype: np.dtype, ct: Any) -> bool:
    """Whether there is a cotangent: zeros that JAX knows of, and those of integers, are none."""
    return jnp.issubdtype(dtype, jnp.inexact) and not isinstance(ct, SymbolicZero)
