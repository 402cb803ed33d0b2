"""Exchanges that others begin after: their results, in batches too, and what waits for what."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from spmd import mesh_of, spmd

import fastjax
from fastjax.traced.contract import Metadata
from fastjax.traced.ordered_exchange import exchange_ordered

DEVICES, BATCH = 4, 3


def ordered(operand, output, *way, plan=None):
    """The rows, and what is to be 5 once the exchange has begun."""
    if plan is None:
        plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
    five = jnp.full((), 5, jnp.float32)
    rows, begun = exchange_ordered(operand, output, Metadata(*way), plan, five)
    return rows, begun[None]


@pytest.fixture
def problem(rng):
    """An exchange, and operands and outputs of a batch of its kind."""
    sizes = reference.random_sizes(rng, DEVICES, DEVICES)
    meta = reference.packed(sizes)
    operand, output = reference.data(rng, meta, (BATCH, 4))
    expected = reference.exchange(operand, output, meta)
    return meta.arrays(), operand, output, expected


def checked(results, expected):
    rows, begun = results
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(begun, np.full(np.shape(begun), 5))


@pytest.mark.parametrize("batched", ["nothing", "rows", "offsets", "everything"])
def test_ordered_exchanges_result_in_the_rows_and_the_array(problem, batched):
    """Offsets alone: each element of the batch is an exchange of its own, since all have a plan."""
    way, operand, output, expected = problem
    mesh = mesh_of((DEVICES,))
    if batched == "nothing":
        return checked(spmd(ordered, mesh)(operand, output, *way), expected)
    again = lambda a: np.stack([a] * BATCH, 1)  # noqa: E731
    if batched == "rows":
        mapped = jax.vmap(ordered, (1, 1, None, None, None, None), (1, 0))
        return checked(spmd(mapped, mesh)(operand, output, *way), expected)
    expected = again(expected)
    if batched == "everything":
        arrays = map(again, (operand, output, *way))
        return checked(spmd(jax.vmap(ordered), mesh)(*arrays), expected)

    def of_one_plan(operand, output, starts, sizes, landings, received):
        plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x")
        of = functools.partial(ordered, plan=plan)
        mapped = jax.vmap(of, (None, None, 0, None, None, None))
        return mapped(operand, output, starts, sizes, landings, received)

    starts, *others = way
    return checked(spmd(of_one_plan, mesh)(operand, output, again(starts), *others), expected)


@pytest.mark.parametrize("platforms", [("tpu",), ("tpu", "cpu")])
def test_programs_of_platforms_without_a_backend_have_two_results_too(problem, platforms):
    way, operand, output, _ = problem
    traced = jax.jit(spmd(ordered, mesh_of((DEVICES,)))).trace(operand, output, *way)
    text = traced.lower(lowering_platforms=platforms).as_text()
    assert "ragged_all_to_all" in text
    assert ("fastjax_start_v2" in text) == ("cpu" in platforms)


def test_no_exchange_of_rows_that_nobody_needs(problem):
    """But what begins after it still waits for its operands."""
    way, operand, output, _ = problem
    function = spmd(lambda *operands: ordered(*operands)[1], mesh_of((DEVICES,)))
    text = jax.jit(function).lower(operand, output, *way).as_text()
    assert "fastjax_exchange" not in text
    assert text.count("@fastjax_after_v2") == 2
    np.testing.assert_array_equal(function(operand, output, *way), np.full((DEVICES, 1), 5))


def test_programs_keep_the_fallback_that_they_were_traced_with(problem):
    way, operand, output, _ = problem
    with fastjax.options(fallback="never"):
        traced = jax.jit(spmd(ordered, mesh_of((DEVICES,)))).trace(operand, output, *way)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "@fastjax_after_v2" in text
    assert "optimization_barrier" not in text
