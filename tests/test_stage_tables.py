"""Stage tables: they are the plan, have room for every plan, and are refused when damaged."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import plan_checker as pc
import pytest
from plan_problems import SCHEDULERS, problems, scheduled, topologies, traced_tables

from fastjax import Topology, _core, make_plan
from fastjax.errors import ArgumentError


def _table_words(topology, scheduler):
    return _core.table_words(topology.words, _core.scheduler_names().index(scheduler))


@pytest.mark.sanitize
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@hypothesis.settings(max_examples=60)
@hypothesis.given(problem=problems(topologies((1, 5), (1, 4))))
def test_tables_are_the_plan(scheduler, problem):
    plan = scheduled(problem, scheduler)
    devices = plan.topology.num_devices
    tables = [plan.stage_table(r) for r in range(devices)]
    for r, words in enumerate(tables):
        header, sends, receives, entries = pc.decode_table(words)
        assert _core.check_table(words, devices, r) == ""
        assert header[:5].tolist() == [0x464A5431, devices, r, entries.size, plan.num_stages]
        assert header[9] == _core.scheduler_names().index(plan.scheduler)
        np.testing.assert_array_equal(sends, plan.traffic[r])
        np.testing.assert_array_equal(receives, plan.traffic[:, r])
        expected = pc.of_device(plan.transfers, r)
        for field in expected.dtype.names:
            np.testing.assert_array_equal(entries[field], expected[field])
    assert len({tuple(words[6:8]) for words in tables}) == 1
    entries = pc.join_tables(plan.transfers, tables)
    staging_rows = [words[5] for words in tables]
    pc.replay_staging(plan.traffic, entries, staging_rows)
    back = pc.transposed(entries, plan.num_stages)
    pc.replay_staging(plan.traffic.T, back, staging_rows)


def _variants(problem):
    """What a plan depends on, changed one at a time."""
    topology, traffic, row_bytes = problem
    settings = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 2e9}
    settings |= {"scale_up_latency": 1.0, "scale_out_latency": 2.0}
    settings |= {"transfer_overhead": 3.0, "incast_loss": 0.25}
    settings |= {"nic_bandwidths": (50e9, 50e9, 50e9, 1)}
    more = traffic.copy()
    more[-1, 0] += 1
    yield topology, more, row_bytes
    yield topology, traffic, row_bytes + 1
    for name, value in settings.items():
        shape = topology.servers, topology.devices_per_server
        yield Topology(*shape, **{name: value}), traffic, row_bytes


def test_hash_in_the_tables_tells_plans_apart():
    problem = (Topology(2, 2), np.arange(16).reshape(4, 4), 8)
    tables = [
        make_plan(t, topology, scheduler=s, row_bytes=b).stage_table(0)
        for topology, t, b in (problem, *_variants(problem))
        for s in SCHEDULERS
    ]
    assert len({tuple(words[6:8]) for words in tables}) == len(tables)


@pytest.mark.sanitize
@pytest.mark.parametrize("scheduler", ["fast", "balanced", "relay", "rails"])
@hypothesis.settings(max_examples=150)
@hypothesis.given(problem=problems(topologies((2, 6)), largest=10**5))
def test_tables_have_room_for_every_plan(scheduler, problem):
    topology, _, _ = problem
    plan = scheduled(problem, scheduler)
    room = (_table_words(topology, scheduler) - pc.HEADER_WORDS - 2 * topology.num_devices) / 10
    if scheduler != "rails":  # which auto never takes
        assert _table_words(topology, "auto") >= _table_words(topology, scheduler)
    devices = range(topology.num_devices)
    used = max(len(pc.of_device(plan.transfers, r)) for r in devices)
    hypothesis.target(used / room)  # looks for what needs the most room
    assert used <= room


def _adversarial(n, m, rng):
    """Matrices that split into many stages and many pieces."""
    size = n * m
    powers = 2 ** rng.integers(0, 24, (size, size))
    yield "powers of two", powers
    yield "powers of two, sparse", powers * (rng.random((size, size)) < 0.4)
    yield "one row more than even", np.full((size, size), 1024) + (powers > 2**12)
    yield "all different", rng.permutation(size * size).reshape(size, size) + 1
    local = np.arange(size) % m
    yield "off their rails", np.where(local[:, None] == local, 0, powers)
    yield "from one device each", np.where(local[:, None] == 0, powers, 0)
    yield "between two devices each", np.where((local[:, None] == 0) & (local == m - 1), powers, 0)
    server = np.arange(size) // m
    rates = 3 ** rng.integers(0, 14, (n, n))
    yield "uneven servers", rates[server[:, None], server] + rng.integers(0, 2, (size, size))


@pytest.mark.parametrize("row_bytes", [1, 2**20])
@pytest.mark.parametrize(("n", "m"), [(2, 5), (3, 4), (6, 3), (9, 2), (10, 2), (12, 1), (13, 3)])
def test_tables_have_room_for_adversarial_plans(n, m, row_bytes, rng):
    topology = Topology(n, m)
    for scheduler in SCHEDULERS:
        words = _table_words(topology, scheduler)
        for name, traffic in _adversarial(n, m, rng):
            plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)
            pc.check_plan(plan, shortest=n < 10)
            for r in range(n * m):
                entries = len(pc.of_device(plan.transfers, r))
                needed = pc.HEADER_WORDS + 2 * n * m + 10 * entries
                assert needed <= words, f"{name}, device {r}"
                assert _core.check_table(plan.stage_table(r), n * m, r) == ""


@pytest.mark.parametrize("rows", [2**31, 2**40])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_table_refuses_blocks_beyond_int32(scheduler, rows):
    traffic = np.zeros((4, 4), int)
    traffic[1, 2] = rows
    plan = make_plan(traffic, Topology(2, 2), scheduler=scheduler)
    for r in range(4):  # on every device, so that all of them stop
        with pytest.raises(ArgumentError, match="a block of 2\\^31 rows or more does not fit"):
            plan.stage_table(r)
    traffic[1, 2] = 2**31 - 1
    words = make_plan(traffic, Topology(2, 2), scheduler=scheduler).stage_table(1)
    assert _core.check_table(words, 4, 1) == ""
    assert pc.decode_table(words)[1].tolist() == [0, 0, 2**31 - 1, 0]


def test_table_without_staging_where_int32_cannot_number_it():
    """Blocks fit, but the rows that one device passes on do not: they go out directly."""
    traffic = np.full((6, 6), 2**31 - 1)
    plan = make_plan(traffic, Topology(3, 2), scheduler="fast")
    direct = make_plan(traffic, Topology(3, 2), scheduler="direct")
    for r in range(6):
        words = plan.stage_table(r)
        assert _core.check_table(words, 6, r) == ""
        used = 16 + 2 * 6 + 10 * words[3]
        np.testing.assert_array_equal(words[:used][10:], direct.stage_table(r)[:used][10:])
        assert words[5] == 0


def test_traced_plan_refuses_blocks_beyond_int32():
    tables = traced_tables(Topology(4, 2), "fast")
    sizes = np.zeros((8, 8), np.uint32)
    sizes[3, 5] = 2**31
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match=r"a device sends 2\^31 rows or more to another; split the exchange\.",
    ):
        jax.block_until_ready(tables(sizes.ravel()))
    sizes[3, 5] -= 1
    assert _core.check_table(np.asarray(tables(sizes.ravel()))[3], 8, 3) == ""


def test_table_of_no_device():
    plan = make_plan(np.ones((4, 4), int), Topology(2, 2))
    for device in (-1, 4):
        with pytest.raises(ArgumentError, match=f"device must be from 0 to 3, got {device}."):
            plan.stage_table(device)


def _checksum(words):
    """The table's checksum: of every word in use but the one that holds it."""
    before = _hash_words(words[:8], 0x464A5431)
    after = words[9 : 16 + 2 * words[1] + 10 * words[3]]
    return np.array([_hash_words(after, before) & 0xFFFFFFFF], np.uint32).view(np.int32)[0]


def _hash_words(words, seed):
    """Five lanes, two values a step, each a pair of words."""
    mask, odd = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    body = np.ascontiguousarray(words).view(np.uint32).tolist()
    last = body[-1] if len(body) % 2 else 2**32
    seed = mix(seed ^ last)
    lanes = [mix((seed + i * odd) & mask) for i in range(5)]
    pairs = [low | high << 32 for low, high in zip(body[::2], body[1::2], strict=False)]
    for i in range(0, len(pairs), 2):
        first, second = [*pairs, 0][i : i + 2]
        product = (lanes[i // 2 % 5] ^ first) * (second ^ odd)
        lanes[i // 2 % 5] = product >> 64 ^ product & mask
    total = len(pairs)
    for lane in lanes:
        total = (mix(total ^ lane) + odd) & mask
    return mix(total)


@pytest.fixture
def table():
    """Device 1's table of a plan that has all phases, with chunks of 3 rows and more."""
    rng = np.random.default_rng(0)
    traffic = rng.integers(3, 40, (6, 6))
    plan = make_plan(traffic, Topology(2, 3), scheduler="fast")
    words = plan.stage_table(1)
    assert _core.check_table(words, 6, 1) == ""
    assert _checksum(words) == words[8]
    assert set(pc.decode_table(words)[3]["phase"].tolist()) == {0, 1, 2, 3}
    return words


HEADER_FAULTS = [
    ({0: 0}, "not a stage table"),
    ({1: 5}, "made for another number of devices"),
    ({2: 0}, "made for another device"),
    ({3: -1}, "more entries than words"),
    ({3: 2**31 - 1}, "more entries than words"),
    ({4: -1}, "a negative count in the header"),
    ({5: -1}, "a negative count in the header"),
    ({8: 12345}, "checksum does not match"),
    ({16: 1000}, "checksum does not match"),
]


@pytest.mark.sanitize
@pytest.mark.parametrize(("faults", "message"), HEADER_FAULTS)
def test_check_table_refuses_a_broken_header(table, faults, message):
    for word, value in faults.items():
        assert table[word] != value
        table[word] = value
    assert _core.check_table(table, 6, 1) == f"stage table: {message}"


@pytest.mark.sanitize
def test_check_table_refuses_tables_cut_short(table):
    used = 16 + 2 * 6 + 10 * table[3]
    assert _core.check_table(table[:used], 6, 1) == ""
    assert _core.check_table(table[: used - 1], 6, 1) == "stage table: more entries than words"
    assert _core.check_table(table[:20], 6, 1) == "stage table: more entries than words"
    for words in (0, 15):
        assert _core.check_table(table[:words], 6, 1) == "stage table: shorter than its header"


# Phase of the entry that is changed, what is changed, and what is said.
ENTRY_FAULTS = [
    (2, {"phase": 4}, "an entry's phase is unknown"),
    (2, {"phase": -1}, "an entry's phase is unknown"),
    (0, {"stage": 0}, "an entry's stage is out of range"),
    (2, {"stage": -1}, "an entry's stage is out of range"),
    (2, {"stage": 2**30}, "an entry's stage is out of range"),
    (1, {"src": 6}, "an entry's device is out of range"),
    (1, {"dst": -1}, "an entry's device is out of range"),
    (1, {"origin": 6}, "an entry's device is out of range"),
    (1, {"target": -1}, "an entry's device is out of range"),
    (2, {"src": 0, "dst": 3}, "an entry is of other devices"),
    (3, {"rows": 0}, "an entry moves no rows"),
    (3, {"rows": -1}, "an entry moves no rows"),
    (0, {"first_row": -1}, "an entry's rows are out of range"),
    (0, {"first_row": 2**31 - 1}, "an entry's rows are out of range"),
    (0, {"src_row": -2}, "an entry's staging rows are out of range"),
    (0, {"dst_row": 2**31 - 1}, "an entry's staging rows are out of range"),
]


def _refreshed(words):
    words[8] = _checksum(words)
    return words


@pytest.mark.sanitize
@pytest.mark.parametrize(("phase", "faults", "message"), ENTRY_FAULTS)
def test_check_table_refuses_a_broken_entry(table, phase, faults, message):
    entries = pc.decode_table(table)[3]
    entry = int(np.argmax(entries["phase"] == phase))
    for field, value in faults.items():
        assert entries[field][entry] != value
        entries[field][entry] = value
    assert _core.check_table(_refreshed(table), 6, 1) == f"stage table: {message}"


@pytest.mark.sanitize
@pytest.mark.parametrize("end", ["src", "dst"])
def test_check_table_keeps_to_the_staging_rows_of_its_device(table, end):
    entries = pc.decode_table(table)[3]
    mine = (entries[end] == 1) & (entries[f"{end}_row"] != pc.IN_PLACE)
    entry = int(np.argmax(mine))
    assert mine[entry]
    last = table[5] - entries["rows"][entry]
    entries[f"{end}_row"][entry] = last
    assert _core.check_table(_refreshed(table), 6, 1) == ""
    entries[f"{end}_row"][entry] = last + 1
    message = "stage table: an entry's staging rows are out of range"
    assert _core.check_table(_refreshed(table), 6, 1) == message


@pytest.mark.sanitize
@pytest.mark.parametrize("word", [16, 27])
def test_check_table_refuses_negative_rows_for_a_peer(table, word):
    table[word] = -1
    message = "stage table: a negative number of rows for a peer"
    assert _core.check_table(_refreshed(table), 6, 1) == message


@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=300
)
@hypothesis.given(data=st.data())
def test_check_table_notices_every_changed_bit(table, data):
    used = 16 + 2 * 6 + 10 * int(table[3])
    word = data.draw(st.sampled_from([0, 1, 2, 3, 8]) | st.integers(16, used - 1))
    words = table.view(np.uint32).copy()
    words[word] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert _core.check_table(words.view(np.int32), 6, 1).startswith("stage table: ")
