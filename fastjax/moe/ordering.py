"""Dependencies fix the order in which parts of a program begin: forward and, reversed, backward.

A dependency is a float32 zero that exists only once something has begun, or has ended. It goes to
what is to begin after that. Where it is None, no order is imposed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.traced.after import after

Dependency = jax.Array | None


def satisfied() -> jax.Array:
    """A dependency that waits for nothing."""
    return jnp.zeros((), jnp.float32)


def zeros(shape: tuple[int, ...], dtype: DTypeLike, dependency: Dependency) -> jax.Array:
    """Zeros that are written after `dependency`.

    XLA would write zeros that wait for nothing when the program begins: with many exchanges, all
    processors and much memory would be taken while devices meet for the first time.
    """
    if dependency is None:
        return jnp.zeros(shape, dtype)
    return jnp.broadcast_to(jax.lax.stop_gradient(dependency).astype(dtype), shape)


def of_cotangent(ct: Any) -> Dependency:
    """The dependency that the cotangent of a dependency is: a satisfied one if JAX has none."""
    return satisfied() if isinstance(ct, SymbolicZero) else ct


def on_rows(rows: jax.Array, *, ordered: bool = True) -> Dependency:
    """A dependency on rows: what waits for it begins once they have been computed.

    None where no order is imposed.
    """
    return after(satisfied(), rows) if ordered else None


def on_all(arrays: Sequence[jax.Array], dependency: Dependency) -> Dependency:
    """A dependency on arrays, if they themselves were made after a dependency."""
    return None if dependency is None else functools.reduce(after, arrays, satisfied())


def wait(value: jax.Array, dependency: Dependency) -> jax.Array:
    """The value, for work that begins after `dependency`; the backward pass does not wait."""
    return value if dependency is None else after(value, dependency)


def for_experts(rows: jax.Array, dependency: Dependency) -> jax.Array:
    """Rows, for experts that begin after `dependency`, on a thread of their own; as `wait`."""
    return rows if dependency is None else after(rows, dependency, detached=True)


def chain(rows: jax.Array, dependency: Dependency) -> jax.Array:
    """Rows, for experts that begin after `dependency`, on a thread of their own.

    In the backward pass, the cotangent of the dependency depends on the cotangent of the rows, so
    that what comes earlier forward waits for the work's backward pass.
    """
    if dependency is None:
        return rows
    rows, dependency = jax_compat.vary_together([rows, dependency], ())
    return _wait(rows, dependency)


@jax.custom_vjp
def _wait(rows: jax.Array, dependency: jax.Array) -> jax.Array:
    return for_experts(rows, dependency)


@jax.custom_vjp
def _signal(rows: jax.Array) -> Any:
    return rows, on_rows(rows)


def _wait_forward(rows: jax.Array, dependency: jax.Array) -> tuple[jax.Array, None]:
    return _wait(rows, dependency), None


def _wait_backward(_: None, ct: jax.Array) -> Any:
    made: Any = _signal(ct)
    return made


def _signal_forward(rows: jax.Array) -> Any:
    return _signal(rows), None


def _signal_backward(_: None, cts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array]:
    return (_wait(*cts),)


_wait.defvjp(_wait_forward, _wait_backward)
_signal.defvjp(_signal_forward, _signal_backward)

__all__ = [
    "Dependency",
    "chain",
    "for_experts",
    "of_cotangent",
    "on_all",
    "on_rows",
    "satisfied",
    "wait",
    "zeros",
]
