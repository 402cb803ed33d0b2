"""Custom calls that fastjax never makes itself: the handlers refuse them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusals, refused

import fastjax  # registers the handlers
from fastjax.traced.contract import EXCHANGE, START, Metadata
from fastjax.traced.contract import PLAN as PLAN_CALL

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
    "detached": False,
}
INTEGERS = jnp.zeros(1, jnp.int32)
OPERANDS = {
    "source": jnp.zeros((1, 1)),
    "base": jnp.zeros((1, 1)),
    **dict.fromkeys(Metadata._fields, INTEGERS),
    "partition": jnp.zeros((), jnp.uint32),
    "indices": INTEGERS,
    "factors": jnp.zeros(0),
    "starts": jnp.zeros(0, jnp.int32),
    "token": jnp.zeros(2, jnp.uint32),
}


def operands_of(call, *optional, **others):
    """Good operands of a call by name, but for these others."""
    names = [*call.operands, *optional, *(n for n in others if n in call.optional)]
    return {name: (OPERANDS | others)[name] for name in dict.fromkeys(names)}


def raw_call(call, result, operands, names=None, **attributes):
    """Calls a handler with what is declared for it, but for these attributes; None: without it.

    The names of operands are theirs, unless others are given.
    """
    declared = [a.name for a in call.attributes if a.name in ATTRIBUTES]
    good = {name: ATTRIBUTES[name] for name in declared}
    good = call.encoded(good | {"operands": ",".join(names or operands)}) | attributes
    good = {name: value for name, value in good.items() if value is not None}
    given = operands.values()
    return jax.jit(lambda *a: jax.ffi.ffi_call(call.target, result)(*a, **good))(*given)


WORDS = fastjax._core.table_words(TOPOLOGY, 0)
OPERANDS["table"] = jnp.zeros(WORDS, jnp.int32)
ROWS = jax.ShapeDtypeStruct((1, 1), jnp.float32)


def table(words=WORDS):
    return jax.ShapeDtypeStruct((words,), jnp.int32)


TABLE = table()


def plan(result=TABLE, **attributes):
    return lambda: raw_call(PLAN_CALL, result, operands_of(PLAN_CALL, "partition"), **attributes)


def exchange(attributes=None, **operands):
    given = operands_of(EXCHANGE, "partition", **operands)
    return lambda: raw_call(EXCHANGE, ROWS, given, **(attributes or {}))


def indexed(**operands):
    return exchange(**{name: OPERANDS[name] for name in ("indices", "factors")} | operands)


def named(*names, given=None, **attributes):
    """An exchange that says it has these operands, and gets them, or those that are given."""
    arrays = (OPERANDS.get(name, INTEGERS) for name in (names if given is None else given))
    return lambda: raw_call(EXCHANGE, ROWS, dict(enumerate(arrays)), names, **attributes)


def loopback(attributes=None, **operands):
    """Of one rank. The platform "none" is as where fastjax was built without its library."""
    result = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)
    ranks = {name: operands.get(name, OPERANDS[name][None]) for name in EXCHANGE.operands}

    def call():
        fastjax._core.set_gpu_options("none", "/no/libfastjax_none.so", 0, [])
        return raw_call(EXCHANGE, result, ranks, **(attributes or {}))

    return call


def loopback_plan(sizes=INTEGERS[None], result=TABLE, **attributes):
    return lambda: raw_call(PLAN_CALL, result, {"send_sizes": sizes}, **attributes)


def integers(*numbers):
    return np.array(numbers, np.int64)


def topology(*words):
    return plan(topology=integers(*words))


PLAN = "a plan's attributes are incomplete"
GROUPS = "replica_groups and group_size disagree"
NETWORK = "processes and rails must be given for every device"
DEVICES = "a topology has an impossible number of devices"
ANY = "unexpected operands"

test_impossible_attributes = refusals(
    jax.errors.JaxRuntimeError,
    *((plan(**{name: None}), f'lacks "{name}"') for name in ("channel", "program", "shapes")),
    (loopback({"platform": None}), 'fastjax_exchange_v2 lacks "platform"'),
    *((plan(**{name: None}), PLAN) for name in ("scheduler", "topology", "row_bytes")),
    (loopback({"topology": None}), PLAN),
    (loopback_plan(scheduler=None), PLAN),
    (exchange({"reverse": None}), 'lacks "reverse"'),
    (loopback({"reverse": None}), 'lacks "reverse"'),
    (loopback({"platform": "none"}), "cannot load fastjax's GPU library"),
    (plan(processes=integers(0)), NETWORK),
    (plan(processes=integers(0), rails=integers(-1)), NETWORK),
    (plan(processes=integers(0), rails=integers(0)), "this process has opened no network"),
    (plan(group_size=np.int64(0)), GROUPS),
    (plan(group_size=np.int64(2)), GROUPS),
    (plan(replica_groups=integers(1)), "must name every partition once"),
    (plan(rank_of=integers(1)), "rank_of must be a permutation"),
    (topology(*WITH_NICS), "topology does not fit the group"),
    (plan(scheduler=np.int64(99)), "topology does not fit the group"),
    (topology(*TOPOLOGY[:7]), "a topology has too few words"),
    (topology(0, *TOPOLOGY[1:]), DEVICES),
    (topology(1, 2**21, *TOPOLOGY[2:]), DEVICES),
    (topology(2**12, 2**12, *TOPOLOGY[2:]), DEVICES),
    (topology(1, 1, 0, *TOPOLOGY[3:]), "a bandwidth is not positive"),
    (topology(1, 1, 1, 0, *TOPOLOGY[4:]), "a bandwidth is not positive"),
    (topology(1, 1, 1, 1, -1, 1, 1, 1), "a latency is out of range"),
    (topology(1, 1, 1, 1, 1, 1, 2**62, 1), "a latency is out of range"),
    (topology(1, 1, 1, 1, 1, 1, 1, 10**6 + 1), "incast_loss is out of range"),
    (topology(*TOPOLOGY, 1, 1), "nic_bandwidths does not have an entry for each device"),
    (topology(*TOPOLOGY, -1), "a NIC's bandwidth is negative"),
    (topology(*WITH_NICS, 1, 0), "a server has no working NIC"),
    *((loopback_plan(rank=np.int64(rank)), "there is no such rank") for rank in (-1, 1)),
)


def test_attributes_at_their_bounds():
    assert exchange()().shape == (1, 1)
    assert loopback_plan()().shape == (WORDS,)
    for words in ((1, 1, 1, 1, 0, 0, 0, 0), (1, 1, 1, 1, 1, 1, 1, 10**6), (*TOPOLOGY, 0)):
        assert topology(*words)().shape == (WORDS,)


ALL = (*EXCHANGE.operands, "partition")
INDICES = ("indices", "factors")

test_operands_that_do_not_go_together = refusals(
    jax.errors.JaxRuntimeError,
    (named(*ALL[1:]), 'of fastjax_exchange_v2 lack "source"'),
    (named(*ALL, "letters"), 'cannot be "letters"'),
    (named(*ALL, "table", "table"), 'name twice "table"'),
    (named(*ALL, "indices"), "indices and factors come together"),
    (named(*ALL, "starts"), "starts are of indices"),
    (named(*ALL, *INDICES, "starts", "token"), "takes no starts of rows"),
    (named(*ALL, scheduler=None, row_bytes=None), "neither a table nor a scheduler"),
    (named(*ALL[:-1], "table"), "take no table"),
    (named(*ALL[:-1], *INDICES), "neither indices nor a token"),
    (named(*ALL[:-1], "token"), "neither indices nor a token"),
    *((named(*ALL, given=names), ANY) for names in (ALL[:-1], (), (*ALL, "indices"))),
)

WRONG = "an_operation over axis 'x' (channel 1): unexpected operands"
DEVICE = "device 0 cannot take part: unexpected operands"
UNKNOWN = "a device that does not know its number cannot take part: unexpected operands"

test_unexpected_operands = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        (exchange(source=jnp.zeros((1, 2))), DEVICE),
        (exchange(base=jnp.zeros((2, 1))), DEVICE),
        (exchange(base=jnp.zeros((0, 1))), DEVICE),
        (exchange(input_offsets=jnp.zeros(1)), DEVICE),
        (exchange(send_sizes=jnp.zeros(2, jnp.int32)), DEVICE),
        (exchange(recv_sizes=jnp.zeros((1, 1), jnp.int32)), DEVICE),
        (exchange(table=jnp.zeros(WORDS)), DEVICE),
        (exchange(table=jnp.zeros((WORDS, 1), jnp.int32)), DEVICE),
        (indexed(indices=jnp.zeros(1)), DEVICE),
        (indexed(indices=jnp.zeros((1, 1), jnp.int32)), DEVICE),
        (indexed(factors=jnp.ones(3)), DEVICE),
        *((indexed(starts=jnp.zeros(1, dtype)), ANY) for dtype in ("float32", "int32")),
        (exchange(partition=jnp.ones((), jnp.uint32)), UNKNOWN),
        (exchange(partition=jnp.zeros((), jnp.int32)), UNKNOWN),
        *((plan(table(words)), DEVICE) for words in (WORDS - 1, WORDS + 2)),
    )
)

test_unexpected_operands_of_loopback = refusals(
    jax.errors.JaxRuntimeError,
    (loopback(source=jnp.zeros((2, 1, 1))), WRONG),
    (loopback(source=jnp.zeros(1)), WRONG),
    (loopback(source=jnp.zeros((1, 1, 2))), WRONG),
    (loopback(base=jnp.zeros((1, 2, 1))), WRONG),
    (loopback(base=jnp.zeros((0, 1, 1))), WRONG),
    (loopback(input_offsets=jnp.zeros((1, 1))), WRONG),
    (loopback(send_sizes=jnp.zeros((2, 1), jnp.int32)), WRONG),
    (loopback(output_offsets=jnp.zeros((1, 2), jnp.int32)), WRONG),
    (loopback(recv_sizes=jnp.zeros(1, jnp.int32)), WRONG),
    (loopback_plan(jnp.zeros((1, 1))), WRONG),
    (loopback_plan(jnp.zeros((2, 1), jnp.int32)), WRONG),
    (loopback_plan(jnp.int32(1)), WRONG),
    (loopback_plan(result=table(WORDS + 1)), WRONG),
)


test_tokens_of_no_start = refusals(
    jax.errors.JaxRuntimeError,
    *(
        (exchange(token=token), "its token is of no start")
        for token in (OPERANDS["token"], jnp.ones(2, jnp.uint32), jnp.ones(3))
    ),
)


def test_operands_are_found_by_their_names():
    """In each form of an exchange, in whatever order they come; with a token: `started`, below."""
    one, row = jnp.ones(1, jnp.int32), jnp.full((1, 1), 2.0)
    table = raw_call(PLAN_CALL, TABLE, operands_of(PLAN_CALL, "partition", send_sizes=one))
    given = OPERANDS | {"source": row, "send_sizes": one, "recv_sizes": one, "table": table}
    for more in ((), ("table",), INDICES, ("table", *INDICES)):
        for names in ((*ALL, *more), (*more, *ALL)[::-1], (*more[::-1], *ALL[2:], *ALL[:2])):
            got = raw_call(EXCHANGE, ROWS, {name: given[name] for name in names})
            np.testing.assert_array_equal(got, row)


def emitted(call, result, given, **others):
    """A call in a traced program, which XLA must not remove."""
    told = {a.name: ATTRIBUTES[a.name] for a in call.attributes if a.name in ATTRIBUTES}
    told = call.encoded(told | others)
    return jax.ffi.ffi_call(call.target, result, has_side_effect=True)(*given, **told)


TOKEN = jax.ShapeDtypeStruct((2,), jnp.uint32)
ROW = jnp.full((1, 1), 5.0)


def started(token, **attributes):
    """An exchange of one row whose turn is after that of a token."""
    made = emitted(START, TOKEN, [token], channel=2)
    names = (*ALL, "token")
    one = INTEGERS + 1
    arrays = OPERANDS | {"token": made, "source": ROW, "send_sizes": one, "recv_sizes": one}
    given = [arrays[name] for name in names]
    return emitted(EXCHANGE, ROWS, given, operands=",".join(names), **attributes)


def test_an_exchange_begins_though_an_earlier_one_is_not_called():
    """As where XLA calls that only later, or has skipped it."""
    never_called = partial(emitted, START, TOKEN, [], channel=1)
    assert jax.jit(lambda: started(never_called(), program="jit_held"))() == ROW
    assert jax.jit(lambda: started(jnp.zeros(2, jnp.uint32), program="jit_not_held"))() == ROW


def test_a_tally_of_gpus_that_there_are_none_of():
    fastjax._core.set_gpu_options("none", "/no/libfastjax_none.so", 0, [])
    tally = partial(fastjax._core.gpu_tally, "none")
    refused(RuntimeError, tally, "cannot load fastjax's GPU library")


def test_a_library_that_is_another():
    library = np._core._multiarray_umath.__file__
    fastjax._core.set_gpu_options("another", library, 0, [])
    tally = partial(fastjax._core.gpu_tally, "another")
    refused(RuntimeError, tally, f"{library} is not a GPU library of fastjax's")
