"""The declarations of custom calls, against what programs have and what handlers read."""

import itertools
import json
import subprocess
import sys
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from refusals import refused
from spmd import mesh_of

import fastjax
from fastjax import _core, handlers, loopback
from fastjax.traced import contract, custom_calls
from fastjax.traced.after import after
from fastjax.traced.contract import CALLS, PLAN_EXCHANGE, Attribute, CustomCall
from fastjax.traced.exchange import exchange_planned
from fastjax.traced.gathering import gather_counts
from fastjax.traced.indexed_exchange import indexed_exchange
from fastjax.traced.plan_spec import make_spec

ROWS = jax.ShapeDtypeStruct((32, 4), jnp.float32)
ROWS_OF_ONE = jnp.ones((2, 1))
SIZES = jax.ShapeDtypeStruct((64,), jnp.int32)
TOPOLOGY = fastjax.Topology(2, 4, nic_bandwidths=[1e9] * 7 + [2e9])


def exchanged(*operands, **options):
    return fastjax.fast_ragged_all_to_all(*operands, axis_name="x", **options)


def planned(operand, output, *arrays):
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
    return exchanged(operand, output, *arrays, plan=plan)


def indexed(operand, output, *arrays, staged=False):
    way = contract.Metadata(*arrays)
    plan = fastjax.plan_ragged_all_to_all(way.send_sizes, axis_name="x")
    indices = jnp.zeros(32, jnp.int32)
    return indexed_exchange(operand, output, way, indices, plan, staged=staged)


def staged(operand, output, *arrays):
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
    result = exchange_planned(operand, output, contract.Metadata(*arrays), plan, staged=True)
    return after(after(result, operand), operand, detached=True)


def gathered(operand, *_):
    spec = make_spec(("x",), None, None, None, 1)
    return operand + gather_counts(jnp.arange(2), ("x",), None, spec).sum()


ONLY_CPU = {
    contract.GATHER.target,
    contract.DETACHED_AFTER.target,
    contract.INDEXED_EXCHANGE.target,
    contract.INDEXED_STAGE.target,
    contract.INDEXED_STAGED_EXCHANGE.target,
    contract.STAGE.target,
    contract.STAGED_EXCHANGE.target,
}


def played(*operands):
    return loopback.loopback_ragged_all_to_all(*operands, topology=TOPOLOGY)


def played_plan(sizes):
    return loopback.loopback_plan(sizes, topology=TOPOLOGY, rank=3)


def program(f, arguments, platform="cpu"):
    with fastjax.options(fallback="never"):  # whatever this installation was built for
        return jax.jit(f).trace(*arguments).lower(lowering_platforms=(platform,)).compiler_ir()


def all_programs(platform):
    data = jax.ShapeDtypeStruct((8, 4, 2), jnp.float32)
    integers = jax.ShapeDtypeStruct((8, 8), jnp.int32)
    for f in (exchanged, planned, staged, indexed, partial(indexed, staged=True), gathered):
        mapped = jax.shard_map(f, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
        yield program(mapped, (ROWS, ROWS, *[SIZES] * 4), platform)
    yield program(played, (data, data, *[integers] * 4), platform)
    yield program(played_plan, (integers,), platform)


def calls_in(operation):
    """The custom calls of fastjax inside an operation, of all regions."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                name = inner.operation.name
                if name == "stablehlo.custom_call" and "fastjax" in str(inner.call_target_name):
                    yield inner.operation
                yield from calls_in(inner.operation)


def kind_of(attribute):
    text = str(attribute)
    if text.startswith('"'):
        return "string"
    if text in ("true", "false"):
        return "bool"
    if text.endswith(" : i64"):
        return "int64"
    return "int64[]" if text.endswith("xi64>") else text


@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm"])
@pytest.mark.usefixtures("indexed_as")
def test_programs_have_what_is_declared(platform):
    seen = set()
    for module in all_programs(platform):
        for operation in calls_in(module.operation):
            call = CALLS[operation.attributes["call_target_name"].value]
            attributes = operation.attributes["mhlo.backend_config"]
            found = {item.name: kind_of(item.attr) for item in attributes}
            assert found == {a.name: a.kind for a in call.attributes if not a.optional}
            assert len(operation.operands) == len(call.operands)
            aliases = str(operation.attributes["output_operand_aliases"])
            assert all(f"operand_index = {place}" in aliases for place in call.aliases)
            assert aliases.count("operand_index") == len(call.aliases)
            seen.add(call.target)
    unused = {contract.EMPTY.target}
    as_gpu = platform != "cpu" or handlers.emulates_gpus()
    unused.add((contract.INDEXED_EXCHANGE if as_gpu else contract.GPU_INDEXED_EXCHANGE).target)
    if platform != "cpu":
        unused |= ONLY_CPU
    elif handlers.emulates_gpus():
        unused.add(contract.GATHER.target)
    assert seen == {*CALLS} - unused


def test_every_target_has_a_handler_and_is_declared():
    assert {*_core.registrations()} == {*CALLS}
    for platform in ("cuda", "rocm"):
        assert {*_core.gpu_registrations(platform)} == {*CALLS} - ONLY_CPU
    assert {*_core.emulated_registrations()} == {*CALLS}


def test_attributes_have_their_types():
    call = CustomCall(
        "a_target",
        ("rows",),
        (
            Attribute("text", "string"),
            Attribute("flag", "bool"),
            Attribute("number", "int64"),
            Attribute("numbers", "int64[]"),
            Attribute("more", "int64", optional=True),
        ),
    )
    encoded = call.encoded(
        {"text": "a", "flag": True, "number": 3, "numbers": [[1, 2], [3, 4]], "more": None}
    )
    assert {name: type(value) for name, value in encoded.items()} == {
        "text": str,
        "flag": np.bool_,
        "number": np.int64,
        "numbers": np.ndarray,
    }
    assert encoded["numbers"].tolist() == [1, 2, 3, 4]
    assert encoded["numbers"].dtype == np.int64
    assert call.aliases == {}


def test_calls_that_lack_attributes_or_have_others_are_refused():
    call = CustomCall("a_target", (), (Attribute("number", "int64"),))
    refused(TypeError, lambda: call.encoded({"letter": "a"}), "a_target lacks", "['letter']")
    refused(TypeError, lambda: call.encoded({"number": None}), "lacks attributes ['number']")


def test_calls_of_other_operands_are_refused():
    emit = partial(custom_calls.emit, types.SimpleNamespace(avals_in=[]), contract.LOOPBACK_PLAN)
    told = "fastjax_loopback_plan_v1 takes ('send_sizes',), got 2 operands"
    refused(TypeError, lambda: emit([None, None], {}), told)


def test_both_sides_declare_the_same():
    """Field by field: Python emits what handlers bind and decode."""

    def presence(attribute):
        return "optional" if attribute.optional else "added" if attribute.added else "always"

    declared = {
        target: (list(call.operands), [(a.name, a.kind, presence(a)) for a in call.attributes])
        for target, call in CALLS.items()
    }
    assert _core.declared_calls() == declared


# Each attribute with a value that no other has, but of a device's own group.
TOLD = {
    "operation": "an_operation",
    "name": "a_scope/an_operation",
    "axis": "('y', 'z')",
    "program": "jit_a_told_program",
    "shapes": "float32[1, 1]",
    "channel": 7,
    "timeout_ms": 4321,
    "group_size": 2,
    "replica_groups": [2, 0, 3, 1],
    "rank_of": [1, 0],
    "platform": "cpu",
    "topology": (1, 2, 3, 4, 5, 6, 7, 8),
    "scheduler": 2,
    "row_bytes": 9,
    "experts": 10,
    "reverse": True,
    "transposed_table": True,
    "check_overlaps": True,
    "rank": 1,
}
# By attribute: where a report has it. Of the others, what is executed has to show them.
REPORTED = {
    **{name: name for name in ("operation", "name", "axis", "program", "shapes", "channel")},
    **{name: name for name in ("timeout_ms", "group_size", "rank_of", "platform", "topology")},
    **{name: name for name in ("experts", "processes", "rails", "reverse")},
    "replica_groups": "partition_at",
    "scheduler": "asked_scheduler",
    "row_bytes": "asked_row_bytes",
}


def told_of(target, **others):
    declared = {a.name for a in CALLS[target].attributes}
    return {name: value for name, value in (TOLD | others).items() if name in declared}


def executed(target, told, operands, result):
    """The result of a call that was told this, and the report of its call site."""
    attributes = CALLS[target].encoded(told)
    call = jax.jit(lambda *a: jax.ffi.ffi_call(target, result)(*a, **attributes))
    with fastjax.collect_stats():
        made = np.asarray(call(*operands))
    (report,) = [r for r in _core.site_reports() if r.program == told["program"]]
    return made, report


def assert_told(report, told):
    """What was told is what was decoded."""
    for name, value in told.items():
        if name in REPORTED:
            got = getattr(report, REPORTED[name])
            assert (list(got) if isinstance(got, list) else got) == (
                list(value) if isinstance(value, list | tuple) else value
            ), name


def test_attributes_go_through_a_call():
    """Sent with values of their own to calls that are executed, and read back."""
    alone = {"group_size": 1, "replica_groups": [2, 0, 3, 1], "rank_of": [0]}
    alone["topology"] = (1, 1, *TOLD["topology"][2:])
    rows, integers = jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32)
    arrays = {"source": rows, "base": rows, "partition": jnp.zeros((), jnp.uint32)}
    operands = [arrays.get(name, integers) for name in PLAN_EXCHANGE.operands]
    told = told_of(PLAN_EXCHANGE.target, **alone, program="jit_exchange_told")
    result = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    _, report = executed(PLAN_EXCHANGE.target, told, operands, result)
    assert_told(report, told)
    assert report.plan == "own"
    told = told_of(contract.PLAN.target, **alone, program="jit_plan_told")
    words = _core.table_words(alone["topology"], TOLD["scheduler"])
    result = jax.ShapeDtypeStruct((words,), jnp.int32)
    _, report = executed(contract.PLAN.target, told, [integers, arrays["partition"]], result)
    assert_told(report, told)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_given_table_and_checks_are_told(backwards):
    """`transposed_table`, `reverse` and `check_overlaps`, by what they make of a call."""
    topology = (1, 1, *TOLD["topology"][2:])
    alone = {"group_size": 1, "replica_groups": [0], "rank_of": [0], "topology": topology}
    words = jax.ShapeDtypeStruct((_core.table_words(topology, TOLD["scheduler"]),), jnp.int32)
    arrays = {"partition": jnp.zeros((), jnp.uint32), "source": ROWS_OF_ONE, "base": ROWS_OF_ONE}
    arrays["send_sizes"] = arrays["recv_sizes"] = jnp.ones(2, jnp.int32)
    # Both updates write to the same row.
    arrays["input_offsets"] = arrays["output_offsets"] = jnp.zeros(2, jnp.int32)
    planned = told_of(contract.PLAN.target, **alone, program=f"jit_table_told_{backwards}")
    operands = [arrays[name] for name in contract.PLAN.operands]
    arrays["table"], _ = executed(contract.PLAN.target, planned, operands, words)
    target = contract.EXCHANGE.target
    operands = [arrays[name] for name in contract.EXCHANGE.operands]
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, ROWS_OF_ONE.dtype)
    told = told_of(
        target,
        **alone,
        program=f"jit_given_told_{backwards}",
        reverse=backwards,
        transposed_table=backwards,
        check_overlaps=False,
    )
    _, report = executed(target, told, operands, result)
    assert_told(report, told)
    assert report.plan == ("transposed" if backwards else "given")
    if not backwards:  # where rows that land on each other are summed, they may
        checked = partial(executed, target, told | {"check_overlaps": True}, operands, result)
        refused(jax.errors.JaxRuntimeError, checked, "overlap")


_numbers = itertools.count()  # of programs, whose names tell reports apart


def one_row_by_index(reverse, **others):
    """A row of one device that is sent to itself, by the call of GPUs."""
    topology = (1, 1, *TOLD["topology"][2:])
    alone = {"group_size": 1, "replica_groups": [0], "rank_of": [0], "topology": topology}
    table = jax.ShapeDtypeStruct((_core.table_words(topology, TOLD["scheduler"]),), jnp.int32)
    one, zero = jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32)
    arrays = {
        "source": 2 * ROWS_OF_ONE,
        "base": ROWS_OF_ONE,
        "partition": jnp.zeros((), jnp.uint32),
    }
    arrays |= {"send_sizes": one, "recv_sizes": one, "input_offsets": zero, "output_offsets": zero}
    arrays |= {"indices": zero, "factors": jnp.zeros(0)}
    arrays["starts"] = jnp.array([0, 1, 1] if reverse else [], jnp.int32)
    told = told_of(contract.PLAN.target, **alone, program=f"jit_plan_{next(_numbers)}")
    operands = [arrays[name] for name in contract.PLAN.operands]
    arrays["table"], _ = executed(contract.PLAN.target, told, operands, table)
    target = contract.GPU_INDEXED_EXCHANGE.target
    options = {"reverse": reverse, "transposed_table": reverse, "check_overlaps": False}
    told = told_of(target, **alone, **options, program=f"jit_by_index_{next(_numbers)}")
    operands = [(arrays | others)[name] for name in contract.GPU_INDEXED_EXCHANGE.operands]
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, ROWS_OF_ONE.dtype)
    return executed(target, told, operands, result)[0]


@pytest.mark.parametrize("reverse", [False, True])
def test_lists_that_do_not_fit_are_refused(reverse):
    """By the call of GPUs, which the emulated one takes as well."""
    np.testing.assert_array_equal(one_row_by_index(reverse), [[2], [1]])
    refuse = partial(refused, jax.errors.JaxRuntimeError)
    for starts in ([0, 1], [0]):
        run = partial(one_row_by_index, reverse, starts=jnp.array(starts, jnp.int32))
        refuse(run, "unexpected operands")
    refuse(partial(one_row_by_index, reverse, factors=jnp.ones(3)), "unexpected operands")


def test_an_exchange_of_what_nobody_staged():
    """Whatever is in the memory where an id should be is looked up first."""
    topology = (1, 1, *TOLD["topology"][2:])
    alone = {"group_size": 1, "replica_groups": [0], "rank_of": [0], "topology": topology}
    target = contract.STAGED_EXCHANGE.target
    told = told_of(target, **alone, program="jit_nobody", reverse=False, transposed_table=False)
    for base in (jnp.ones((2, 1)), jnp.zeros((2, 1)), jnp.ones((1, 1))):
        result = jax.ShapeDtypeStruct(base.shape, base.dtype)
        run = partial(executed, target, told, [base, jnp.zeros((), jnp.uint32)], result)
        refused(jax.errors.JaxRuntimeError, run, "device 0 has no memory for copies")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_told(rank):
    """The table of a rank is its own."""
    target, topology = contract.LOOPBACK_PLAN.target, (1, 2, *TOLD["topology"][2:])
    told = told_of(target, rank=rank, replica_groups=[0, 1], topology=topology, program="jit_rank")
    result = jax.ShapeDtypeStruct((_core.table_words(topology, TOLD["scheduler"]),), jnp.int32)
    sizes = np.array([[1, 2], [3, 4]], np.int32)
    call = jax.jit(lambda s: jax.ffi.ffi_call(target, result)(s, **CALLS[target].encoded(told)))
    table = np.asarray(call(sizes))
    wrong = [_core.check_table(table, 2, device) for device in range(2)]
    assert wrong[rank] == ""
    assert wrong[1 - rank] != ""


# A call of devices of two processes, whose own group is of this one alone: the other need not be.
_PROCESSES_TOLD = """
import json, sys
import jax, jax.numpy as jnp
import fastjax
from fastjax import _core
from fastjax.network import library
from fastjax.traced.contract import PLAN

told = json.loads(sys.argv[1])
_core.network_open(0, 2, bytes(16), library.find("")[0], ["lo"], "tcp")
words = jax.ShapeDtypeStruct((_core.table_words(told["topology"], told["scheduler"]),), jnp.int32)
call = jax.jit(lambda *a: jax.ffi.ffi_call(PLAN.target, words)(*a, **PLAN.encoded(told)))
with fastjax.collect_stats():
    jax.block_until_ready(call(jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.uint32)))
(report,) = _core.site_reports()
print(json.dumps([list(report.processes), list(report.rails)]))
_core.network_close(1.0)
"""


def test_processes_and_rails_are_told():
    told = told_of(
        contract.PLAN.target,
        group_size=1,
        rank_of=[0],
        topology=(1, 1, *TOLD["topology"][2:]),
        processes=[0, 1, 1, 0],
        rails=[3, 1, 0, 2],
    )
    program = [sys.executable, "-c", _PROCESSES_TOLD, json.dumps(told)]
    out = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert json.loads(out) == [told["processes"], told["rails"]]


@pytest.mark.every_jax
def test_an_error_of_xla_itself_is_read():
    """XLA's struct for the text of an error is longer in later jaxlibs than in our headers."""
    name = "test_without_state"
    execute = _core.registrations()[contract.PLAN.target]["execute"]
    jax.ffi.register_ffi_target(name, {"execute": execute}, platform="cpu")
    result = jax.ShapeDtypeStruct((8,), np.int32)
    call = jax.jit(jax.ffi.ffi_call(name, result))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)state"):
        jax.block_until_ready(call(np.zeros(1, np.int32), np.zeros(1, np.uint32)))
