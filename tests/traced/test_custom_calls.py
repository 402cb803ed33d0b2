"""The declarations of custom calls, against what programs have and what handlers read."""

import itertools
import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exchanges import exchange, planned
from jax.sharding import PartitionSpec as P
from refusals import refused
from spmd import mesh_of

import fastjax
from fastjax import _core, handlers, loopback
from fastjax.traced import contract
from fastjax.traced.after import after
from fastjax.traced.contract import CALLS, Attribute, CustomCall
from fastjax.traced.indexed_exchange import indexed_exchange
from fastjax.traced.levelling import deal, level
from fastjax.traced.plan_primitive import gather_counts
from fastjax.traced.plan_spec import make_spec
from fastjax.traced.start_done import done, start

ROWS = jax.ShapeDtypeStruct((32, 4), jnp.float32)
ROWS_OF_ONE = jnp.ones((2, 1))
SIZES = jax.ShapeDtypeStruct((64,), jnp.int32)
TOPOLOGY = fastjax.Topology(2, 4, nic_bandwidths=[1e9] * 7 + [2e9])


def indexed(operand, output, *arrays):
    way = contract.Metadata(*arrays)
    plan = fastjax.plan_ragged_all_to_all(way.send_sizes, axis_name="x")
    return indexed_exchange(operand, output, way, jnp.zeros(32, jnp.int32), plan)


def in_two(operand, output, *arrays):
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
    rows = done(start(operand, output, contract.Metadata(*arrays), plan))
    return after(after(rows, operand), operand, detached=True)


def gathered(operand, *_):
    spec = make_spec(("x",), None, None, None, 1)
    return operand + gather_counts(jnp.arange(2), ("x",), None, spec).sum()


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
    "operands": "",
    "detached": False,
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


def executed(call, told, operands, result):
    """The result of a call that was told this, and the report of its call site.

    Its operands, by name, may have a token, which a start makes.
    """
    told = told | {"operands": ",".join(operands)}
    attributes = call.encoded(told)

    def run(given):
        if "token" in given:
            number = contract.START.encoded({"channel": 1})
            token = jax.ShapeDtypeStruct((2,), jnp.uint32)
            made = jax.ffi.ffi_call(contract.START.target, token, has_side_effect=True)(**number)
            given["token"] = made.astype(given["token"].dtype)
        return jax.ffi.ffi_call(call.target, result)(*given.values(), **attributes)

    program = jax.jit(lambda *given: run(dict(zip(operands, given, strict=True))))
    with fastjax.collect_stats():
        made = np.asarray(program(*operands.values()))
    return made, next(r for r in _core.site_reports() if r.program == told["program"])


def assert_told(report, told):
    """What was told is what was decoded."""
    for name, value in told.items():
        if name in REPORTED:
            got = getattr(report, REPORTED[name])
            assert (list(got) if isinstance(got, list) else got) == (
                list(value) if isinstance(value, list | tuple) else value
            ), name


ALONE = {
    "group_size": 1,
    "replica_groups": [0],
    "rank_of": [0],
    "topology": (1, 1, *TOLD["topology"][2:]),
}
WORDS = _core.table_words(ALONE["topology"], TOLD["scheduler"])
ONE, ZERO = jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32)
OPERANDS = {
    "source": 2 * ROWS_OF_ONE,
    "base": ROWS_OF_ONE,
    "input_offsets": ZERO,
    "send_sizes": ONE,
    "output_offsets": ZERO,
    "recv_sizes": ONE,
    "indices": ZERO,
    "factors": jnp.zeros(0),
    "starts": jnp.zeros(0, jnp.int32),
    "token": jnp.zeros(2, jnp.uint32),
    "partition": jnp.zeros((), jnp.uint32),
}
_numbers = itertools.count()  # of programs, whose names tell reports apart


def table_of(sizes, **told):
    told = told_of(contract.PLAN.target, **ALONE | told, program=f"jit_plan_{next(_numbers)}")
    operands = {"send_sizes": sizes, "partition": OPERANDS["partition"]}
    return executed(contract.PLAN, told, operands, jax.ShapeDtypeStruct((WORDS,), jnp.int32))


def one_row(names, *, reverse=False, attributes=(), **others):
    """A row of one device, which is sent to itself, in an exchange of these optional operands."""
    arrays = dict(OPERANDS)
    if reverse:
        arrays["starts"] = jnp.array([0, 1, 1], jnp.int32)
    if "table" in names:
        arrays["table"], _ = table_of(ONE)
    arrays |= others
    options = {"reverse": reverse, "transposed_table": reverse, "check_overlaps": False}
    told = told_of(contract.EXCHANGE.target, **ALONE | options | dict(attributes))
    told["program"] = f"jit_one_row_{next(_numbers)}"
    operands = {name: arrays[name] for name in (*contract.EXCHANGE.operands, *names)}
    if "partition" not in names:
        operands = {name: array[None] for name, array in operands.items()}
    result = jax.ShapeDtypeStruct(operands["base"].shape, jnp.float32)
    made, report = executed(contract.EXCHANGE, told, operands, result)
    return made.reshape(-1, 1), report


def test_attributes_go_through_a_call():
    """Sent with values of their own to calls that are executed, and read back."""
    alone = {"replica_groups": [2, 0, 3, 1]}
    told = told_of(contract.EXCHANGE.target, **ALONE | alone, reverse=False, transposed_table=False)
    told |= {"program": "jit_exchange_told", "check_overlaps": False}
    operands = {n: OPERANDS[n] for n in (*contract.EXCHANGE.operands, "partition")}
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, jnp.float32)
    _, report = executed(contract.EXCHANGE, told, operands, result)
    assert_told(report, told)
    assert report.plan == "own"
    _, report = table_of(ZERO, **alone)
    assert_told(report, told_of(contract.PLAN.target, **ALONE | alone, program=report.program))


INDICES = ("indices", "factors")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        (),
        *(
            (*made, "partition")
            for made in itertools.chain.from_iterable(
                ((*table, *more), (*more, *table))
                for table in ((), ("table",))
                for more in ((), INDICES, (*INDICES, "starts"), ("token",), (*INDICES, "token"))
            )
        ),
    ],
    ids=",".join,
)
def test_operands_go_through_a_call(names, reverse):
    """Each form of an exchange, whatever the order of its optional operands."""
    if reverse and not names:
        pytest.skip("one device that has all ranks plans forward")
    got, report = one_row(names, reverse=reverse)
    np.testing.assert_array_equal(got, [[2], [1]])
    planned = "transposed" if reverse else "given"
    assert report.plan == (planned if "table" in names else "own")


ALL = (*contract.EXCHANGE.operands, "partition")


@pytest.mark.parametrize(
    ("names", "attributes", "why"),
    [
        (ALL[1:], {}, 'of fastjax_exchange_v2 lack "source"'),
        ((*ALL, "letters"), {}, 'cannot be "letters"'),
        ((*ALL, "table", "table"), {}, 'name twice "table"'),
        ((*ALL, "indices"), {}, "indices and factors come together"),
        ((*ALL, "starts"), {}, "starts are of indices"),
        ((*ALL, *INDICES, "starts", "token"), {}, "takes no starts of rows"),
        (ALL, {"scheduler": None, "row_bytes": None}, "neither a table nor a scheduler"),
        ((*ALL[:-1], "table"), {}, "take no table"),
        ((*ALL[:-1], *INDICES), {}, "neither indices nor a token"),
        ((*ALL[:-1], "token"), {}, "neither indices nor a token"),
    ],
)
def test_operands_that_do_not_go_together_are_refused(names, attributes, why):
    told = told_of(contract.EXCHANGE.target, **ALONE | attributes, program="jit_refused")
    told = contract.EXCHANGE.encoded(told | {"operands": ",".join(names)})
    arrays = OPERANDS | {"table": jnp.zeros(WORDS, jnp.int32), "letters": ZERO}
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, jnp.float32)
    call = jax.jit(lambda *a: jax.ffi.ffi_call(contract.EXCHANGE.target, result)(*a, **told))
    refused(jax.errors.JaxRuntimeError, lambda: call(*(arrays[name] for name in names)), why)


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("table", "partition"), {"table": jnp.zeros(WORDS)}),
        (("table", "partition"), {"table": jnp.zeros((WORDS, 1), jnp.int32)}),
        ((*INDICES, "partition"), {"indices": jnp.zeros(1)}),
        ((*INDICES, "partition"), {"indices": jnp.zeros((1, 1), jnp.int32)}),
        ((*INDICES, "partition"), {"factors": jnp.ones(3)}),
        ((*INDICES, "starts", "partition"), {"starts": jnp.zeros(1)}),
        ((*INDICES, "starts", "partition"), {"starts": jnp.zeros(1, jnp.int32)}),
    ],
)
def test_operands_of_other_types_are_refused(names, others):
    refused(jax.errors.JaxRuntimeError, partial(one_row, names, **others), "unexpected operands")


def test_another_number_of_operands_is_refused():
    told = told_of(contract.EXCHANGE.target, **ALONE, program="jit_fewer")
    told = contract.EXCHANGE.encoded(told | {"operands": ",".join(ALL)})
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, jnp.float32)
    call = jax.jit(lambda *a: jax.ffi.ffi_call(contract.EXCHANGE.target, result)(*a, **told))
    for names in (ALL[:-1], (), (*ALL, "indices")):
        run = partial(call, *(OPERANDS[name] for name in names))
        refused(jax.errors.JaxRuntimeError, run, "unexpected operands")


def test_a_token_of_no_start_is_refused():
    told = told_of(contract.EXCHANGE.target, **ALONE, program="jit_no_start", channel=7)
    names = (*ALL, "token")
    told = contract.EXCHANGE.encoded(told | {"operands": ",".join(names)})
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, jnp.float32)
    call = jax.jit(lambda *a: jax.ffi.ffi_call(contract.EXCHANGE.target, result)(*a, **told))
    for token in (jnp.zeros(2, jnp.uint32), jnp.ones(2, jnp.uint32), jnp.ones(3)):
        arrays = OPERANDS | {"token": token}
        run = partial(call, *(arrays[name] for name in names))
        refused(jax.errors.JaxRuntimeError, run, "its token is of no start")


def started(names, told, token):
    """An exchange, emitted in a traced program, whose turn is after that of a token."""
    number = contract.START.encoded({"channel": 2})
    shape = jax.ShapeDtypeStruct((2,), jnp.uint32)
    made = jax.ffi.ffi_call(contract.START.target, shape, has_side_effect=True)(token, **number)
    told = contract.EXCHANGE.encoded(told | {"operands": ",".join((*names, "token"))})
    arrays = OPERANDS | {"token": made}
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, jnp.float32)
    exchange = jax.ffi.ffi_call(contract.EXCHANGE.target, result, has_side_effect=True)
    return exchange(*(arrays[name] for name in (*names, "token")), **told)


def never_taken():
    """A token whose exchange never comes, as where XLA has skipped that."""
    number = contract.START.encoded({"channel": 1})
    shape = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.ffi.ffi_call(contract.START.target, shape, has_side_effect=True)(**number)


def test_an_exchange_whose_turn_never_comes_fails():
    told = told_of(contract.EXCHANGE.target, **ALONE, program="jit_held", timeout_ms=1000)
    options = {"reverse": False, "transposed_table": False, "check_overlaps": False}
    run = jax.jit(lambda: started(ALL, told | options, never_taken()))
    for _ in range(2):
        words = "device 0 cannot take part: it has waited 1.0 s for its turn"
        refused(jax.errors.JaxRuntimeError, run, words)
    got, _ = one_row(("token", "partition"))
    np.testing.assert_array_equal(got, [[2], [1]])


def test_an_exchange_is_not_held_when_its_device_has_failed():
    """It hears of another exchange's failure long before its own time is up."""
    told = told_of(contract.EXCHANGE.target, **ALONE, program="jit_in_vain", timeout_ms=10**7)
    told |= {"reverse": False, "transposed_table": False, "check_overlaps": False}
    wrong = contract.EXCHANGE.encoded(told | {"operands": ",".join(ALL), "channel": 8})
    result = jax.ShapeDtypeStruct(ROWS_OF_ONE.shape, jnp.float32)

    def program(sizes):
        held = started(ALL, told, never_taken())
        arrays = OPERANDS | {"recv_sizes": sizes}
        failing = jax.ffi.ffi_call(contract.EXCHANGE.target, result)
        return held, failing(*(arrays[name] for name in ALL), **wrong)

    refused(jax.errors.JaxRuntimeError, lambda: jax.jit(program)(2 * ONE), "receive")


def test_output_slices_that_overlap():
    """Both updates write to the same row, which is looked for where that is told."""
    zeros, ones = jnp.zeros(2, jnp.int32), jnp.ones(2, jnp.int32)
    way = {"input_offsets": zeros, "output_offsets": zeros, "send_sizes": ones, "recv_sizes": ones}
    one_row(("partition",), **way)
    checked = partial(one_row, ("partition",), attributes={"check_overlaps": True}, **way)
    refused(jax.errors.JaxRuntimeError, checked, "overlap")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_told(rank):
    """The table of a rank is its own."""
    call, topology = contract.PLAN, (1, 2, *TOLD["topology"][2:])
    told = told_of(call.target, rank=rank, replica_groups=[0, 1], topology=topology)
    told |= {"program": "jit_rank", "operands": "send_sizes"}
    result = jax.ShapeDtypeStruct((_core.table_words(topology, TOLD["scheduler"]),), jnp.int32)
    sizes = np.array([[1, 2], [3, 4]], np.int32)
    run = jax.jit(lambda s: jax.ffi.ffi_call(call.target, result)(s, **call.encoded(told)))
    table = np.asarray(run(sizes))
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
        operands="send_sizes,partition",
    )
    program = [sys.executable, "-c", _PROCESSES_TOLD, json.dumps(told)]
    out = subprocess.run(program, check=True, capture_output=True, text=True).stdout
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
