"""Statistics of exchanges, beside what numpy and plans made on the host say of the same traffic."""

import concurrent.futures
import dataclasses
import functools
import gc
import math
import os

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
import reference
from collected import TOPOLOGY, case, exchange, launch
from exchange_checks.backends import spread
from pythons import printed
from refusals import refused
from spmd import mesh_of, spmd

import fastjax
from fastjax import Topology, loopback
from fastjax.errors import ArgumentError

EMULATED = os.environ.get("FASTJAX_EMULATE_GPU") == "1"
SCHEDULERS = tuple(name for name in fastjax.schedulers() if name != "optimal")
ROW_BYTES = 12
EXCHANGE, PLAN = "fast_ragged_all_to_all", "plan_ragged_all_to_all"


def skew_of(traffic):
    loads = [*traffic.sum(axis=0), *traffic.sum(axis=1)]
    return max(loads) / traffic.sum() * len(traffic) if traffic.any() else 1.0


def check_times(times, some=True):
    if not some:
        assert all(map(math.isnan, times))
        return
    assert 0 <= times.last <= times.longest
    assert 0 < times.mean <= times.longest


def check_plan(site, traffic, asked, row_bytes=ROW_BYTES):
    """Against a plan of what was planned, made on the host."""
    plan = fastjax.make_plan(traffic, TOPOLOGY, scheduler=asked, row_bytes=row_bytes)
    assert (site.scheduler, site.stages) == (plan.scheduler, plan.num_stages)
    assert site.lower_bound == plan.lower_bound()
    # Of what was taken, without what looking at others took.
    plan = fastjax.make_plan(traffic, TOPOLOGY, scheduler=plan.scheduler, row_bytes=row_bytes)
    planning = 0 if site.plans_given else plan.planning_time()
    wanted = plan.predicted_time() - plan.planning_time() + planning
    assert site.predicted_time == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_figures_of_an_exchange(rng, collecting, scheduler):
    run = spmd(lambda *a: exchange(*a, scheduler=scheduler))
    cases = [case(rng, most) for most in (5, 40, 40)]
    for one in cases:
        launch(run, *one)
    launch(run, *cases[-1])
    launched = [*cases, cases[-1]]
    matrices = [meta.send_sizes for meta, *_ in launched]

    (site,) = fastjax.stats()
    assert site.operation == EXCHANGE
    assert site.program == "jit_local"
    assert site.active
    assert (site.axis_name, site.group_size) == (("x",), 8)
    assert (site.topology, site.platform) == (TOPOLOGY, "cpu")
    assert (site.direction, site.plan, site.asked_scheduler) == ("forward", "own", scheduler)
    assert (site.launches, site.failures) == (4, 0)
    assert (site.plans_made, site.plans_reused, site.plans_given) == (3, 1, 0)
    assert (site.rows, site.row_bytes) == (matrices[-1].sum(), ROW_BYTES)
    assert site.total_rows == sum(m.sum() for m in matrices)
    assert site.total_bytes == ROW_BYTES * site.total_rows
    assert site.skew == pytest.approx(skew_of(matrices[-1]), rel=1e-12)
    assert site.mean_skew == pytest.approx(np.mean([skew_of(m) for m in matrices]), rel=1e-12)
    np.testing.assert_array_equal(site.traffic, matrices[-1])
    check_times(site.planning_time)
    check_times(site.exchange_time)
    assert site.exchange_time.longest >= site.planning_time.last
    assert site.queued == EMULATED
    check_plan(site, matrices[-1], scheduler)


def test_figures_of_plans_that_are_given(rng, collecting):
    """One plan, the way there and back, and the gradients of both."""

    def local(operand, output, *arrays):
        plan = fastjax.plan_ragged_all_to_all(
            arrays[1], axis_name="x", topology=TOPOLOGY, scheduler="fast", row_bytes=ROW_BYTES
        )

        def loss(x):
            there = exchange(x, output, *arrays, topology=None, plan=plan)
            back = exchange(
                there,
                jnp.zeros_like(x),
                *(arrays[i] for i in (2, 3, 0, 1)),
                topology=None,
                plan=plan.transpose(),
            )
            return jnp.sum(back * back)

        return jax.grad(loss)(operand)

    # Symmetric traffic, so that output offsets do for input offsets on the way back.
    half = reference.random_sizes(rng, 8, 8, 9)
    meta = reference.packed(half + half.T)
    operand, output = rng.normal(size=(2, 8, 8 * 20, 3)).astype(np.float32)
    run = spmd(local)
    launch(run, meta, operand, output)
    launch(run, meta, operand, output)

    traffic = meta.send_sizes
    planning, *moving = fastjax.stats()
    assert (planning.operation, planning.plan) == (PLAN, "own")
    assert (planning.launches, planning.plans_made, planning.plans_reused) == (2, 1, 1)
    assert (planning.rows, planning.total_rows, planning.total_bytes) == (0, 0, 0)
    assert planning.skew == pytest.approx(skew_of(traffic), rel=1e-12)
    np.testing.assert_array_equal(planning.traffic, traffic)
    check_times(planning.planning_time)
    check_times(planning.exchange_time, some=False)
    assert not planning.queued
    check_plan(planning, traffic, "fast")

    assert [site.operation for site in moving] == [EXCHANGE] * 4
    ways = {(site.direction, site.plan) for site in moving}
    assert ways == {(d, p) for d in ("forward", "reverse") for p in ("given", "transposed")}
    for site in moving:
        assert (site.launches, site.plans_given) == (2, 2)
        assert (site.plans_made, site.plans_reused, site.asked_scheduler) == (0, 0, "")
        assert (site.rows, site.total_rows) == (traffic.sum(), 2 * traffic.sum())
        check_times(site.planning_time, some=False)
        check_times(site.exchange_time)
        check_plan(site, traffic, "fast")


def test_figures_of_a_gradient(rng, collecting):
    """Rows come back: traffic is transposed, and the plan is that of the way there."""
    meta, operand, output = case(rng)

    def local(x, output, *arrays):
        loss = lambda x: jnp.sum(exchange(x, output, *arrays, scheduler="fast") ** 2)  # noqa: E731
        return jax.grad(loss)(x)

    launch(spmd(local), meta, operand, output)
    planning, there, back = fastjax.stats()
    assert planning.operation == PLAN
    assert (there.direction, back.direction) == ("forward", "reverse")
    np.testing.assert_array_equal(there.traffic, meta.send_sizes)
    np.testing.assert_array_equal(back.traffic, meta.send_sizes.T)
    assert not np.array_equal(there.traffic, back.traffic)
    for site in (there, back):
        assert site.skew == pytest.approx(skew_of(meta.send_sizes), rel=1e-12)
        check_plan(site, meta.send_sizes, "fast")


def test_ranks_are_server_major(rng, collecting):
    """An axis whose servers alternate: traffic is told as plans number devices."""
    placement = (0, 4, 1, 5, 2, 6, 3, 7)
    alternating = dataclasses.replace(TOPOLOGY, placement=placement)
    meta, *data = case(rng)
    launch(spmd(lambda *a: exchange(*a, topology=alternating)), meta, *data)
    (site,) = fastjax.stats()
    wanted = np.zeros((8, 8), np.int64)
    wanted[np.ix_(placement, placement)] = meta.send_sizes
    np.testing.assert_array_equal(site.traffic, wanted)
    assert site.topology == TOPOLOGY
    check_plan(site, wanted, "auto")


def test_a_loop_is_one_site(rng, collecting):
    meta, operand, output = case(rng)

    def local(operand, output, *arrays):
        body = lambda held, _: (exchange(operand, held, *arrays), None)  # noqa: E731
        return jax.lax.scan(body, output, length=5)[0]

    launch(spmd(local), meta, operand, output)
    (site,) = fastjax.stats()
    assert (site.launches, site.plans_made, site.plans_reused) == (5, 1, 4)
    assert site.total_rows == 5 * site.rows == 5 * meta.send_sizes.sum()


def test_groups_are_launches_of_their_own(rng, collecting):
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    meta = reference.packed(reference.random_sizes(rng, 8, 4), groups)
    data = reference.data(rng, meta)
    run = spmd(lambda *a: exchange(*a, topology=None, axis_index_groups=groups))
    launch(run, meta, *data)
    (site,) = fastjax.stats()
    assert (site.launches, site.group_size) == (2, 4)
    assert site.total_rows == meta.send_sizes.sum()
    halves = (meta.send_sizes[:4], meta.send_sizes[4:])
    assert any(np.array_equal(site.traffic, half) for half in halves)
    assert site.mean_skew == pytest.approx(np.mean([skew_of(h) for h in halves]), rel=1e-12)


def test_no_rows(rng, collecting):
    _, *data = case(rng)
    launch(spmd(exchange), reference.packed(np.zeros((8, 8), np.int64)), *data)
    (site,) = fastjax.stats()
    assert (site.launches, site.rows, site.skew, site.mean_skew) == (1, 0, 1.0, 1.0)
    assert site.lower_bound == 0
    assert site.predicted_time >= 0


def test_what_failed_counts_apart(rng, collecting):
    meta, operand, output = case(rng)
    run = spmd(exchange)
    launch(run, meta, operand, output)
    (before,) = fastjax.stats()
    bad = meta.arrays()
    bad[1][3, 2] = -1
    for failures in (1, 2):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"send_sizes\[2\] = -1"):
            jax.block_until_ready(run(operand, output, *bad))
        (after,) = fastjax.stats()
        assert after == dataclasses.replace(before, failures=failures)
    launch(run, meta, operand, output)
    assert fastjax.stats()[0].launches == 2


def test_plannings_that_fail_count_too(rng, collecting):
    meta, *_ = case(rng)
    run = spmd(lambda sizes: fastjax.plan_ragged_all_to_all(sizes, axis_name="x").table)
    bad = meta.send_sizes.astype(np.int32)
    bad[0, 0] = -5
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"send_sizes\[0\] = -5"):
        jax.block_until_ready(run(bad))
    (site,) = fastjax.stats()
    assert (site.launches, site.failures, site.plans_made) == (0, 1, 0)
    assert (site.rows, site.stages, site.scheduler, site.traffic.shape) == (0, 0, "", (0, 0))
    assert math.isnan(site.predicted_time)
    assert "planning" in str(site)


def test_on_and_off(rng):
    traces = []

    def local(*args):
        traces.append(1)
        return exchange(*args)

    fastjax.reset_stats()
    one, run = case(rng), spmd(local)
    launch(run, *one)
    assert fastjax.stats() == []
    with fastjax.collect_stats():
        launch(run, *one)
        with fastjax.collect_stats(False):
            launch(run, *one)
        launch(run, *one)
    launch(run, *one)
    assert fastjax.stats()[0].launches == 2
    fastjax.collect_stats()
    launch(run, *one)
    fastjax.collect_stats(False)
    launch(run, *one)
    assert fastjax.stats()[0].launches == 3
    with pytest.raises(KeyError), fastjax.collect_stats():
        raise KeyError
    launch(run, *one)
    assert fastjax.stats()[0].launches == 3
    assert len(traces) == 1
    fastjax.reset_stats()


def test_the_switch_takes_a_bool():
    refused(ArgumentError, lambda: fastjax.collect_stats("yes"), "on must be", "got 'yes'")
    assert not fastjax._core.collecting()


def test_reset(rng, collecting):
    one, run = case(rng), spmd(exchange)
    launch(run, *one)
    launch(run, *one)
    fastjax.reset_stats()
    assert fastjax.stats() == []
    launch(run, *one)
    (site,) = fastjax.stats()
    assert (site.launches, site.total_rows) == (1, one[0].send_sizes.sum())
    assert (site.plans_made, site.plans_reused) == (0, 1)  # plans are not forgotten


def test_sites_are_in_order_of_creation(rng, collecting):
    """Whatever order they run in."""
    meta, operand, output = case(rng)
    runs = {}
    for name in ("first", "second", "third"):

        def local(*args, name=name):
            with jax.named_scope(name):
                return exchange(*args)

        runs[name] = spmd(local)
        with fastjax.collect_stats(False):
            launch(runs[name], meta, operand, output)
    for name in ("third", "first", "second", "third"):
        launch(runs[name], meta, operand, output)
    sites = fastjax.stats()
    assert [site.name for site in sites] == [
        f"{name}/{EXCHANGE}" for name in ("first", "second", "third")
    ]
    assert [site.launches for site in sites] == [1, 1, 2]


def test_programs_that_are_gone_are_remembered(rng, collecting):
    one = case(rng)
    kept, gone = spmd(exchange), spmd(lambda *a: exchange(*a, scheduler="direct"))
    launch(kept, *one)
    launch(gone, *one)
    del gone
    jax.clear_caches()
    gc.collect()
    sites = fastjax.stats()
    assert [site.active for site in sites] == [False, False]
    assert [site.asked_scheduler for site in sites] == ["auto", "direct"]
    assert all(site.total_rows == one[0].send_sizes.sum() for site in sites)
    launch(kept, *one)  # compiled anew: another call site
    assert [site.active for site in fastjax.stats()] == [False, False, True]
    fastjax.reset_stats()
    assert fastjax.stats() == []
    launch(kept, *one)
    assert [site.launches for site in fastjax.stats()] == [1]


def test_loopback(rng, collecting):
    meta, operand, output = case(rng)
    result = loopback.loopback_ragged_all_to_all(
        operand, output, *meta.arrays(), topology=TOPOLOGY, scheduler="fast"
    )
    jax.block_until_ready(result)
    (site,) = fastjax.stats()
    assert (site.operation, site.axis_name) == ("loopback_ragged_all_to_all", ("loopback",))
    assert (site.launches, site.rows, site.queued) == (1, meta.send_sizes.sum(), True)
    np.testing.assert_array_equal(site.traffic, meta.send_sizes)
    check_plan(site, meta.send_sizes, "fast")


def test_axis_names(rng, collecting):
    mesh = mesh_of((2, 4), ("a", "b"))
    run = spmd(lambda *a: fastjax.fast_ragged_all_to_all(*a, axis_name=("a", "b")), mesh)
    launch(run, *case(rng))
    assert fastjax.stats()[0].axis_name == ("a", "b")


@pytest.mark.sanitize
def test_figures_from_several_threads(rng):
    """Launches, readers and the switch, all at once: nothing is lost that was to be counted."""
    cases = [case(rng) for _ in range(2)]
    programs = [spmd(exchange), spmd(lambda *a: exchange(*a, scheduler="fast"))]
    for run in programs:
        launch(run, *cases[0])
    fastjax.reset_stats()

    def work(i):
        for j in range(10):
            fastjax.collect_stats()
            launch(programs[(i + j) % 2], *cases[j % 2])
            assert fastjax.stats()
            assert fastjax.stats_summary()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    fastjax.collect_stats(False)
    sites = fastjax.stats()
    assert sum(site.launches for site in sites) == 40
    wanted = sum(20 * meta.send_sizes.sum() for meta, *_ in cases)
    assert sum(site.total_rows for site in sites) == wanted
    fastjax.reset_stats()


# ---- from the environment


@pytest.mark.parametrize("value", ["0", "1"])
def test_environment_is_read(value):
    code = "import fastjax; print(fastjax._core.collecting())"
    assert printed("-c", code, environment={"FASTJAX_STATS": value}).strip() == str(value == "1")


# ---- several processes


TOLD = (
    *("operation", "plan", "scheduler", "stages", "launches", "failures"),
    *("plans_made", "plans_reused", "plans_given", "rows", "total_rows", "total_bytes"),
    *("skew", "lower_bound", "predicted_time"),
)


def job(seed):
    """Runs in a job: three exchanges and one that fails, and what was told of them."""
    mesh = mesh_of((4,))
    meta, data = of_job(seed)
    topology = Topology(2, 2)

    def local(operand, output, *arrays):
        plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x", topology=topology)
        given = exchange(operand, output, *arrays, topology=None, plan=plan)
        return exchange(operand, given, *arrays, topology=topology, scheduler="fast")

    run = spmd(local, mesh).mapped  # pyright: ignore[reportFunctionMemberAccess]
    with fastjax.collect_stats():
        for _ in range(3):
            jax.block_until_ready(run(*spread(mesh, (*data, *meta.arrays()))))
        bad = meta.arrays()
        bad[3][1, 2] = -7  # which is no concern of planning
        failed = 0
        try:
            jax.block_until_ready(run(*spread(mesh, (*data, *bad))))
        except jax.errors.JaxRuntimeError:
            failed = 1
    sites = fastjax.stats()
    return {
        "failed": failed,
        "sites": [{name: getattr(site, name) for name in TOLD} for site in sites],
        "took": [site.exchange_time.mean > 0 for site in sites],
        "traffic": np.array([site.traffic for site in sites]),
    }


def of_job(seed):
    rng = np.random.default_rng(seed)
    meta = reference.packed(reference.random_sizes(rng, 4, 4))
    return meta, reference.data(rng, meta)


def test_processes_tell_the_same():
    results = multiprocess.run(__file__, "job", processes=2, devices=2, arguments={"seed": 7})
    meta, _ = of_job(7)
    total = int(meta.send_sizes.sum())
    topology = Topology(2, 2)
    for result in results:
        assert result["failed"] == 1
        of_each = {name: [site[name] for site in result["sites"]] for name in TOLD}
        assert of_each["operation"] == [PLAN, EXCHANGE, EXCHANGE]
        assert of_each["plan"] == ["own", "given", "own"]
        # The last run has planned; its first exchange was refused, and its second did not begin.
        assert (of_each["launches"], of_each["failures"]) == ([4, 3, 3], [0, 1, 0])
        assert (of_each["plans_made"], of_each["plans_reused"]) == ([1, 0, 1], [3, 0, 2])
        assert of_each["plans_given"] == [0, 3, 0]
        assert of_each["rows"] == [0, total, total]
        assert of_each["total_rows"] == [0, 3 * total, 3 * total]
        assert of_each["total_bytes"] == [ROW_BYTES * rows for rows in of_each["total_rows"]]
        assert of_each["skew"] == pytest.approx([skew_of(meta.send_sizes)] * 3, rel=1e-12)
        assert result["took"] == [False, True, True]
        np.testing.assert_array_equal(result["traffic"], [meta.send_sizes] * 3)
        plan = fastjax.make_plan(meta.send_sizes, topology, scheduler="fast", row_bytes=ROW_BYTES)
        own = result["sites"][2]
        assert (own["scheduler"], own["stages"]) == ("fast", plan.num_stages)
        wanted = plan.lower_bound(), plan.predicted_time()
        assert (own["lower_bound"], own["predicted_time"]) == wanted


# ---- GPUs, which the host emulates


def of_gpus():
    """Runs in a job, whose devices are emulated GPUs: what depends on how exchanges are moved."""
    for test in (
        functools.partial(test_figures_of_an_exchange, scheduler="fast"),
        test_figures_of_plans_that_are_given,
        test_figures_of_a_gradient,
        test_a_loop_is_one_site,
        test_groups_are_launches_of_their_own,
        test_what_failed_counts_apart,
        test_plannings_that_fail_count_too,
    ):
        with fastjax.collect_stats():
            fastjax.reset_stats()
            test(np.random.default_rng(11), None)
    return {"exchanges": fastjax._core.gpu_tally("cpu")["exchanges"]}


def test_gpus():
    """The same statistics, of the transport of GPUs."""
    emulated = {"FASTJAX_EMULATE_GPU": "1"}
    (result,) = multiprocess.run(__file__, "of_gpus", processes=1, devices=8, environment=emulated)
    assert result["exchanges"] > 0
