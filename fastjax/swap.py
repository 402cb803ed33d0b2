"""Runs programs written for `jax.lax.ragged_all_to_all` on fastjax."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import primitives

from fastjax.checks import check_topology
from fastjax.errors import ArgumentError
from fastjax.scheduling import check_scheduler
from fastjax.scopes import Scope
from fastjax.traced.exchange import fast_ragged_all_to_all

_DEFAULTS = ("topology", "scheduler")
# What there was before the swaps in force, and theirs, the latest last.
_stack: list[Callable[..., jax.Array]] = []
_lock = threading.Lock()
_scope = jax.make_user_context(default_value=None)
_jax_exchange_p: Any = primitives.ragged_all_to_all_p


def swap_ragged_all_to_all(**defaults: Any) -> Scope[None]:
    """Replaces `jax.lax.ragged_all_to_all` by fastjax's: a context manager, and a decorator.

    Use it as `with fastjax.swap_ragged_all_to_all():`, or as `@fastjax.swap_ragged_all_to_all()`.
    Code that calls it as `jax.lax.ragged_all_to_all(...)` runs unchanged, on CPU too. The scope is
    part of `jax.jit`'s cache key, so a function jitted and run outside it is traced anew inside,
    and the other way round. Code that imported the function by name before gets fastjax's as
    well, in the thread that opened the scope. Other threads of the process see the rest of the
    swap, but programs that they trace keep fastjax's after it: swap before starting threads. Of
    nested scopes the innermost decides. The returned scope may be entered repeatedly.

    Args:
      **defaults: `topology` and `scheduler` for the calls inside.

    Raises:
      ArgumentError: another keyword is given, or topology is none.
      OptionError: there is no such scheduler.
    """
    unknown = sorted(set(defaults) - set(_DEFAULTS))
    if unknown:
        raise ArgumentError(f"swap_ragged_all_to_all takes {_DEFAULTS}, got {unknown}.")
    given = {name: value for name, value in defaults.items() if value is not None}
    if "scheduler" in given:
        check_scheduler(given["scheduler"], "scheduler")
    if "topology" in given:
        check_topology(given["topology"])

    def enter(undo: contextlib.ExitStack) -> None:
        # One of this entry's own: leaving takes it out of the stack, and no other.
        ours = functools.wraps(fast_ragged_all_to_all)(
            functools.partial(fast_ragged_all_to_all, **given)
        )
        _swap(ours)
        undo.callback(_restore, ours)
        undo.enter_context(_scope(tuple(sorted(given.items()))))

    return Scope("fastjax.swap_ragged_all_to_all", enter)


def _swap(ours: Callable[..., jax.Array]) -> None:
    with _lock:
        if not _stack:
            _stack.append(jax.lax.ragged_all_to_all)
            _jax_exchange_p.bind = _bind
        _stack.append(ours)
        jax.lax.ragged_all_to_all = ours


def _restore(ours: Callable[..., jax.Array]) -> None:
    # Scopes of several threads may end in any order.
    with _lock:
        _stack.remove(ours)
        jax.lax.ragged_all_to_all = _stack[-1]
        if len(_stack) == 1:
            _stack.clear()
            del _jax_exchange_p.bind


def _bind(*operands: jax.Array, **params: Any) -> jax.Array:
    """What JAX's function calls, by whatever name it was imported, while there is a swap."""
    defaults = _scope.value
    if defaults is None:
        return type(_jax_exchange_p).bind(_jax_exchange_p, *operands, **params)
    return fast_ragged_all_to_all(*operands, **dict(defaults), **params)


__all__ = ["swap_ragged_all_to_all"]
