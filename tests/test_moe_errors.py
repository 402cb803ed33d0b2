"""What expert-parallel layers refuse, and how they say so."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from spmd import mesh_of

import fastjax
from fastjax import errors, moe

P = jax.P
X = np.ones((8, 4, 3), np.float32)
IDS = np.arange(64, dtype=np.int32).reshape(8, 4, 2) % 8


def dispatched(x=X, ids=IDS, combine=lambda rows, handle: moe.combine(rows, handle), **options):  # noqa: PLW0108
    options = {"num_experts": 8, "axis_name": "x", **options}

    def local(x, ids):
        rows, _, handle = moe.dispatch(x[0], ids[0], **options)
        return combine(rows, handle)[None]

    spec = P("x")
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=spec, out_specs=spec)
    return jax.block_until_ready(jax.jit(mapped)(x, ids))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": X[..., 0]}, "x must be tokens, shape (tokens, width), got shape (4,)."),
        (
            {"ids": IDS[:, :3]},
            (
                "expert_ids must have the experts of each of x's 4 tokens, shape (4, k), got shape "
                "(3, 2)."
            ),
        ),
        ({"ids": IDS[..., 0]}, "shape (4, k), got shape (4,)."),
        ({"ids": IDS[..., :0]}, "shape (4, k), got shape (4, 0)."),
        ({"ids": IDS.astype(np.float32)}, "expert_ids must be integers, got float32."),
        (
            {"num_experts": 12},
            (
                "num_experts must be a multiple of the 8 devices that share them, as many on each; "
                "got 12."
            ),
        ),
        ({"num_experts": 0}, "num_experts must be a positive integer, got 0."),
        ({"num_experts": 8.0}, "num_experts must be a positive integer, got 8.0."),
        ({"alignment": 0}, "alignment must be a positive integer, got 0."),
        ({"alignment": True}, "alignment must be a positive integer, got True."),
        ({"buffer_factor": 0}, "buffer_factor must be a positive number, got 0."),
        ({"buffer_factor": -1.0}, "buffer_factor must be a positive number, got -1.0."),
        ({"buffer_factor": float("nan")}, "buffer_factor must be a positive number, got nan."),
        ({"buffer_factor": float("inf")}, "buffer_factor must be a positive number, got inf."),
        ({"buffer_factor": "2"}, "buffer_factor must be a positive number, got '2'."),
        ({"payload_dtype": jnp.int8}, "payload_dtype must be a floating-point type, got int8."),
        (
            {"x": X.astype(np.int32), "payload_dtype": jnp.bfloat16},
            "payload_dtype is for floating-point rows; these are int32.",
        ),
        (
            {"alignment": 2**31},
            (
                "a device would have room for 4294967296 rows, more than int32 counts; give a "
                "buffer_factor, or dispatch fewer tokens at a time."
            ),
        ),
        (
            {"combine": lambda rows, handle: moe.combine(rows[:-1], handle)},
            "rows must have the shape (32, width) of what was dispatched, got (31, 3).",
        ),
        (
            {"combine": lambda rows, _: moe.combine(rows, None)},
            "handle must come from fastjax.moe.dispatch, got NoneType.",
        ),
        (
            {"combine": lambda rows, handle: moe.combine(rows, handle, jnp.ones((4, 3)))},
            "weights must have one for each of the (tokens, k) = (4, 2) choices, got shape (4, 3).",
        ),
        (
            {"combine": lambda rows, handle: moe.combine(rows, handle, payload_dtype=bool)},
            "payload_dtype must be a floating-point type, got bool.",
        ),
    ],
    ids=lambda v: "" if isinstance(v, str) else "-".join(v),
)
def test_refused_when_traced(given, text):
    with pytest.raises(errors.ArgumentError, match=re.escape(text)):
        dispatched(**given)


def test_other_errors_are_those_of_exchanges():
    with pytest.raises(NameError, match="nowhere"):
        dispatched(axis_name="nowhere")
    with pytest.raises(errors.OptionError, match="scheduler must be one of"):
        dispatched(scheduler="magic")
    with pytest.raises(errors.TopologyError):
        dispatched(topology=fastjax.Topology(3, 3))


@pytest.mark.parametrize("wrong", [8, 700, -2, np.iinfo(np.int32).min, np.iinfo(np.int32).max])
def test_an_expert_that_there_is_not(wrong):
    ids = IDS.copy()
    ids[5, 2, 1] = wrong
    shown = min(abs(int(wrong)), 2**31 - 1)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=rf"device 5.*send_sizes\[0\].* -{shown}\b"
    ):
        dispatched(ids=ids)
    np.testing.assert_array_equal(dispatched(), 2 * X)  # the next one works


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint32])
def test_any_integer_type_of_experts(dtype):
    with jax.enable_x64(dtype == np.int64):
        np.testing.assert_array_equal(dispatched(ids=IDS.astype(dtype)), 2 * X)


def test_minus_one_goes_nowhere():
    ids = IDS.copy()
    ids[:, 0] = -1
    ids[3, 1, 1] = -1
    wanted = 2 * X
    wanted[:, 0] = 0
    wanted[3, 1] = 1
    check = functools.partial(np.testing.assert_array_equal, desired=wanted)
    check(dispatched(ids=ids))
    dropped = dispatched(ids=ids, combine=lambda _, handle: handle.dropped)
    assert not dropped.any()
