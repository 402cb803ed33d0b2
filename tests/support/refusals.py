"""Tables of what is refused; each is a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest


def refused(error: type[Exception], call: Callable[[], Any], *fragments: str) -> str:
    """Asserts that a call ends with just this error, whose text has the fragments; the text."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert caught.type is error, text
    for fragment in fragments:
        assert fragment in text, f"{fragment!r} is not in {text!r}"
    return text


def _test_of(checks: Iterable[tuple[str, Callable[[], Any]]]) -> Callable[..., None]:
    @pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in checks])
    def test(check: Callable[[], Any]) -> None:
        check()

    return test


def refusals(error: type[Exception], *rows: tuple[Any, ...]) -> Callable[..., None]:
    """A test of calls that are refused.

    A row has a call, and the fragments that the text of its refusal must have: what a user needs,
    which is the operand's name and the wrong value.
    """
    return _test_of(
        (f"{told[0]:.50}", partial(refused, error, call, *told)) for call, *told in rows
    )


Row = tuple[str, Callable[[Any], Any], Iterable[Any], Iterable[Any]]


def keywords(call: Callable[..., Any], **limits: tuple[Iterable[Any], Iterable[Any]]) -> list[Row]:
    """Rows of `bounds`: for each keyword that a call takes, what it refuses and what it takes."""
    return [(name, lambda v, name=name: call(**{name: v}), *each) for name, each in limits.items()]


def bounds(error: type[Exception], *rows: Row) -> Callable[..., None]:
    """A test of values at their bounds.

    A row has an operand's name, a call that is given its value, the values that it refuses, and
    those that it takes, which begin where the others end. A refusal tells the name and the value.
    """
    checks: list[tuple[str, Callable[[], Any]]] = []
    for name, call, wrong, right in rows:
        for value in wrong:
            told = name, f"got {value!r}"
            check = partial(refused, error, partial(call, value), *told)
            checks.append((f"{name}={value!r:.20} is refused", check))
        checks += [(f"{name}={value!r:.20}", partial(call, value)) for value in right]
    return _test_of(checks)
