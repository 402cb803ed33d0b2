"""The declarations of custom calls, against what programs have and what handlers read."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exchanges import exchange, planned
from jax.sharding import PartitionSpec as P
from pythons import printed
from refusals import refused
from spmd import mesh_of

import fastjax
from fastjax import _core, handlers, loopback
from fastjax.traced import contract
from fastjax.traced.after import after
from fastjax.traced.contract import CALLS, Attribute, CustomCall
from fastjax.traced.levelling import deal, level
from fastjax.traced.plan import ExchangeGroup
from fastjax.traced.plan_spec import make_spec
from fastjax.traced.planned_exchange import exchange_planned
from fastjax.traced.start_done import done, start

ROWS = jax.ShapeDtypeStruct((32, 4), jnp.float32)
SIZES = jax.ShapeDtypeStruct((64,), jnp.int32)
TOPOLOGY = fastjax.Topology(2, 4, nic_bandwidths=[1e9] * 7 + [2e9])


def indexed(operand, output, *arrays):
    way = contract.Metadata(*arrays)
    plan = fastjax.plan_ragged_all_to_all(way.send_sizes, axis_name="x")
    return exchange_planned(operand, output, way, plan, indices=jnp.zeros(32, jnp.int32))


def in_two(operand, output, *arrays):
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
    rows = done(start(operand, output, contract.Metadata(*arrays), plan))
    return after(after(rows, operand), operand, detached=True)


def gathered(operand, *_):
    spec = make_spec(("x",), None, None, None, 1)
    (counts,) = ExchangeGroup(("x",), None, spec).gather([jnp.arange(2)])
    return operand + counts.sum()


def dealt(operand, *_):
    counts = jnp.ones((8, 16), jnp.int32)
    levelled = level(counts.sum(0), servers=2, devices=4, copies=1)
    return operand + deal(counts, levelled, servers=2, devices=4).sizes[0, 0, 0]


LEVELLING = {contract.LEVEL.target, contract.DEAL.target}
ONLY_CPU = {contract.START.target, *LEVELLING}


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
    for f in (exchange, planned, indexed, in_two, gathered, dealt):
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
            kinds = {a.name: a.kind for a in call.attributes}
            assert found.items() <= kinds.items()
            assert {*found} >= {a.name for a in call.attributes if not a.optional}
            if "operands" in found:
                (names,) = (item.attr.value for item in attributes if item.name == "operands")
                assert call.named(names.split(",")) == names
                assert len(operation.operands) == len(names.split(","))
            aliases = str(operation.attributes["output_operand_aliases"])
            assert all(f"operand_index = {place}" in aliases for place in call.aliases)
            assert aliases.count("operand_index") == len(call.aliases)
            seen.add(call.target)
    gpus = platform != "cpu" or handlers.emulates_gpus()
    unused = {contract.EMPTY.target} | ({contract.START.target} if gpus else set())
    unused |= LEVELLING if platform != "cpu" else set()
    assert seen == {*CALLS} - unused


def test_every_target_has_a_handler_and_is_declared():
    for emulates in (False, True):
        assert {*_core.registrations(emulates)} == {*CALLS}
    for platform in ("cuda", "rocm"):
        assert {*_core.gpu_registrations(platform)} == {*CALLS} - ONLY_CPU


def test_attributes_have_their_types():
    call = CustomCall(
        "a_target",
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
    call = CustomCall("a_target", (Attribute("number", "int64"),))
    refused(TypeError, lambda: call.encoded({"letter": "a"}), "a_target lacks", "['letter']")
    refused(TypeError, lambda: call.encoded({"number": None}), "lacks attributes ['number']")


@pytest.mark.parametrize("names", [[], ["rows", "rows"], ["rows", "letters"]])
def test_calls_of_other_operands_are_refused(names):
    call = CustomCall("a_target", operands=("rows",), optional=("table",))
    told = "a_target takes ('rows',) and may take ('table',)"
    refused(TypeError, lambda: call.named(names), told, str(tuple(names)))
    assert call.named(["table", "rows"]) == "table,rows"


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
print(json.dumps([report["processes"], report["rails"]]))
_core.network_close(1.0)
"""


def test_processes_and_rails_are_told():
    told = dict.fromkeys(("operation", "name", "axis", "program", "shapes"), "said")
    told |= {"channel": 7, "timeout_ms": 4321, "group_size": 1, "replica_groups": [2, 0, 3, 1]}
    told |= {"rank_of": [0], "platform": "cpu", "topology": [1] * 8, "scheduler": 2, "row_bytes": 9}
    told |= {"processes": [0, 1, 1, 0], "rails": [3, 1, 0, 2], "operands": "send_sizes,partition"}
    out = printed("-c", _PROCESSES_TOLD, json.dumps(told))
    assert json.loads(out) == [told["processes"], told["rails"]]


@pytest.mark.every_jax
def test_an_error_of_xla_itself_is_read():
    """XLA's struct for the text of an error is longer in later jaxlibs than in our headers."""
    name = "test_without_state"
    execute = _core.registrations(False)[contract.PLAN.target]["execute"]
    jax.ffi.register_ffi_target(name, {"execute": execute}, platform="cpu")
    result = jax.ShapeDtypeStruct((8,), np.int32)
    call = jax.jit(jax.ffi.ffi_call(name, result))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)state"):
        jax.block_until_ready(call(np.zeros(1, np.int32), np.zeros(1, np.uint32)))
