"""In which order parts of a program begin, said by dependences: forward and, reversed, backward.

A turn is a float32 zero that there is only once something has begun, or has ended; it goes to what
is to begin behind that. Where turns are None nothing is said.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from fastjax import jax_compat
from fastjax.traced.after import after

Turn = jax.Array | None


def first() -> jax.Array:
    """A turn that waits for nothing."""
    return jnp.zeros((), jnp.float32)


def begin(operand: jax.Array, table: jax.Array, turn: Turn) -> tuple[jax.Array, Turn]:
    """Rows of an exchange that begins behind `turn`, and a turn for what is to begin behind it.

    Says nothing of derivatives: for rules that know what their backward pass begins.

    Args:
      operand: the rows.
      table: of the exchange's plan, without which it cannot begin either.
      turn: of what it begins behind.
    """
    if turn is None:
        return operand, None
    operand = after(operand, turn)
    return operand, after(after(first(), operand), table)


def whole(turn_ct: Any) -> Turn:
    """The turn that a cotangent is: a first one where JAX knows of none."""
    return first() if isinstance(turn_ct, SymbolicZero) else turn_ct


def of_end(rows: jax.Array) -> jax.Array:
    """A turn for what is to begin once there are these rows."""
    return after(first(), rows)


def of_plan(table: jax.Array, turn: Turn) -> Turn:
    """A turn for what is to be planned behind a plan, where plans have turns."""
    return None if turn is None else after(first(), table)


def behind(value: jax.Array, turn: Turn) -> jax.Array:
    """A value, for work that begins behind `turn`; the backward pass does not wait."""
    return value if turn is None else after(value, turn)


def enter(rows: jax.Array, turn: Turn) -> jax.Array:
    """Rows for work that begins behind `turn`; backward, the turn of the work's end is returned."""
    if turn is None:
        return rows
    rows, turn = jax_compat.vary_together([rows, turn], ())
    return _enter(rows, turn)


@jax.custom_vjp
def _enter(rows: jax.Array, turn: jax.Array) -> jax.Array:
    return after(rows, turn)


@jax.custom_vjp
def _leave(rows: jax.Array) -> Any:
    return rows, of_end(rows)


def _enter_forward(rows: jax.Array, turn: jax.Array) -> tuple[jax.Array, None]:
    return _enter(rows, turn), None


def _enter_backward(_: None, ct: jax.Array) -> Any:
    made: Any = _leave(ct)
    return made


def _leave_forward(rows: jax.Array) -> Any:
    return _leave(rows), None


def _leave_backward(_: None, cts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array]:
    return (_enter(*cts),)


_enter.defvjp(_enter_forward, _enter_backward)
_leave.defvjp(_leave_forward, _leave_backward)

__all__ = ["Turn", "begin", "behind", "enter", "first", "of_end", "of_plan", "whole"]
