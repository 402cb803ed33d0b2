"""Scopes: entered as often as one likes, on any thread, and not forgotten."""

import concurrent.futures
import functools
import gc
import re

import pytest
from refusals import refusals, refused

from fastjax.errors import ArgumentError
from fastjax.scopes import Scope


@pytest.fixture
def log():
    return []


@pytest.fixture
def scope(log):
    """Writes down when it is entered and left."""

    def enter(undo):
        number = len(log)
        log.append(f"enter {number}")
        undo.callback(log.append, f"leave {number}")
        return number

    made = Scope("fastjax.made", enter)
    made(lambda: None)  # it counts as used
    return made


def test_entered_again_and_inside_itself(scope, log):
    with scope as first:
        assert first == 0
    with scope as outer, scope as inner:
        assert (outer, inner) == (2, 3)
    assert log == ["enter 0", "leave 0", "enter 2", "enter 3", "leave 3", "leave 2"]


def test_left_by_the_thread_that_entered_it(scope, log):
    with concurrent.futures.ThreadPoolExecutor(1) as other, scope:
        assert other.submit(scope.__enter__).result() == 1
        other.submit(scope.__exit__, None, None, None).result()
        assert log == ["enter 0", "enter 1", "leave 1"]
        leave = other.submit(scope.__exit__, None, None, None).result
        refused(RuntimeError, leave, "fastjax.made: this thread has not entered the scope")
    assert log[3:] == ["leave 0"]


def test_undone_where_entering_fails():
    log = []

    def enter(undo):
        undo.callback(log.append, "undone")
        raise KeyError

    with pytest.raises(KeyError), Scope("fastjax.made", enter):
        pytest.fail("the scope must not open")
    assert log == ["undone"]


def test_a_scope_that_is_let_go_stays_open(log):
    Scope("fastjax.made", lambda undo: undo.callback(log.append, "left")).__enter__()
    gc.collect(0)  # it is as young
    assert not log


def test_a_decorated_function_may_call_itself(scope, log):
    @scope
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    assert factorial(3) == 6
    assert log == [*(f"enter {i}" for i in range(4)), *(f"leave {i}" for i in (3, 2, 1, 0))]


def test_a_scope_that_nobody_uses_warns():
    told = "fastjax.made(...) has no effect by itself. Write `with fastjax.made(...):`"
    with pytest.warns(RuntimeWarning, match=re.escape(told)) as caught:
        Scope("fastjax.made", list)
    assert caught[0].filename == __file__


async def coroutine():
    pass


def generator():
    yield


async def asynchronous_generator():
    yield


test_decorates_no_functions_whose_bodies_run_later = refusals(
    ArgumentError,
    *(
        (lambda f=f: Scope("fastjax.made", list)(f), f", {kind} function")
        for f, kind in (
            (coroutine, "a coroutine"),
            (generator, "a generator"),
            (functools.partial(generator), "a generator"),
            (asynchronous_generator, "an asynchronous generator"),
        )
    ),
)
