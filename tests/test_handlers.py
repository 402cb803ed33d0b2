"""Custom calls that fastjax never makes itself: the handlers refuse them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastjax  # registers the handlers
from fastjax.traced.contract import CALLS, Metadata

assert fastjax.__version__


TOPOLOGY = (1, 1, 1, 1, 1, 1, 1, 1)
WITH_NICS = (2, 1, *TOPOLOGY[2:])


ATTRIBUTES = {
    "operation": "an_operation",
    "name": "a_scope/an_operation",
    "axis": "'x'",
    "program": "jit_a_program",
    "shapes": "float32[4]",
    "channel": 1,
    "timeout_ms": 1000,
    "group_size": 1,
    "replica_groups": [0],
    "rank_of": [0],
    "topology": TOPOLOGY,
    "scheduler": 0,
    "row_bytes": 1,
    "experts": 0,
    "reverse": False,
    "transposed_table": False,
    "check_overlaps": False,
    "platform": "cpu",
    "rank": 0,
}
INTEGERS = jnp.zeros(1, jnp.int32)
OPERANDS = {
    "source": jnp.zeros((1, 1)),
    "base": jnp.zeros((1, 1)),
    **dict.fromkeys(Metadata._fields, INTEGERS),
    "partition": jnp.zeros((), jnp.uint32),
}


def operands_of(target, **others):
    return [(OPERANDS | others)[name] for name in CALLS[target].operands]


def raw_call(target, result, operands, **attributes):
    """Calls a handler with what is declared for it, but for these attributes; None: without it."""
    declared = [a.name for a in CALLS[target].attributes if not a.optional]
    good = CALLS[target].encoded({name: ATTRIBUTES[name] for name in declared}) | attributes
    good = {name: value for name, value in good.items() if value is not None}
    return jax.jit(lambda *a: jax.ffi.ffi_call(target, result)(*a, **good))(*operands)


WORDS = jax.ShapeDtypeStruct((48,), jnp.int32)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"channel": None}, "a call site's attributes are incomplete"),
        ({"program": None}, "a call site's attributes are incomplete"),
        ({"shapes": None}, "a call site's attributes are incomplete"),
        ({"processes": np.array([0], np.int64)}, "processes and rails must be given"),
        (
            {"processes": np.array([0], np.int64), "rails": np.array([-1], np.int64)},
            "processes and rails must be given for every device",
        ),
        (
            {"processes": np.array([0], np.int64), "rails": np.array([0], np.int64)},
            "this process has opened no network",
        ),
        ({"group_size": np.int64(0)}, "replica_groups and group_size disagree"),
        ({"group_size": np.int64(2)}, "replica_groups and group_size disagree"),
        ({"replica_groups": np.array([1], np.int64)}, "must name every partition once"),
        ({"rank_of": np.array([1], np.int64)}, "rank_of must be a permutation"),
        ({"scheduler": None}, "a plan's attributes are incomplete"),
        ({"topology": None}, "a plan's attributes are incomplete"),
        ({"row_bytes": None}, "a plan's attributes are incomplete"),
        ({"topology": np.array(WITH_NICS, np.int64)}, "topology does not fit the group"),
        ({"topology": np.array(TOPOLOGY[:7], np.int64)}, "a topology has too few words"),
        *(
            ({"topology": np.array(words, np.int64)}, message)
            for words, message in (
                ((0, *TOPOLOGY[1:]), "a topology has an impossible number of devices"),
                ((1, 2**21, *TOPOLOGY[2:]), "a topology has an impossible number of devices"),
                ((1, 1, 0, *TOPOLOGY[3:]), "a bandwidth is not positive"),
                ((1, 1, 1, 0, *TOPOLOGY[4:]), "a bandwidth is not positive"),
                ((1, 1, 1, 1, -1, 1, 1, 1), "a latency is out of range"),
                ((1, 1, 1, 1, 1, 1, 2**62, 1), "a latency is out of range"),
                ((1, 1, 1, 1, 1, 1, 1, 10**6 + 1), "incast_loss is out of range"),
                ((*TOPOLOGY, 1, 1), "nic_bandwidths does not have an entry for each device"),
                ((*TOPOLOGY, -1), "a NIC's bandwidth is negative"),
                ((*WITH_NICS, 1, 0), "a server has no working NIC"),
            )
        ),
        ({"scheduler": np.int64(99)}, "topology does not fit the group"),
    ],
)
def test_calls_with_impossible_attributes(attributes, text):
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        raw_call("fastjax_plan_v1", WORDS, operands_of("fastjax_plan_v1"), **attributes)


def test_exchanges_with_impossible_attributes():
    target, result = "fastjax_plan_exchange_v1", jax.ShapeDtypeStruct((1, 1), jnp.float32)
    operands = operands_of(target)
    with pytest.raises(jax.errors.JaxRuntimeError, match="an exchange's attributes are incomplete"):
        raw_call(target, result, operands, reverse=None)
    assert raw_call(target, result, operands).shape == (1, 1)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("name", "operand"),
    [
        ("source", jnp.zeros((1, 2))),
        ("input_offsets", jnp.zeros(1)),
        ("send_sizes", jnp.zeros(2, jnp.int32)),
        ("recv_sizes", jnp.zeros((1, 1), jnp.int32)),
        ("partition", jnp.ones((), jnp.uint32)),
        ("partition", jnp.zeros((), jnp.int32)),
    ],
)
def test_calls_with_unexpected_operands(name, operand):
    target, result = "fastjax_plan_exchange_v1", jax.ShapeDtypeStruct((1, 1), jnp.float32)
    operands = operands_of(target, **{name: operand})
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT: an_operation over axis"
    ):
        jax.block_until_ready(raw_call(target, result, operands))
    short = jax.ShapeDtypeStruct((3,), jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="unexpected operands"):
        jax.block_until_ready(raw_call("fastjax_plan_v1", short, operands_of("fastjax_plan_v1")))


def loopback_arrays(target, **others):
    """Its result's type, and its operands: those of one rank."""
    exchange = target == "fastjax_loopback_v1"
    result = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32) if exchange else WORDS
    names = CALLS[target].operands
    return result, [others.get(name, OPERANDS[name][None]) for name in names]


@pytest.mark.parametrize(
    ("target", "attributes", "text"),
    [
        ("fastjax_loopback_v1", {"platform": None}, "a call site's attributes are incomplete"),
        ("fastjax_loopback_v1", {"topology": None}, "a plan's attributes are incomplete"),
        ("fastjax_loopback_v1", {"reverse": None}, "an exchange's attributes are incomplete"),
        ("fastjax_loopback_v1", {"platform": "none"}, "cannot load fastjax's GPU library"),
        ("fastjax_loopback_plan_v1", {"rank": np.int64(1)}, "there is no such rank"),
        ("fastjax_loopback_plan_v1", {"rank": np.int64(-1)}, "there is no such rank"),
        ("fastjax_loopback_plan_v1", {"scheduler": None}, "a plan's attributes are incomplete"),
    ],
)
def test_loopback_with_impossible_attributes(target, attributes, text, tmp_path):
    # As where fastjax was built without a platform's library.
    fastjax._core.set_gpu_options("none", str(tmp_path / "libfastjax_none.so"), 0, [])
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        raw_call(target, *loopback_arrays(target), **attributes)


def test_a_tally_of_gpus_that_there_are_none_of(tmp_path):
    fastjax._core.set_gpu_options("none", str(tmp_path / "libfastjax_none.so"), 0, [])
    with pytest.raises(RuntimeError, match="cannot load fastjax's GPU library"):
        fastjax._core.gpu_tally("none")


@pytest.mark.parametrize(
    ("name", "operand"),
    [
        ("source", jnp.zeros((2, 1, 1))),
        ("source", jnp.zeros(1)),
        ("source", jnp.zeros((1, 1, 2))),
        ("input_offsets", jnp.zeros((1, 1))),
        ("send_sizes", jnp.zeros((2, 1), jnp.int32)),
        ("output_offsets", jnp.zeros((1, 2), jnp.int32)),
        ("recv_sizes", jnp.zeros(1, jnp.int32)),
    ],
)
def test_loopback_with_unexpected_operands(name, operand):
    target = "fastjax_loopback_v1"
    with pytest.raises(jax.errors.JaxRuntimeError, match="unexpected operands"):
        raw_call(target, *loopback_arrays(target, **{name: operand}))


@pytest.mark.parametrize("sizes", [jnp.zeros((1, 1)), jnp.zeros((2, 1), jnp.int32), jnp.int32(1)])
def test_loopback_plan_with_unexpected_operands(sizes):
    with pytest.raises(jax.errors.JaxRuntimeError, match="unexpected operands"):
        raw_call("fastjax_loopback_plan_v1", WORDS, [sizes])
