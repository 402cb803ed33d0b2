"""Runs programs written for `jax.lax.ragged_all_to_all`, and `ragged_dot`, on fastjax."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives

from fastjax import config, jax_compat
from fastjax.checks import check_topology
from fastjax.errors import ArgumentError
from fastjax.moe import grouped_dot
from fastjax.scheduling import check_scheduler
from fastjax.scopes import Scope
from fastjax.traced.exchange import fast_ragged_all_to_all
from fastjax.traced.reverse_mode import in_reverse_mode

_DEFAULTS = ("topology", "scheduler", "overflow")
# What there was before the swaps in force, and theirs, the latest last.
_stack: list[Callable[..., jax.Array]] = []
_lock = threading.Lock()
_scope = jax.make_user_context(default_value=None)
_jax_exchange_p: Any = primitives.ragged_all_to_all_p
_jax_dot_p: Any = jax_compat.ragged_dot_p
# Dimensions of `jax.lax.ragged_dot`: rows of groups in turn, and a matrix for each.
_DOT_DIMENSIONS = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
Function = Callable[..., jax.Array]


def swap_ragged_all_to_all(*, ragged_dot: bool = False, **defaults: Any) -> Scope[None]:
    """Replaces `jax.lax.ragged_all_to_all` by fastjax's: a context manager, and a decorator.

    Use it as `with fastjax.swap_ragged_all_to_all():`, or as `@fastjax.swap_ragged_all_to_all()`.
    Code that calls it as `jax.lax.ragged_all_to_all(...)` runs unchanged, on CPU too. The scope is
    part of `jax.jit`'s cache key, so a function jitted and run outside it is traced anew inside,
    and the other way round. Code that imported the function by name before gets fastjax's as
    well, in the thread that opened the scope. Other threads of the process see the rest of the
    swap, but programs that they trace keep fastjax's after it: swap before starting threads. Of
    nested scopes the innermost decides, but for `overflow` if it names none. The returned scope may
    be entered repeatedly.

    Args:
      ragged_dot: whether `jax.lax.ragged_dot` is `moe.grouped_dot` on CPU devices, too, by any name
        and in `ragged_dot_general`. On other devices, and for other dimensions, integers and group
        offsets, it stays JAX's. Where it is ours it has no forward-mode derivatives, on any device.
      **defaults: `topology` and `scheduler` for the calls inside; and `overflow`, as
        `fastjax.options` takes it, for all programs traced in the scope: "drop" for code that finds
        out itself when there was not enough room.

    Raises:
      ArgumentError: another keyword is given, or topology is none.
      OptionError: there is no such scheduler or overflow.
    """
    unknown = sorted(set(defaults) - set(_DEFAULTS))
    if unknown:
        raise ArgumentError(
            f"swap_ragged_all_to_all takes {('ragged_dot', *_DEFAULTS)}, got {unknown}."
        )
    given = {name: value for name, value in defaults.items() if value is not None}
    if "scheduler" in given:
        check_scheduler(given["scheduler"], "scheduler")
    if "topology" in given:
        check_topology(given["topology"])
    overflow = given.pop("overflow", None)
    if overflow is not None:
        config.Options(overflow=overflow)  # refused here, not where the scope is entered

    def enter(undo: contextlib.ExitStack) -> None:
        # One of this entry's own: leaving takes it out of the stack, and no other.
        ours = functools.wraps(fast_ragged_all_to_all)(
            functools.partial(fast_ragged_all_to_all, **given)
        )
        _swap(ours)
        undo.callback(_restore, ours)
        undo.enter_context(config.options(overflow=overflow))
        undo.enter_context(_scope((bool(ragged_dot), tuple(sorted(given.items())))))

    return Scope("fastjax.swap_ragged_all_to_all", enter)


def _swap(ours: Callable[..., jax.Array]) -> None:
    with _lock:
        if not _stack:
            _stack.append(jax.lax.ragged_all_to_all)
            _jax_exchange_p.bind, _jax_dot_p.bind = _bind, _bind_dot
        _stack.append(ours)
        jax.lax.ragged_all_to_all = ours


def _restore(ours: Callable[..., jax.Array]) -> None:
    # Scopes of several threads may end in any order.
    with _lock:
        _stack.remove(ours)
        jax.lax.ragged_all_to_all = _stack[-1]
        if len(_stack) == 1:
            _stack.clear()
            del _jax_exchange_p.bind, _jax_dot_p.bind


def _bind(*operands: jax.Array, **params: Any) -> jax.Array:
    """What JAX's function calls, by whatever name it was imported, while there is a swap."""
    if _scope.value is None:
        return type(_jax_exchange_p).bind(_jax_exchange_p, *operands, **params)
    _, defaults = _scope.value
    return fast_ragged_all_to_all(*operands, **dict(defaults), **params)


def _bind_dot(*operands: jax.Array, **params: Any) -> jax.Array:
    """The same of products."""
    ragged_dot, _ = _scope.value or (False, ())
    if not ragged_dot or not _fits(*operands, **params):
        return type(_jax_dot_p).bind(_jax_dot_p, *operands, **params)
    given = {name: params[name] for name in ("precision", "preferred_element_type")}

    def theirs(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
        with _scope(None):  # its derivatives are made of others
            return jax.lax.ragged_dot(lhs, rhs, group_sizes, **given)

    ours = functools.partial(grouped_dot, **given)
    *floats, sizes = jax_compat.vary_together(operands, ())
    return _dot(ours, theirs, *in_reverse_mode(floats), sizes)


def _fits(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    *,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers,
    preferred_element_type: Any,
    group_offset: jax.Array | None,
    out_sharding: Any = None,
    **_: Any,
) -> bool:
    """Whether these are operands of `grouped_dot`; JAX has the words for those that fit nothing."""
    dtypes = lhs.dtype, rhs.dtype, preferred_element_type or lhs.dtype
    return (
        ragged_dot_dimension_numbers == _DOT_DIMENSIONS
        and (lhs.ndim, rhs.ndim, group_sizes.ndim) == (2, 3, 1)
        and (rhs.shape[:2] == (*group_sizes.shape, lhs.shape[1]))
        and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes)
        and group_offset is None
        and out_sharding is None
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _dot(ours: Function, theirs: Function, *operands: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(*operands, cpu=ours, default=theirs)


def _dot_forward(ours: Function, theirs: Function, *operands: jax.Array) -> Any:
    return _dot(ours, theirs, *operands), operands


def _dot_backward(ours: Function, theirs: Function, operands: Any, ct: jax.Array) -> Any:
    """One platform's cotangents: those of a `cond` would keep what either needs."""
    *floats, sizes = operands

    def cotangents(function: Function) -> Function:
        def of(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, ct: jax.Array) -> Any:
            _, back = jax.vjp(lambda lhs, rhs: function(lhs, rhs, sizes), lhs, rhs)
            return back(ct)

        return of

    given = *floats, sizes, ct
    made = jax.lax.platform_dependent(*given, cpu=cotangents(ours), default=cotangents(theirs))
    return *made, None


_dot.defvjp(_dot_forward, _dot_backward)
