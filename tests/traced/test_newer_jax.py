"""What JAX has from 0.12 on: collectives that are forbidden, and operations in program order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange, planned
from refusals import refused
from spmd import spmd

import fastjax
from fastjax import moe
from fastjax.traced.contract import Metadata
from fastjax.traced.start_done import start

pytestmark = pytest.mark.skipif(
    not hasattr(jax.sharding, "no_collectives"), reason="JAX has neither before 0.12"
)


@pytest.fixture
def problem(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    return meta, *reference.data(rng, meta)


def test_collectives_are_forbidden_as_those_of_jax(problem):
    meta, operand, output = problem
    arguments = operand, output, *meta.arrays()

    def started(operand, output, *arrays):
        with jax.sharding.no_collectives(frozenset()):
            plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
        return start(operand, output, Metadata(*arrays), plan).rows

    def dispatched(operand, output, *arrays):
        ids = jnp.zeros((operand.shape[0], 1), jnp.int32)
        return moe.dispatch(operand, ids, num_experts=8, axis_name="x")[0]

    def traced(function):
        return functools.partial(jax.eval_shape, spmd(function).mapped, *arguments)

    with jax.sharding.no_collectives({"x"}), pytest.raises(Exception, match="forbidden") as by_jax:
        traced(lambda operand, *_: jax.lax.psum(operand, "x"))()
    for function, told in (
        (exchange, "fast_ragged_all_to_all"),
        (planned, "plan_ragged_all_to_all"),
        (started, "start_ragged_all_to_all"),
        (dispatched, "plan_ragged_all_to_all"),
    ):
        with jax.sharding.no_collectives({"x"}):
            refused(by_jax.type, traced(function), f"`{told}` acts on axis 'x'")
        with jax.sharding.no_collectives({"y"}):
            traced(function)()


def test_program_order(problem):
    """Exchanges, plans and their gradients between operations that are kept in order.

    On CPU devices of JAX 0.12.0 an `axis_index` cannot be among these, which the gradient for an
    output needs.
    """
    from jax.experimental.overlap import program_order

    meta, operand, output = problem

    def loss(operand, output, *arrays):
        first = planned(operand, output, *arrays)
        total = jax.lax.psum((first**2).sum(), "x")
        return total + (exchange(2 * operand, output, *arrays) ** 3).sum()

    def gradients(wrap):
        inside, outside = jax.grad(wrap(loss)), wrap(jax.grad(loss))
        local = lambda *args: (wrap(loss)(*args), inside(*args), outside(*args))  # noqa: E731
        return spmd(local)(operand, output, *meta.arrays())

    got = gradients(functools.partial(program_order, enforce=True))
    jax.tree.map(np.testing.assert_array_equal, got, gradients(lambda function: function))
