"""One call of several in a program fails: nobody waits at the others for devices that have failed.

The time-out is longer than a job may take: a test whose error comes after the time-out fails.
"""

import functools

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
from exchange_checks.backends import same, spread
from spmd import mesh_of, spmd

import fastjax
from fastjax import moe

CALLS, ROWS, WIDTH, EXPERTS = 3, 2, 4, 8
WRONG = CALLS - 1  # of the calls


def exchange(x, sizes, axis="x", plan=None):
    """Every device sends each as many rows, if the sizes are right."""
    count = jax.lax.axis_size(axis)
    at = ROWS * jnp.arange(count)
    to, back = jnp.full(count, ROWS * jax.lax.axis_index(axis)), jnp.full(count, ROWS)
    return fastjax.fast_ragged_all_to_all(
        x, jnp.zeros_like(x), at, sizes, to, back, axis_name=axis, plan=plan
    )


def side_by_side(x, sizes):
    return jnp.stack([exchange(jnp.tanh(x[i]), sizes[i]) for i in range(CALLS)])


def in_turn(x, sizes):
    """A loop, in which another exchange of the same repetition has the right sizes."""

    def step(last, each):
        result = exchange(each[0], each[1])
        also = exchange(each[0] + 0 * last, jnp.full_like(each[1], ROWS))
        return result, result + also

    return jax.lax.scan(step, x[0], (x, sizes))[1]


def backward(x, sizes):
    return jnp.stack(
        [
            jax.linear_transpose(functools.partial(exchange, sizes=sizes[i]), x[i])(x[i])[0]
            for i in range(CALLS)
        ]
    )


def planned(x, sizes):
    plan = functools.partial(fastjax.plan_ragged_all_to_all, axis_name="x")
    return jnp.stack([exchange(x[i], sizes[i], plan=plan(sizes[i])) for i in range(CALLS)])


def layers(x, sizes, chunks=1):
    """Layers of experts, one of which gets an expert that there is not where sizes are wrong."""
    tokens = x.shape[1]
    ids = jnp.arange(tokens)[:, None] % EXPERTS
    params = jnp.eye(WIDTH)[None] * jnp.ones((EXPERTS // jax.lax.axis_size("x"), 1, 1))
    weights = jnp.ones((tokens, 1))
    return jnp.stack(
        [
            moe.layer(
                *(x[i], jnp.where(sizes[i].min() < 0, 99, ids), weights, params),
                expert_fn=lambda rows, p: rows @ p,
                num_experts=EXPERTS,
                axis_name="x",
                chunks=chunks,
            )
            for i in range(CALLS)
        ]
    )


def gradients(x, sizes):
    return jax.grad(lambda x: (layers(x, sizes, chunks=2) ** 2).sum())(x)


def along(axis, x):
    """An exchange of right sizes over one axis of a mesh."""
    count = jax.lax.axis_size(axis)
    return exchange(x[: ROWS * count], jnp.full(count, ROWS), axis)


def next_axis(x, sizes):
    """Devices of one row of the mesh fail, and those of the others wait for them."""
    count = jax.lax.axis_size("y")
    first = exchange(x[WRONG, : ROWS * count], sizes[WRONG, :count], "y")
    return along("x", jnp.concatenate([first, x[0]]))


PROGRAMS = {
    function.__name__: function
    for function in (side_by_side, in_turn, backward, planned, layers, gradients, next_axis)
}


def prepared(name):
    """A program; its tokens, and sizes that are right, or wrong on the last device in one call."""
    count = jax.device_count()
    mesh = mesh_of((2, count // 2), ("x", "y")) if name == "next_axis" else mesh_of((count,))
    x = np.random.default_rng(0).normal(size=(count, CALLS, ROWS * count, WIDTH))
    good = np.full((count, CALLS, count), ROWS, np.int32)
    bad = good.copy()
    bad[-1, WRONG, 0] = -1
    run = spmd(PROGRAMS[name], mesh, check_vma=False).mapped
    return run, x.astype(np.float32), *spread(mesh, (x.astype(np.float32), good, bad))


def error_of(run, *operands):
    """What a launch says that fails, in each of a process's parts that are waited for."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(run(*operands))
    return str(caught.value)


def failing(names):
    """Runs in a job: programs of which one call fails in the second launch of three."""
    told = {}
    for name in names:
        run, values, x, good, bad = prepared(name)
        before = jax.block_until_ready(run(x, good))
        told[name] = error_of(run, x, bad)
        after = run(x, good)
        for one, other in zip(before.addressable_shards, after.addressable_shards, strict=True):
            np.testing.assert_array_equal(one.data, other.data)
        if name == "planned":  # the others compute with what they send
            count = jax.device_count()
            blocks = values.reshape(count, CALLS, count, ROWS, WIDTH)
            same(after, blocks.transpose(2, 1, 0, 3, 4).reshape(values.shape))
    return told


def check(told):
    """Each error is that of the call that failed, not of one that waited."""
    for name, text in told.items():
        wrong = "given the expert 99" if name in ("layers", "gradients") else "send_sizes[0] = -1"
        device = "on device 1 of group 1" if name == "next_axis" else "on device 3"
        assert wrong in text, text
        assert device in text, text
        assert "which did not" not in text, text


@pytest.mark.parametrize("processes", [1, 2])
def test_nobody_waits_for_devices_that_have_failed(processes):
    results = multiprocess.run(
        __file__,
        "failing",
        processes=processes,
        devices=4 // processes,
        arguments={"names": list(PROGRAMS)},
        environment={"FASTJAX_TIMEOUT": "1000"},
    )
    for result in results:
        assert list(result) == list(PROGRAMS)
        check(result)


def alike():
    """Runs in a job: two programs that XLA cannot tell apart, of which one fails."""
    _, _, x, good, bad = prepared("next_axis")
    mesh = x.sharding.mesh
    lowered = [spmd(next_axis, mesh, check_vma=False).mapped.lower(x, good) for _ in range(2)]
    one, other = [each.compile() for each in lowered]
    for in_flight in (False, True):
        failing = one(x, bad)
        right = other(x, good) if in_flight else None
        error_of(lambda failing=failing: failing)
        jax.block_until_ready(other(x, good) if right is None else right)
    return {}


def test_programs_that_are_alike_fail_by_themselves():
    multiprocess.run(
        __file__, "alike", processes=1, devices=4, environment={"FASTJAX_TIMEOUT": "1000"}
    )
