"""Runs programs written for `jax.lax.ragged_all_to_all` on fastjax."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

import jax

from fastjax.errors import ArgumentError
from fastjax.traced.exchange import fast_ragged_all_to_all

_DEFAULTS = ("topology", "scheduler")
_original = jax.lax.ragged_all_to_all
_open: list[Callable[..., jax.Array]] = []  # swaps in force, the latest last
_lock = threading.Lock()
_scope = jax.make_user_context(default_value=None)


def swap_ragged_all_to_all(**defaults: Any) -> contextlib._GeneratorContextManager[None]:
    """Makes `jax.lax.ragged_all_to_all` ours: a context manager, and a decorator.

    Use it as `with fastjax.swap_ragged_all_to_all():`, or as `@fastjax.swap_ragged_all_to_all()`.
    Code that calls it as `jax.lax.ragged_all_to_all(...)` runs unchanged, on CPU too. The scope is
    part of `jax.jit`'s cache key, so a function jitted and run outside it is traced anew inside,
    and the other way round. Code that imported the function by name beforehand keeps JAX's. While
    the scope is open, other threads of the process see the swap as well, but what they trace keeps
    ours after it: swap before starting threads. Of nested scopes the innermost decides.

    Args:
      **defaults: `topology` and `scheduler` for the calls inside.

    Raises:
      ArgumentError: another keyword is given.
    """
    unknown = sorted(set(defaults) - set(_DEFAULTS))
    if unknown:
        raise ArgumentError(f"swap_ragged_all_to_all takes {_DEFAULTS}, got {unknown}.")
    return _swapped(defaults)


@contextlib.contextmanager
def _swapped(defaults: dict[str, Any]) -> Generator[None]:
    ours = functools.wraps(fast_ragged_all_to_all)(
        functools.partial(fast_ragged_all_to_all, **defaults)
    )
    with _lock:
        _open.append(ours)
        jax.lax.ragged_all_to_all = ours
    try:
        with _scope(tuple(sorted(defaults.items()))):
            yield
    finally:
        # Scopes of several threads may end in any order.
        with _lock:
            _open.remove(ours)
            jax.lax.ragged_all_to_all = _open[-1] if _open else _original


__all__ = ["swap_ragged_all_to_all"]
