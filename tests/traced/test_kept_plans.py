"""Plans that programs keep, and "auto", which chooses a scheduler for each launch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from collected import collected
from exchanges import exchange
from plan_problems import HEADER_WORDS, SCHEDULERS, traced_tables
from refusals import refused
from spmd import spmd

import fastjax
from fastjax import Topology, make_plan, scheduling, traffic
from fastjax.errors import UnsupportedError

# So slow a fabric that small matrices are worth balancing, and small enough ones are not.
SLOW = {"scale_up_bandwidth": 9e9, "scale_out_bandwidth": 1e9, "incast_loss": 1.0}
SHAPES = [(2, 4), (4, 2)]


def exchange_with(topology, scheduler):
    return spmd(partial(exchange, topology=topology, scheduler=scheduler))


def matrices():
    """From next to nothing to a lot, even and uneven."""
    yield np.zeros((8, 8), int)
    yield np.ones((8, 8), int)
    yield np.eye(8, dtype=int) * 9
    yield np.full((8, 8), 5)
    yield traffic.pair_zipf(8, 16, exponent=1.2)
    yield traffic.pair_zipf(8, 400, exponent=1.2)
    yield traffic.uniform(8, 400)
    yield np.eye(8, k=7, dtype=int) * 400
    yield np.roll(np.eye(8, dtype=int), 3, axis=1) * 300


@pytest.mark.parametrize("shape", SHAPES)
def test_programs_choose_as_plans_on_the_host_do(shape):
    topology = Topology(*shape, **SLOW)
    tables = traced_tables(topology, "auto")
    chosen = set()
    for matrix in matrices():
        got = np.asarray(tables(jnp.asarray(matrix.ravel(), jnp.int32)))
        plan = make_plan(matrix, topology, row_bytes=4096)
        for device, words in enumerate(got):
            assert scheduling.NAMES[words[9]] == plan.scheduler
            used = HEADER_WORDS + 16 + 10 * words[3]
            np.testing.assert_array_equal(words[:used], plan.stage_table(device)[:used])
        chosen.add(plan.scheduler)
    assert len(chosen) >= 3


def test_gradients_while_auto_changes_its_choice(rng):
    """Of one program, whose launches have traffic that other schedulers win."""
    rates = {name: rate * 12 / 4096 for name, rate in SLOW.items() if "bandwidth" in name}
    topology = Topology(2, 4, **SLOW | rates)  # as above, for rows of 12 bytes

    def gradients(operand, output, *arrays):
        send = partial(exchange, topology=topology, scheduler="auto")
        return jax.grad(lambda *rows: (send(*rows, *arrays) ** 2).sum(), (0, 1))(operand, output)

    run, chosen = spmd(gradients), set()
    data = rng.normal(size=(2, 8, 3200, 3)).astype(np.float32)
    with collected():
        for matrix in matrices():
            meta = reference.packed(matrix)
            got = run(*data, *meta.arrays())
            squares = lambda *rows, m=meta: (reference.exchange_in_jax(*rows, m) ** 2).sum()  # noqa: E731
            for one, wanted in zip(got, jax.grad(squares, (0, 1))(*data), strict=True):
                np.testing.assert_allclose(one, wanted, rtol=1e-6)
            taken = {site.scheduler for site in fastjax.stats()}
            assert taken == {make_plan(matrix, topology, row_bytes=12).scheduler}
            chosen |= taken
    assert len(chosen) >= 3
    assert run.mapped._cache_size() == 1


def test_programs_refuse_to_solve(rng):
    told = "scheduler 'optimal' solves for seconds, on the host: call fastjax.make_plan with it"
    sizes = np.ones((8, 8), np.int32)
    meta = reference.packed(sizes)
    operand, output = reference.data(rng, meta)
    run = exchange_with(Topology(2, 4), "optimal")
    refused(UnsupportedError, lambda: run(operand, output, *meta.arrays()), told)
    with fastjax.options(scheduler="optimal"):
        plan = spmd(lambda s: fastjax.plan_ragged_all_to_all(s, axis_name="x").table)
        refused(UnsupportedError, lambda: plan(sizes), told)


class Counter:
    """Runs exchanges, and says how many plans each took."""

    def __init__(self, rng):
        self.rng = rng

    def __call__(self, run, sizes, width=3):
        meta = reference.packed(sizes)
        operand, output = reference.data(self.rng, meta, (width,))
        operand, output = (np.resize(a, (8, 4096, width)) for a in (operand, output))
        before = fastjax.planning_count()
        got = jax.block_until_ready(run(operand, output, *meta.arrays()))
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
        return fastjax.planning_count() - before


@pytest.fixture
def plans(rng):
    return Counter(rng)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_same_traffic_is_not_planned_twice(rng, plans, scheduler):
    run = exchange_with(Topology(2, 4, transfer_overhead=17e-6), scheduler)
    first, second = reference.random_sizes(rng, 8, 8), reference.random_sizes(rng, 8, 8)
    assert plans(run, first) == 1
    assert plans(run, first) == 0
    assert plans(run, second) == 1
    assert plans(run, first) == 0
    assert plans(run, second) == 0
    changed = first.copy()
    changed[3, 5] += 1
    assert plans(run, changed) == 1


def test_call_sites_of_the_same_settings_share_plans(rng, plans):
    topology = Topology(4, 2, transfer_overhead=18e-6)
    sizes = reference.random_sizes(rng, 8, 8)

    def twice(operand, output, *arrays):
        send = partial(exchange, topology=topology, scheduler="fast")
        return send(operand, send(operand, output, *arrays), *arrays)

    one, other = spmd(twice), exchange_with(topology, "fast")
    assert plans(one, sizes) == 1
    assert plans(other, sizes) == 0
    assert plans(other, sizes[::-1].copy()) == 1
    assert plans(one, sizes[::-1].copy()) == 0


def test_other_settings_plan_for_themselves(rng, plans):
    sizes = reference.random_sizes(rng, 8, 8)
    topology = Topology(2, 4, transfer_overhead=19e-6)
    runs = [exchange_with(topology, scheduler) for scheduler in SCHEDULERS]
    runs.append(exchange_with(Topology(2, 4, transfer_overhead=20e-6), "fast"))
    runs.append(exchange_with(Topology(2, 4, nic_bandwidths=(25e9,) * 8), "fast"))
    assert [plans(run, sizes) for run in runs] == [1] * len(runs)
    assert [plans(run, sizes) for run in runs] == [0] * len(runs)
    # Another width of rows is another price of a start-up.
    assert plans(runs[1], sizes, width=5) == 1


def test_groups_plan_each_for_themselves(rng):
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    meta = reference.packed(reference.random_sizes(rng, 8, 4), groups)
    operand, output = reference.data(rng, meta)
    topology = Topology(4, 2, transfer_overhead=21e-6)
    options = {"axis_index_groups": groups, "topology": topology, "scheduler": "rails"}
    run = spmd(partial(exchange, **options))
    before = fastjax.planning_count()
    jax.block_until_ready(run(operand, output, *meta.arrays()))
    assert fastjax.planning_count() - before == 2
    jax.block_until_ready(run(operand, output, *meta.arrays()))
    assert fastjax.planning_count() - before == 2
