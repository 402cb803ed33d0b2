"""Scopes: context managers and decorators, which may be entered as often as one likes."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fastjax.errors import ArgumentError

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.entered: list[contextlib.ExitStack] = []


class Scope(contextlib.ContextDecorator, Generic[Value]):
    """What a `with` statement opens, or a function's decorator at each of its calls.

    One scope may be entered again, also while it is open, and in several threads.
    """

    def __init__(self, name: str, enter: Callable[[contextlib.ExitStack], Value]) -> None:
        """Opens nothing yet.

        Args:
          name: what makes the scope, for messages.
          enter: does what the scope does, and tells the stack how that is undone.
        """
        self._name = name
        self._enter = enter
        self._here = _OfThread()
        self._used = False

    def __enter__(self) -> Value:
        self._used = True
        with contextlib.ExitStack() as undo:
            value = self._enter(undo)
            self._here.entered.append(undo.pop_all())
        return value

    def __exit__(self, *error: Any) -> bool | None:
        if not self._here.entered:
            raise RuntimeError(
                f"{self._name}: this thread has not entered the scope that it leaves; leave it "
                "where it was entered."
            )
        return self._here.entered.pop().__exit__(*error)

    def __call__(self, func: Function) -> Function:
        """The function, which opens the scope at each of its calls."""
        self._used = True
        later = {
            "a generator function": inspect.isgeneratorfunction(func),
            "a coroutine function": inspect.iscoroutinefunction(func),
            "an asynchronous generator function": inspect.isasyncgenfunction(func),
        }
        for kind, is_one in later.items():
            if is_one:
                name = getattr(func, "__qualname__", repr(func))
                raise ArgumentError(
                    f"{self._name} cannot decorate {name}, {kind}: its body runs "
                    f"after the call. Write `with {self._name}(...):` around what is traced in it."
                )
        return super().__call__(func)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"{self._name}(...) has no effect by itself. Write `with {self._name}(...):`, or "
                f"`@{self._name}(...)` above a function.",
                RuntimeWarning,
                stacklevel=2,
            )
