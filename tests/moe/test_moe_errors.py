"""What expert-parallel layers refuse, and how they say so."""

import math
import sys
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import bounds, keywords, refusals, refused
from spmd import mesh_of

import fastjax
from fastjax import errors, moe

P = jax.P
X = np.ones((8, 4, 3), np.float32)
IDS = np.arange(64, dtype=np.int32).reshape(8, 4, 2) % 8

test_the_name_that_others_have = refusals(
    TypeError,
    (partial(moe.layer, capacity_factor=1.0), "moe.layer takes buffer_factor", "capacity_factor"),
    (partial(moe.dispatch, capacity_factor=1.0), "moe.dispatch takes buffer_factor"),
)


def layer(combine=moe.combine, **options):
    """The program of a layer that does nothing."""
    options = {"num_experts": 8, "axis_name": "x", **options}

    def local(x, ids):
        rows, _, handle = moe.dispatch(x[0], ids[0], **options)
        return combine(rows, handle)[None]

    return jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x")))


compiled = cache(layer)


def dispatched(x=X, ids=IDS, **options):
    return jax.block_until_ready(compiled(**options)(x, ids))


def traced(x=X, ids=IDS, **options):
    return lambda: jax.eval_shape(layer(**options), x, ids)


def combining(*arguments, **options):
    return {"combine": lambda rows, handle: moe.combine(rows, handle, *arguments, **options)}


COUNT = [0, -1, 8.0, True]

test_bounds = bounds(
    errors.ArgumentError,
    *keywords(
        lambda **options: traced(**options)(),
        num_experts=([*COUNT, 7, 12, 2**31], [8, 16, 2**31 - 8]),
        alignment=(COUNT, [1]),
        buffer_factor=(
            [0, -1.0, math.nan, math.inf, "2", True],
            [math.nextafter(0, 1), sys.float_info.max],
        ),
        payload_dtype=(["nonsense"], ["bfloat16"]),
        deduplicate=([0, 1, "yes"], [True, False, None]),
    ),
)

IN_INT32 = X.astype(np.int32)
ROOM = "a device would have room for 2147483648 rows, more than int32 counts"
TWO = fastjax.Topology(2, 4)
PAYLOAD = "with a sign, of a byte or more, got "


test_refused_when_traced = refusals(
    errors.ArgumentError,
    (traced(x=X[:, 0, 0]), "x must be tokens, shape (..., width), got one number"),
    (
        traced(ids=IDS[:, :3]),
        "expert_ids",
        "x, which has shape (4, 3): shape (4, k), got",
        "(3, 2)",
    ),
    (traced(x=X[..., 0]), "expert_ids", "shape (k), got shape (4, 2)"),
    (traced(ids=IDS[..., 0]), "expert_ids", "shape (4, k), got shape (4,)"),
    (traced(ids=IDS[..., :0]), "expert_ids", "shape (4, k), got shape (4, 0)"),
    (traced(ids=IDS.astype(np.float32)), "expert_ids must be integers, got float32"),
    (traced(alignment=2**30), ROOM, "buffer_factor or alignment"),
    (traced(payload_dtype=jnp.int8), f"{PAYLOAD}int8"),
    (traced(payload_dtype=jnp.float8_e8m0fnu), f"{PAYLOAD}float8_e8m0"),
    (traced(payload_dtype=jnp.float4_e2m1fn), f"{PAYLOAD}float4_e2m1"),
    (traced(**combining(payload_dtype=bool)), f"{PAYLOAD}bool"),
    (traced(x=IN_INT32, payload_dtype=jnp.bfloat16), "payload_dtype", "these are int32"),
    (
        traced(combine=lambda rows, handle: moe.combine(rows[:-1], handle)),
        "rows must have the shape (32, width) of what was dispatched, got (31, 3)",
    ),
    (
        traced(combine=lambda rows, _: moe.combine(rows, None)),
        "handle must come from fastjax.moe.dispatch, got NoneType",
    ),
    (
        traced(weights=jnp.ones((4, 3))),
        "weights must have one for each choice of expert_ids, shape (4, 2), got shape (4, 3)",
    ),
    (
        traced(weights=jnp.ones((4, 2), jnp.complex64), deduplicate=True, topology=TWO),
        "weights must be real to travel with deduplicated tokens, got complex64",
    ),
    (
        traced(**combining(jnp.ones((4, 2), jnp.complex64)), deduplicate=True, topology=TWO),
        "weights must be real to travel with deduplicated tokens, got complex64",
    ),
    (
        traced(**combining(jnp.ones((4, 3)))),
        "weights must have one for each choice of expert_ids, shape (4, 2), got shape (4, 3)",
    ),
)


def test_one_choice_is_enough():
    assert traced(ids=IDS[..., :1])().shape == X.shape


def test_other_errors_are_those_of_exchanges():
    refused(NameError, traced(axis_name="nowhere"), "nowhere")
    refused(errors.OptionError, traced(scheduler="magic"), "scheduler must be one of", "magic")
    refused(errors.TopologyError, traced(topology=fastjax.Topology(3, 3)), "3 x 3 = 9 devices")


def told_of(wrong):
    """Of eight experts. Numbers of 2**30 and more are told as beyond the largest below it."""
    most = 2**30 - 1
    number = f"{np.clip(int(wrong), -most, most)}"
    number += " or more" * (wrong >= most) + " or less" * (wrong <= -most)
    return f"on device 5, moe.dispatch was given the expert {number} in expert_ids; want 0 to 7,"


def with_expert(number, dtype="int32"):
    ids = IDS.astype(dtype)
    ids[5, 2, 1] = number
    return ids


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        *(("int32", number) for number in (8, 700, -2, -8, -(2**31), 2**31 - 1)),
        *(("int8", number) for number in (100, -128)),
        *(("uint8", number) for number in (8, 255)),
        ("uint16", 2**16 - 1),
        *(("uint32", number) for number in (2**30 - 2, 2**31, 2**32 - 1)),
        *(("int64", number) for number in (2**40, -(2**40))),
    ],
)
def test_an_expert_id_out_of_range(dtype, wrong):
    with jax.enable_x64(dtype == "int64"):
        call = partial(dispatched, ids=with_expert(wrong, dtype))
        refused(jax.errors.JaxRuntimeError, call, told_of(wrong))
    np.testing.assert_array_equal(dispatched(), 2 * X)  # the next one works


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deduplicate": True, "topology": TWO, "buffer_factor": 0.5, "drop": True},
        {"balance": True, "topology": TWO},
    ],
    ids=["plain", "crossing", "levelled"],
)
def test_an_expert_id_out_of_range_in_chunks(options):
    def local(x, ids):
        params, weights = jnp.ones((1, 1)), jnp.ones((4, 2))
        split = {"num_experts": 8, "axis_name": "x", "chunks": 2} | options
        return moe.layer(
            x[0], ids[0], weights, params, expert_fn=lambda rows, p: rows * p, **split
        )[None]

    run = jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x")))
    for wrong, dtype in ((2**32 - 1, "uint32"), (-3, "int32")):
        call = lambda: jax.block_until_ready(run(X, with_expert(wrong, dtype)))  # noqa: B023, E731
        refused(jax.errors.JaxRuntimeError, call, told_of(wrong))


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
    with jax.enable_x64(True):
        call = traced(x=X.astype(np.float64), payload_dtype=jnp.float8_e5m2)
        refused(errors.ArgumentError, call, "payload_dtype float8_e5m2 has scales in float32")


def test_more_choices_than_int32_counts():
    """Nothing is so large here: shapes are enough."""

    def dispatch(tokens):
        x, ids = (jax.ShapeDtypeStruct((8, tokens, k), t) for k, t in ((0, "f4"), (2, "i4")))
        return traced(x, ids, buffer_factor=0.01)

    dispatch(2**27 - 1)()
    refused(errors.ArgumentError, dispatch(2**27), "have 2147483648 choices together")
