"""What to catch where an exchange of a running program fails, with one device and with several."""

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
from spmd import mesh_of, spmd

import fastjax
from fastjax import errors


def caught(work):
    """The error that EXCHANGE_ERRORS catch, if there is one."""
    try:
        jax.block_until_ready(work())
    except errors.EXCHANGE_ERRORS as error:
        return error
    return None


def failing_again():
    """Runs in a job: JAX takes another way from some call of a program on."""
    count = jax.device_count()
    at = jnp.arange(count)

    def local(x, sizes):
        plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x")
        to, one = jnp.full(count, jax.lax.axis_index("x")), jnp.ones_like(sizes)
        exchange = fastjax.fast_ragged_all_to_all
        fused = exchange(x, x * 0, at, sizes, to, one, axis_name="x")
        return fused + exchange(x, x * 0, at, sizes, to, one, axis_name="x", plan=plan)

    run = spmd(local, mesh_of((count,)))
    x = np.ones((count, count, 2), np.float32)
    good = np.ones((count, count), np.int32)
    types = set()
    for wrong in (False, False, False, True, False, True):
        error = caught(lambda wrong=wrong: run(x, good - 2 * wrong))
        assert (error is not None) == wrong
        if error is not None:
            assert errors.is_exchange_error(error), error
            assert "send_sizes[0] = -1" in str(error)
            types.add(type(error).__name__)
    return {"types": sorted(types)}


@pytest.mark.parametrize("devices", [1, 2])
def test_one_name_for_all_failed_exchanges(devices):
    (result,) = multiprocess.run(__file__, "failing_again", processes=1, devices=devices)
    assert set(result["types"]) <= {"JaxRuntimeError", "ValueError"}


def fails(_):
    raise KeyError("a mistake of the callback's")


@pytest.mark.parametrize(
    "work",
    [
        lambda: jnp.zeros(0).max(),
        lambda: jax.pure_callback(fails, jax.ShapeDtypeStruct((), "int32"), 0),
        lambda: fastjax.Topology(0, 1),
        lambda: fastjax.make_plan(-np.ones((2, 2), int), fastjax.Topology(2, 1)),
    ],
    ids=["ValueError of JAX", "JaxRuntimeError of another operation", "topology", "plan"],
)
def test_other_errors_are_told_apart(work):
    error = caught(work)
    assert error is not None
    assert not errors.is_exchange_error(error), error
