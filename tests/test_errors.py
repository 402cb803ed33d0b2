"""Every refusal: its text says what was got, what was wanted and where; the next exchange works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.sharding import PartitionSpec as P
from spmd import mesh_of, spmd

import fastjax
from fastjax.errors import ArgumentError, OptionError, TopologyError


def exchange(*args, **options):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x", **options)


def shapes(**changed):
    """Arguments of one device, right but for what is changed."""
    args = {
        "operand": jnp.zeros((4, 3)),
        "output": jnp.zeros((8, 3)),
        "input_offsets": jnp.zeros(8, jnp.int32),
        "send_sizes": jnp.zeros(8, jnp.int32),
        "output_offsets": jnp.zeros(8, jnp.int32),
        "recv_sizes": jnp.zeros(8, jnp.int32),
    }
    args.update(changed)
    return [jnp.stack([x] * 8) for x in args.values()]


@pytest.mark.parametrize("name", ["input_offsets", "send_sizes", "output_offsets", "recv_sizes"])
@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (jnp.zeros(8), "must be integer type, got float32"),
        (jnp.zeros(8, bool), "must be integer type, got bool"),
        (
            jnp.zeros((1, 8), jnp.int32),
            r"must be rank 1 with positive dimension size, but got shape \(1, 8\)",
        ),
        (
            jnp.zeros(0, jnp.int32),
            r"must be rank 1 with positive dimension size, but got shape \(0,\)",
        ),
        (jnp.zeros(16, jnp.int32), r"must have one length, got \{.*: 16"),
    ],
)
def test_bad_metadata(name, bad, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        spmd(exchange)(*shapes(**{name: bad}))
    assert name in str(caught.value)


def test_entries_not_a_multiple_of_the_group():
    names = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    bad = {name: jnp.zeros(12, jnp.int32) for name in names}
    with pytest.raises(ArgumentError, match="has 12 entries; want a multiple of the 8 devices"):
        spmd(exchange)(*shapes(**bad))
    with pytest.raises(ArgumentError, match="send_sizes has 12 entries; want a multiple of the 8"):
        spmd(lambda s: fastjax.plan_ragged_all_to_all(s, axis_name="x").table)(
            np.zeros((8, 12), np.int32)
        )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"output": jnp.zeros((8, 4))},
            r"agree behind their leading dimension, got shapes \(4, 3\) and \(8, 4\)",
        ),
        ({"output": jnp.zeros((8, 3), jnp.int32)}, "one type, got float32 and int32"),
        ({"operand": jnp.zeros(()), "output": jnp.zeros(())}, "rank 1 or more"),
    ],
)
def test_bad_data(changed, text):
    with pytest.raises(ArgumentError, match=text):
        spmd(exchange)(*shapes(**changed))


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([[0, 1, 2], [3, 4, 5, 6, 7]], r"equally large, got sizes \[3, 5\]"),
        ([[0, 1], [2, 3]], "every position of the axis, 0 to 7, once"),
        ([[0, 1, 2, 3], [3, 4, 5, 6]], "every position of the axis, 0 to 7, once"),
    ],
)
def test_bad_groups(groups, text):
    with pytest.raises(ArgumentError, match=text):
        spmd(lambda *a: exchange(*a, axis_index_groups=groups))(*shapes())


def test_unbound_axis_and_no_mapped_context():
    where = "inside jax.shard_map over a mesh with that axis; got axis_name "
    with pytest.raises(NameError, match=f"zz.*{where}'zz'"):
        spmd(lambda *a: fastjax.fast_ragged_all_to_all(*a, axis_name="zz"))(*shapes())
    with pytest.raises(NameError, match=f"{where}'x'"):
        exchange(*(x[0] for x in shapes()))
    with pytest.raises(NameError, match=rf"{where}\('x', 'zz'\)"):
        fastjax.plan_ragged_all_to_all(np.ones(8, np.int32), axis_name=("x", "zz"))
    for primitive in (
        fastjax.fast_ragged_all_to_all_p,
        fastjax.traced.plan_primitive.plan_ragged_all_to_all_p,
    ):
        with pytest.raises(RuntimeError, match="must be used within a mapped context"):
            primitive.bind(
                *(x[0] for x in shapes()), axis_name=("x",), axis_index_groups=None, spec=None
            )


def test_bad_topology_and_scheduler():
    with pytest.raises(TopologyError, match="2 x 2 = 4 devices, the axis has 8"):
        spmd(lambda *a: exchange(*a, topology=fastjax.Topology(2, 2)))(*shapes())
    with pytest.raises(OptionError, match=r"must be one of auto, .*; got 'fastest'"):
        spmd(lambda *a: exchange(*a, scheduler="fastest"))(*shapes())


def test_topologies_and_row_sizes_that_are_none():
    with pytest.raises(ArgumentError, match=r"topology must be a fastjax.Topology, got \(1, 8\)"):
        spmd(lambda *a: exchange(*a, topology=(1, 8)))(*shapes())
    for row_bytes in (-5, 0, 2**70, "a", 1.5):
        plan = lambda s, b=row_bytes: fastjax.plan_ragged_all_to_all(  # noqa: E731
            s, axis_name="x", row_bytes=b
        )
        with pytest.raises(ArgumentError, match="row_bytes must be an integer from 1 to"):
            spmd(lambda s, plan=plan: plan(s).table)(np.zeros((8, 8), np.int32))


def test_sizes_may_be_a_list():
    run = spmd(
        lambda x: x + fastjax.plan_ragged_all_to_all([0] * 8, axis_name="x").table[1].astype("f4")
    )
    np.testing.assert_array_equal(run(np.zeros(8, np.float32)), np.full(8, 8))


def test_bad_plans():
    sizes = jnp.zeros((8, 8), jnp.int32)
    with pytest.raises(ArgumentError, match=r"must come from fastjax\.plan_ragged_all_to_all, got"):
        spmd(lambda *a: exchange(*a, plan=a[2]))(*shapes())

    def with_plan(**options):
        def local(sizes, *args):
            plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x")
            return exchange(*args, plan=plan, **options)

        return lambda: spmd(local)(sizes, *shapes())

    with pytest.raises(ArgumentError, match="a plan brings its topology and scheduler"):
        with_plan(scheduler="fast")()
    with pytest.raises(ArgumentError, match="a plan brings its topology and scheduler"):
        with_plan(topology=fastjax.Topology(1, 8))()
    with pytest.raises(ArgumentError, match=r"the plan is for axis \('x',\) and groups None"):
        with_plan(axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])()


@pytest.fixture
def good(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, zeros=0) + 1)
    return meta, *reference.data(rng, meta)


def check_it_still_works(run, meta, operand, output):
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def broken(meta, field, device, index, value):
    arrays = {
        name: array.copy()
        for name, array in zip(
            ("input_offsets", "send_sizes", "output_offsets", "recv_sizes"),
            meta.arrays(),
            strict=True,
        )
    }
    arrays[field][device, index] = value
    return tuple(arrays.values())


@pytest.mark.sanitize
@pytest.mark.parametrize("topology", [None, fastjax.Topology(2, 4)], ids=["flat", "staged"])
@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("send_sizes", -1, r"on device 3, send_sizes\[5\] = -1; a size must be 0 or more"),
        ("recv_sizes", -2, r"on device 3, recv_sizes\[5\] = -2; a size must be 0 or more"),
        ("input_offsets", -1, r"on device 3, input_offsets\[5\] = -1; an offset must be 0 or more"),
        (
            "input_offsets",
            2**31 - 1,
            (
                r"on device 3, input_offsets\[5\] = 2147483647 and send_sizes\[5\] = \d+ reach "
                r"beyond the operand, which has \d+ rows"
            ),
        ),
        ("output_offsets", -4, r"device 3, output_offsets\[5\] = -4; an offset must be 0 or more"),
        (
            "output_offsets",
            2**30,
            (
                r"on device 3, output_offsets\[5\] = 1073741824 and send_sizes\[5\] = \d+ reach "
                r"beyond the output of device 5, which has \d+ rows"
            ),
        ),
        (
            "send_sizes",
            2**31 - 1,
            r"on device 3, input_offsets\[5\] = \d+ and send_sizes\[5\] = 2147483647 reach beyond",
        ),
        (
            "recv_sizes",
            1000,
            (
                r"device 5 sends \d+ rows to device 3 \(send_sizes\[3\]\), which expects 1000 "
                r"\(recv_sizes\[5\]\)"
            ),
        ),
    ],
)
def test_bad_values_and_recovery(good, topology, field, value, text):
    meta, operand, output = good
    run = spmd(lambda *a: exchange(*a, topology=topology))
    with pytest.raises(jax.errors.JaxRuntimeError, match=text) as caught:
        jax.block_until_ready(run(operand, output, *broken(meta, field, 3, 5, value)))
    assert "over axis 'x'" in str(caught.value)
    check_it_still_works(run, *good)


def test_values_that_do_not_fit_int64(good):
    meta, operand, output = good
    run = spmd(exchange)
    with jax.enable_x64(True):
        arrays = [a.astype(np.uint64) for a in meta.arrays()]
        arrays[0][2, 1] = 2**64 - 1
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"device 2, input_offsets\[1\] = 92"):
            jax.block_until_ready(run(operand, output, *arrays))
    check_it_still_works(run, *good)


def test_bad_value_in_a_group_names_the_group(rng):
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    meta = reference.packed(reference.random_sizes(rng, 8, 4) + 1, groups)
    operand, output = reference.data(rng, meta)
    run = spmd(lambda *a: exchange(*a, axis_index_groups=groups))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"on device 2 of group 1, input_offsets\[0\] = -1"
    ):
        jax.block_until_ready(run(operand, output, *broken(meta, "input_offsets", 5, 0, -1)))
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta, groups))


def test_bad_value_in_a_gradient(good):
    """The way back checks as the way there does, and names the same arguments."""
    meta, operand, output = good

    def local(ct, operand, output, *arrays):
        back = jax.linear_transpose(lambda a: exchange(a, jnp.zeros_like(output), *arrays), operand)
        return back(ct)[0]

    run = spmd(local)
    bad = broken(meta, "input_offsets", 3, 5, 99999)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"input_offsets\[5\] = 99999 and .* beyond the operand"
    ):
        jax.block_until_ready(run(output, operand, output, *bad))
    bad = broken(meta, "output_offsets", 3, 5, 99999)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"output_offsets\[5\] = 99999 .* the output of device 5"
    ):
        jax.block_until_ready(run(output, operand, output, *bad))
    jax.block_until_ready(run(output, operand, output, *meta.arrays()))


def planned(topology=None, change=lambda plan: plan):
    def local(plan_sizes, *args):
        plan = fastjax.plan_ragged_all_to_all(plan_sizes, axis_name="x", topology=topology)
        return exchange(*args, plan=change(plan))

    return spmd(local)


def test_a_negative_size_in_planning(good):
    meta, operand, output = good
    run = planned()
    sizes = meta.arrays()[1]
    bad = sizes.copy()
    bad[6, 2] = -5
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match=r"plan_ragged_all_to_all over axis 'x' .* on device 6, send_sizes\[2\] = -5",
    ):
        jax.block_until_ready(run(bad, operand, output, *meta.arrays()))
    got = run(sizes, operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize("topology", [None, fastjax.Topology(2, 4)], ids=["flat", "staged"])
def test_a_plan_for_other_sizes_is_refused(good, topology):
    meta, operand, output = good
    run = planned(topology)
    sizes = meta.arrays()[1]
    other = sizes.copy()
    other[1, 4] += 2
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match=rf"the plan does not fit: it is for {other[1, 4]} rows from device 1 to device 4, "
        rf"send_sizes has {sizes[1, 4]}",
    ):
        jax.block_until_ready(run(other, operand, output, *meta.arrays()))
    got = run(sizes, operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_a_plan_read_the_wrong_way_is_refused(good):
    meta, operand, output = good
    run = planned(change=lambda plan: plan.transpose())
    with pytest.raises(jax.errors.JaxRuntimeError, match="the plan does not fit"):
        jax.block_until_ready(run(meta.arrays()[1], operand, output, *meta.arrays()))


def damaged(word, value):
    def change(plan):
        table = plan.table.at[word].set(value) if value is not None else plan.table * 0
        return fastjax.TracedPlan(table, plan.spec, plan.axis_name, plan.axis_index_groups)

    return change


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("word", "value"),
    [(0, None), (0, 1), (1, 7), (2, 9), (3, 2**31 - 1), (3, -1), (5, 2**31 - 1), (8, 1), (35, 77)],
)
def test_a_damaged_plan_is_refused(good, word, value):
    meta, operand, output = good
    run = planned(fastjax.Topology(2, 4), damaged(word, value))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"the plan of device \d is not usable: "):
        jax.block_until_ready(run(meta.arrays()[1], operand, output, *meta.arrays()))
    check_it_still_works(spmd(exchange), *good)


def test_someone_elses_plan_is_refused(good):
    meta, operand, output = good

    def swapped(plan):
        table = jax.lax.ppermute(plan.table, "x", [(i, (i + 1) % 8) for i in range(8)])
        return fastjax.TracedPlan(table, plan.spec, plan.axis_name, plan.axis_index_groups)

    with pytest.raises(jax.errors.JaxRuntimeError, match="the plan of device 0 is not usable: "):
        jax.block_until_ready(
            planned(change=swapped)(meta.arrays()[1], operand, output, *meta.arrays())
        )


def test_plans_of_two_plannings_are_not_mixed(good):
    meta, operand, output = good

    def local(sizes, other, *args):
        a = fastjax.plan_ragged_all_to_all(sizes, axis_name="x")
        b = fastjax.plan_ragged_all_to_all(other, axis_name="x")
        table = jnp.where(jax.lax.axis_index("x") == 4, b.table, a.table)
        plan = fastjax.TracedPlan(table, a.spec, a.axis_name, a.axis_index_groups)
        return exchange(*args, plan=plan)

    sizes = meta.arrays()[1]
    other = sizes.copy()
    other[0, 0] += 1
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="device 4 holds another plan than device 0"
    ):
        jax.block_until_ready(spmd(local)(sizes, other, operand, output, *meta.arrays()))


def test_a_block_too_large_for_a_table_is_refused(good):
    sizes = np.zeros((8, 16), np.int32)
    sizes[0, 2:4] = 2**30
    run = spmd(lambda s: fastjax.plan_ragged_all_to_all(s, axis_name="x").table)
    with pytest.raises(jax.errors.JaxRuntimeError, match="sends 2\\^31 rows or more to another"):
        jax.block_until_ready(run(sizes))
    check_it_still_works(spmd(exchange), *good)


def test_gradients_that_cannot_be_summed_say_so(rng):
    """Only reachable through the primitive: the public gradient widens such types first."""
    meta = reference.packed(np.full((8, 8), 2))
    meta.input_offsets[:] = 0
    operand, output = (x.astype(np.int32) for x in reference.data(rng, meta))

    def local(ct, base, *arrays):
        _, spec = None, fastjax.traced.plan_spec.make_spec(("x",), None, None, None, 1)
        return fastjax.fast_ragged_all_to_all_p.bind(
            ct,
            base,
            *arrays,
            axis_name=("x",),
            axis_index_groups=None,
            spec=spec,
            transposed_plan=False,
            reverse=True,
            timeout_ms=1000,
            check_overlaps=False,
        )

    with pytest.raises(
        jax.errors.JaxRuntimeError, match="input slices overlap, and gradients of this element type"
    ):
        jax.block_until_ready(spmd(local)(output, operand, *meta.arrays()))


@pytest.mark.sanitize
@pytest.mark.parametrize("absent", [[3], [0, 5, 6]])
@pytest.mark.parametrize("planned_before", [True, False])
def test_a_device_that_never_arrives(good, absent, planned_before):
    meta, operand, output = good

    def local(operand, output, *arrays):
        plan = None
        if planned_before:
            plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
        here = jax.lax.axis_index("x")
        stays_away = jnp.any(here == jnp.array(absent))
        return jax.lax.cond(
            stays_away,
            lambda: output * 1.0,
            lambda: exchange(operand, output, *arrays, plan=plan),
        )

    with fastjax.options(timeout=1.0):
        missing = ", ".join(map(str, absent))
        arrived = ", ".join(str(i) for i in range(8) if i not in absent)
        with pytest.raises(
            jax.errors.JaxRuntimeError,
            match=r"fast_ragged_all_to_all over axis 'x' \(channel \d+\): waited 1.0 s for "
            rf"device\(s\) {missing}, which did not arrive; device\(s\) {arrived} did",
        ) as caught:
            jax.block_until_ready(spmd(local)(operand, output, *meta.arrays()))
        assert "DEADLINE_EXCEEDED" in str(caught.value)
    check_it_still_works(spmd(exchange), *good)


def test_a_late_device_is_told_at_once(good):
    """It arrives when the others have given up, and must not wait for them in turn."""
    meta, operand, output = good

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

    with (
        fastjax.options(timeout=1.0),
        pytest.raises(jax.errors.JaxRuntimeError, match=r"waited 1.0 s for device\(s\) 2"),
    ):
        jax.block_until_ready(spmd(local, check_vma=False)(operand, output, *meta.arrays()))
    check_it_still_works(spmd(exchange), *good)


def test_missing_device_of_one_group_only(rng):
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    meta = reference.packed(reference.random_sizes(rng, 8, 4), groups)
    operand, output = reference.data(rng, meta)

    def local(operand, output, *arrays):
        return jax.lax.cond(
            jax.lax.axis_index("x") == 5,
            lambda: output * 1.0,
            lambda: exchange(operand, output, *arrays, axis_index_groups=groups),
        )

    with (
        fastjax.options(timeout=1.0),
        pytest.raises(
            jax.errors.JaxRuntimeError, match=r"device\(s\) 1 of group 1, which did not arrive"
        ),
    ):
        jax.block_until_ready(spmd(local)(operand, output, *meta.arrays()))


def test_errors_are_value_errors():
    for name in ("ArgumentError", "OptionError", "TopologyError", "UnsupportedError"):
        error = getattr(fastjax.errors, name)
        assert issubclass(error, ValueError)
        assert issubclass(error, fastjax.errors.FastjaxError)


def test_outside_shard_map_on_a_mesh():
    mesh = mesh_of()
    args = [jax.device_put(x, jax.sharding.NamedSharding(mesh, P())) for x in shapes()]
    with pytest.raises(NameError, match="x"):
        jax.jit(exchange)(*(a[0] for a in args))
