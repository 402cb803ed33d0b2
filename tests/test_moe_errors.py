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
        ({"buffer_factor": True}, "buffer_factor must be a positive number, got True."),
        ({"payload_dtype": jnp.int8}, "with a sign, of a byte or more, got int8."),
        ({"payload_dtype": jnp.float8_e8m0fnu}, "with a sign, of a byte or more, got float8_e8m0"),
        ({"payload_dtype": jnp.float4_e2m1fn}, "with a sign, of a byte or more, got float4_e2m1"),
        ({"payload_dtype": "nonsense"}, "payload_dtype must be a type, got 'nonsense'."),
        ({"num_experts": 2**31}, "num_experts must be below 2^31, got 2147483648."),
        (
            {"x": X.astype(np.int32), "payload_dtype": jnp.bfloat16},
            "payload_dtype is for floating-point rows; these are int32.",
        ),
        (
            {"alignment": 2**30},
            (
                "a device would have room for 2147483648 rows, more than int32 counts; give a "
                "smaller buffer_factor or alignment, or dispatch fewer tokens at a time."
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
            "with a sign, of a byte or more, got bool.",
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


def _refusal(wrong):
    """Of eight experts. Numbers that int32 does not hold are told as the largest that it does."""
    size = min(abs(int(wrong)), 2**31 - 1)
    number = f"-{size}" if size < 8 else f"{size} (or -{size})"
    text = f"on device 5, moe.dispatch was given the expert {number} in expert_ids; want 0 to 7,"
    return re.escape(text)


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        *(("int32", number) for number in (8, 700, -2, -(2**31), 2**31 - 1)),
        *(("int8", number) for number in (100, -128)),
        *(("uint8", number) for number in (8, 255)),
        ("uint16", 2**16 - 1),
        ("uint32", 2**32 - 1),
    ],
)
def test_an_expert_that_there_is_not(dtype, wrong):
    ids = IDS.astype(dtype)
    ids[5, 2, 1] = wrong
    with pytest.raises(jax.errors.JaxRuntimeError, match=_refusal(wrong)):
        dispatched(ids=ids)
    np.testing.assert_array_equal(dispatched(), 2 * X)  # the next one works


@pytest.mark.parametrize("wrong", [2**40, -(2**40)])
def test_an_expert_that_int32_does_not_count(wrong):
    with jax.enable_x64(True):
        ids = IDS.astype(np.int64)
        ids[5, 2, 1] = wrong
        with pytest.raises(jax.errors.JaxRuntimeError, match=_refusal(wrong)):
            dispatched(ids=ids)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint32])
def test_any_integer_type_of_experts(dtype):
    with jax.enable_x64(dtype == np.int64):
        types = {}

        def look(rows, handle):
            types.update(found={a.dtype for a in jax.tree.leaves(handle)})
            return moe.combine(rows, handle)

        np.testing.assert_array_equal(dispatched(ids=IDS.astype(dtype), combine=look), 2 * X)
        assert types["found"] == {np.dtype(np.int32), np.dtype(bool)}


def test_more_experts_than_their_type_counts():
    ids = IDS.astype(np.uint8) * 36
    np.testing.assert_array_equal(dispatched(ids=ids, num_experts=256), 2 * X)


def test_float64_in_one_byte_is_refused():
    with jax.enable_x64(True), pytest.raises(errors.ArgumentError, match="scales in float32"):
        dispatched(x=X.astype(np.float64), payload_dtype=jnp.float8_e5m2)


def test_more_choices_than_int32_counts():
    """Nothing is so large here: shapes are enough."""
    x, ids = (jax.ShapeDtypeStruct((2**30, k), t) for k, t in ((0, jnp.float32), (2, jnp.int32)))

    def local(x, ids):
        return moe.dispatch(x, ids, num_experts=8, axis_name="x", buffer_factor=0.01)[0]

    spec = P("x")
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=spec, out_specs=spec)
    with pytest.raises(errors.ArgumentError, match="have 2147483648 choices together"):
        jax.eval_shape(mapped, x, ids)


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
