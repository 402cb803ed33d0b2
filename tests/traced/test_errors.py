"""Every refusal: its text says what was got, what was wanted and where; the next exchange works."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange
from refusals import bounds, refusals, refused
from spmd import spmd

import fastjax
from fastjax.errors import ArgumentError, OptionError, TopologyError, TopologyWarning

RUNTIME_ERROR = jax.errors.JaxRuntimeError
METADATA = tuple(field.name for field in dataclasses.fields(reference.Metadata))


def table_of(sizes, **options):
    return fastjax.plan_ragged_all_to_all(sizes, axis_name="x", **options).table


def array(*shape, dtype="int32"):
    return jax.ShapeDtypeStruct(shape, dtype)


GROUPS = ((0, 2, 4, 6), (1, 3, 5, 7))
ROWS = array(4, 3, dtype="float32")
# Of one device, and all as they should be.
ARGUMENTS = {"operand": ROWS, "output": ROWS} | dict.fromkeys(METADATA, array(8))


def traced(function=exchange, **changed):
    """Traces a function of an exchange's arguments, of which some are others."""

    def trace():
        arguments = [array(8, *a.shape, dtype=a.dtype) for a in (ARGUMENTS | changed).values()]
        jax.eval_shape(spmd(function).mapped, *arguments)

    return trace


def traced_with(**options):
    return traced(lambda *arguments: exchange(*arguments, **options))


def grouped(*groups):
    return traced_with(axis_index_groups=groups)


def with_a_plan(**options):
    def local(*arguments):
        plan = fastjax.plan_ragged_all_to_all(arguments[3], axis_name="x")
        return exchange(*arguments, plan=plan, **options)

    return traced(local)


def of_row_bytes(row_bytes):
    traced(lambda *arguments: table_of(arguments[3], row_bytes=row_bytes))()


def vmapped(function=exchange):
    arguments = [array(8, *a.shape, dtype=a.dtype) for a in ARGUMENTS.values()]
    jax.eval_shape(jax.vmap(function, axis_name="x"), *arguments)


test_refused_arguments = refusals(
    ArgumentError,
    *(
        (traced(**{name: wrong}), name, told)
        for name in METADATA
        for wrong, told in (
            (array(8, dtype="bool"), "must be integer type."),
            (array(1, 8), "must be rank 1 with positive dimension size, but got shape (1, 8)"),
            (array(0), "must be rank 1 with positive dimension size, but got shape (0,)"),
            (array(16), "must have one length, got {'input_offsets': "),
        )
    ),
    (traced(**dict.fromkeys(METADATA, array(12))), "12 entries", "the 8 devices"),
    (traced(lambda *a: table_of(a[3]), send_sizes=array(12)), "send_sizes has 12 entries"),
    (traced(output=array(8, 4, dtype="float32")), "shapes (4, 3) and (8, 4)"),
    (traced(output=array(8, 3)), "one type, got float32 and int32"),
    (traced(operand=array(), output=array()), "rank 1 or more", "() and ()"),
    (grouped([0, 1, 2], [3, 4, 5, 6, 7]), "axis_index_groups", "got sizes [3, 5]"),
    (grouped([0, 1], [2, 3]), "axis_index_groups must name every position", "0 to 7, once"),
    (grouped([0, 1, 2, 3], [3, 4, 5, 6]), "axis_index_groups must name every position", "once"),
    *(
        (
            traced_with(axis_index_groups=wrong),
            "must be lists of positions, which are integers",
            f"got {wrong!r}",
        )
        for wrong in (2, [0, 1, 2, 3], ["ab", "cd"], [[0.5, 1], [2, 3]])
    ),
    (grouped(), "axis_index_groups", "got sizes []"),
    (grouped([], []), "axis_index_groups must name every position", "got ((), ())"),
    (
        traced(partial(exchange, axis_name=("x", "x"))),
        "axis_name must name each axis once, got ('x', 'x')",
    ),
    (traced_with(topology=(1, 8)), "must be a fastjax.Topology, got (1, 8)"),
    (traced_with(plan=3), "plan must come from fastjax.plan_ragged_all_to_all, got int"),
    (vmapped, "axis 'x' is a vmap axis"),
    (partial(vmapped, lambda *a: table_of(a[3])), "axis 'x' is a vmap axis"),
    (with_a_plan(scheduler="fast"), "a plan brings its topology"),
    (with_a_plan(topology=fastjax.Topology(1, 8)), "a plan brings its topology"),
    (with_a_plan(axis_index_groups=GROUPS), "the plan is for axis ('x',) and groups None"),
)


def test_a_note_tells_the_type():
    with pytest.raises(ArgumentError) as refused_type:
        traced(send_sizes=array(8, dtype="bool"))()
    assert refused_type.value.__notes__[0] == "send_sizes has type bool."


test_bounds_of_arguments = bounds(
    ArgumentError,
    ("row_bytes", of_row_bytes, [-5, 0, 2**40, 2**70, "a", 1.5], [1, 2**40 - 1]),
)


def test_topologies_and_schedulers_that_do_not_fit():
    small = fastjax.Topology(2, 2)
    makes_one = "fastjax.Topology.from_mesh(mesh, 'x') makes it"
    for call in traced_with(topology=small), traced_with(topology=small, axis_index_groups=GROUPS):
        told = "the topology has 2 x 2 = 4 devices, axis 'x' has 8. It must be that of the axis"
        refused(TopologyError, call, told, makes_one)
    with fastjax.options(topology=small):
        refused(TopologyError, traced(), "the topology of fastjax.options has 2 x 2 = 4", makes_one)
    many = traced(lambda *a: table_of(a[3], topology=fastjax.Topology(2, 2**14)))
    refused(TopologyError, many, "2 x 16384 devices", "32767")
    refused(OptionError, traced_with(scheduler="fastest"), "scheduler must be", "got 'fastest'")


def test_rates_in_another_unit_are_doubted():
    slow = fastjax.Topology(2, 4, scale_out_bandwidth=400)
    for topology in (slow, fastjax.Topology(2, 4, scale_up_bandwidth=450)):
        with pytest.warns(TopologyWarning, match=r"_bandwidth is 4[05]0 bytes/s"):
            traced_with(topology=topology)()


OUTSIDE = "inside jax.shard_map over a mesh with that axis; got axis_name "


test_axes_that_are_not_bound = refusals(
    NameError,
    (traced(partial(exchange, axis_name="zz")), f"{OUTSIDE}'zz'"),
    (lambda: jax.eval_shape(exchange, *ARGUMENTS.values()), f"{OUTSIDE}'x'"),
    (
        lambda: fastjax.plan_ragged_all_to_all(np.ones(8, np.int32), axis_name=("x", "zz")),
        f"{OUTSIDE}('x', 'zz')",
    ),
)


def test_primitives_outside_a_mesh():
    arrays = [jnp.zeros(a.shape, a.dtype) for a in ARGUMENTS.values()]
    options = {"axis_name": ("x",), "axis_index_groups": None, "spec": None}
    planning = fastjax.traced.plan_primitive.plan_ragged_all_to_all_p
    parts = fastjax.traced.start_done.start_p, fastjax.traced.start_done.done_p
    for primitive in (fastjax.fast_ragged_all_to_all_p, planning, *parts):
        call = partial(primitive.bind, *arrays, **options)
        refused(RuntimeError, call, f"{primitive.name} must be used within a mapped context")


def test_sizes_may_be_a_list():
    run = spmd(lambda x: x + table_of([0] * 8)[1].astype("f4"))
    np.testing.assert_array_equal(run(np.zeros(8, np.float32)), np.full(8, 8))


# Every operand and output has 36 rows, all of which are sent and written to.
META = reference.packed(np.subtract.outer(np.arange(8), np.arange(8)) % 8 + 1)
OPERAND, OUTPUT = reference.data(np.random.default_rng(0), META, spare=0)


@cache
def exchanging(**options):
    """The program of an exchange; calls with equal arguments share what is compiled."""
    return spmd(partial(exchange, **options))


def launched(run, *args):
    return lambda: jax.block_until_ready(run(*args))


def check_it_still_works(run=None, meta=META, groups=None):
    got = (run or exchanging())(OPERAND, OUTPUT, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(OPERAND, OUTPUT, meta, groups))


def with_entry(field, device, index, value, meta=META):
    changed = getattr(meta, field).copy()
    changed[device, index] = value
    return dataclasses.replace(meta, **{field: changed})


def test_values_at_their_bounds():
    """The nearest that are not refused: slices at both ends, and one of no rows."""
    assert META.output_offsets[7, 5] + META.send_sizes[7, 5] == OUTPUT.shape[1]
    for offset in (0, 33):
        check_it_still_works(meta=with_entry("input_offsets", 7, 5, offset))
    empty = with_entry("recv_sizes", 5, 7, 0, with_entry("send_sizes", 7, 5, 0))
    check_it_still_works(meta=empty)


def test_bad_values_that_do_not_fit_int64():
    with jax.enable_x64(True):
        arrays = with_entry("input_offsets", 2, 1, -1).arrays(np.uint64)
        call = launched(exchanging(), OPERAND, OUTPUT, *arrays)
        refused(RUNTIME_ERROR, call, f"device 2, input_offsets[1] = {2**63 - 1}")
    check_it_still_works()


def exchange_or_not(stays_away, operand, output, *arrays, **options):
    return jax.lax.cond(
        stays_away, lambda: output * 1.0, lambda: exchange(operand, output, *arrays, **options)
    )


@pytest.mark.sanitize
@pytest.mark.parametrize(("absent", "planned_before"), [([3], True), ([0, 5, 6], False)])
def test_a_device_that_never_arrives(absent, planned_before):
    def local(*args):
        plan = None
        if planned_before:
            plan = fastjax.plan_ragged_all_to_all(args[3], axis_name="x")
        stays_away = jnp.any(jax.lax.axis_index("x") == jnp.array(absent))
        return exchange_or_not(stays_away, *args, plan=plan)

    missing = ", ".join(map(str, absent))
    arrived = ", ".join(str(i) for i in range(8) if i not in absent)
    told = (
        *("DEADLINE_EXCEEDED", "fast_ragged_all_to_all over axis 'x' (channel "),
        f"waited 1.0 s for device(s) {missing}, which did not arrive; device(s) {arrived} did",
        "where launches are queued and jaxlib is older than 0.12",
    )
    with fastjax.options(timeout=1.0):
        refused(RUNTIME_ERROR, launched(spmd(local), OPERAND, OUTPUT, *META.arrays()), *told)
    check_it_still_works()


def test_a_late_device_is_told_at_once():
    """It arrives when the others have given up, and must not wait for them in turn."""

    def slow(x):
        import time

        time.sleep(3.0)
        return x

    def local(operand, output, *arrays):
        late = jax.lax.cond(
            jax.lax.axis_index("x") == 2,
            lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            lambda x: x,
            operand,
        )
        return exchange(late, output, *arrays)

    with fastjax.options(timeout=1.0):
        call = launched(spmd(local, check_vma=False), OPERAND, OUTPUT, *META.arrays())
        refused(RUNTIME_ERROR, call, "waited 1.0 s for device(s) 2")
    check_it_still_works()


def test_missing_device_of_one_group_only():
    meta = reference.packed(META.send_sizes[:, :4], GROUPS)

    def local(*args):
        return exchange_or_not(jax.lax.axis_index("x") == 5, *args, axis_index_groups=GROUPS)

    with fastjax.options(timeout=1.0):
        call = launched(spmd(local), OPERAND, OUTPUT, *meta.arrays())
        refused(RUNTIME_ERROR, call, "device(s) 2 of group 1, which did not arrive")


def test_errors_are_value_errors():
    for name in ("ArgumentError", "OptionError", "TopologyError", "UnsupportedError"):
        error = getattr(fastjax.errors, name)
        assert issubclass(error, ValueError)
        assert issubclass(error, fastjax.errors.FastjaxError)
