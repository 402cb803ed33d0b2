"""Custom calls that fastjax never makes itself: the handlers refuse them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastjax  # registers the handlers

assert fastjax.__version__


TOPOLOGY = (1, 1, 1, 1, 1, 1, 1, 1)
WITH_NICS = (2, 1, *TOPOLOGY[2:])


def raw_call(target, result, *operands, **attributes):
    good = {
        "operation": "an_operation",
        "axis": "'x'",
        "program": "jit_a_program",
        "shapes": "float32[4]",
        "channel": np.int64(1),
        "timeout_ms": np.int64(1000),
        "group_size": np.int64(1),
        "replica_groups": np.array([0], np.int64),
        "rank_of": np.array([0], np.int64),
        "topology": np.array(TOPOLOGY, np.int64),
        "scheduler": np.int64(0),
        "row_bytes": np.int64(1),
        "reverse": np.bool_(False),
        "transposed_table": np.bool_(False),
    }
    good.update(attributes)
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
    sizes, partition = jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.uint32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        raw_call("fastjax_plan_v1", WORDS, sizes, partition, **attributes)


def test_exchanges_with_impossible_attributes():
    operands = [jnp.zeros((1, 1)), jnp.zeros((1, 1)), *[jnp.zeros(1, jnp.int32)] * 4]
    operands.append(jnp.zeros((), jnp.uint32))
    result = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="an exchange's attributes are incomplete"):
        raw_call("fastjax_plan_exchange_v1", result, *operands, reverse=None)
    assert raw_call("fastjax_plan_exchange_v1", result, *operands).shape == (1, 1)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("position", "operand"),
    [
        (0, jnp.zeros((1, 2))),
        (2, jnp.zeros(1)),
        (3, jnp.zeros(2, jnp.int32)),
        (5, jnp.zeros((1, 1), jnp.int32)),
        (6, jnp.ones((), jnp.uint32)),
        (6, jnp.zeros((), jnp.int32)),
    ],
)
def test_calls_with_unexpected_operands(position, operand):
    operands = [jnp.zeros((1, 1)), jnp.zeros((1, 1)), *[jnp.zeros(1, jnp.int32)] * 4]
    operands.append(jnp.zeros((), jnp.uint32))
    operands[position] = operand
    result = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT: an_operation over axis"
    ):
        jax.block_until_ready(raw_call("fastjax_plan_exchange_v1", result, *operands))
    sizes, partition = jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.uint32)
    short = jax.ShapeDtypeStruct((3,), jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="unexpected operands"):
        jax.block_until_ready(raw_call("fastjax_plan_v1", short, sizes, partition))
