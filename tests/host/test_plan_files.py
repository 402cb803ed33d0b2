"""Plans in files: read back they are the same, and what is no plan is refused."""

import contextlib
import copy
import json
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from plan_problems import SCHEDULERS, problems, scheduled
from refusals import refused

from fastjax import Plan, Topology, _core, make_plan, optimal, traffic
from fastjax.errors import ArgumentError

LOADING = hypothesis.settings(
    max_examples=40,
    suppress_health_check=[
        *hypothesis.settings().suppress_health_check,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)


def reloaded(plan, folder):
    path = folder / "a.plan"
    plan.save(path)
    return Plan.load(path)


def assert_same(plan, other):
    """Bit for bit, and in what they say of themselves."""
    assert repr(other) == repr(plan)
    assert other.topology == plan.topology
    assert other.row_bytes == plan.row_bytes
    assert other.predicted_time() == plan.predicted_time()
    assert other.explain() == plan.explain()
    np.testing.assert_array_equal(other.traffic, plan.traffic)
    assert other.transfers.tobytes() == plan.transfers.tobytes()
    for mine, theirs in zip(plan.matchings, other.matchings, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for device in range(plan.topology.num_devices):
        assert other.stage_table(device).tobytes() == plan.stage_table(device).tobytes()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@LOADING
@hypothesis.given(problem=problems(largest=10**4), transposed=st.booleans())
def test_loaded_plans_are_the_same(tmp_path, scheduler, problem, transposed):
    plan = scheduled(problem, scheduler)
    plan = plan.transpose() if transposed else plan
    assert_same(plan, reloaded(plan, tmp_path))


def test_loaded_plans_that_were_solved(tmp_path, monkeypatch):
    matrix = traffic.pair_zipf(8, 900)
    plan = make_plan(matrix, Topology(4, 2), scheduler="optimal", row_bytes=4096)
    monkeypatch.setattr(optimal, "solve_stages", None)  # what was solved is in the file
    assert_same(plan, reloaded(plan, tmp_path))
    assert_same(plan.transpose(), reloaded(plan.transpose(), tmp_path))
    assert_same(plan, pickle.loads(pickle.dumps(plan)))


def test_loaded_plans_of_unequal_nics(tmp_path):
    topology = Topology(2, 3, nic_bandwidths=(50e9, 0, 25e9, 50e9, 50e9, 1.5), incast_loss=0.75)
    plan = make_plan(traffic.pair_zipf(6, 999), topology, row_bytes=512)
    assert_same(plan, reloaded(plan, tmp_path))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        make_plan(np.ones((2, 2), int), Topology(2, 1)).save(tmp_path / "no folder" / "a.plan")


@pytest.fixture
def saved(tmp_path):
    """A plan whose stages were solved for."""
    matrix = traffic.pair_zipf(6, 990)
    plan = make_plan(matrix, Topology(3, 2), scheduler="optimal", row_bytes=4096)
    path = tmp_path / "saved.plan"
    plan.save(path)
    return path


def change(path, facts, arrays):
    """The file again, with some of its facts or arrays changed; None leaves one out."""
    with np.load(path) as archive:
        parts = dict(archive)
    told = json.loads(str(parts["facts"]))
    for name, value in facts.items():
        told[name] = value
        if value is None:
            del told[name]
    parts |= {"facts": np.array(json.dumps(told))} | arrays
    parts = {name: part for name, part in parts.items() if part is not None}
    with path.open("wb") as file:
        np.savez(file, **parts)


def of_topology(**changed):
    return {"topology": {"servers": 3, "devices_per_server": 2} | changed}


def matched(which, targets, weight, kind=np.int16):
    targets = np.array([targets], kind)
    return {f"{which}_targets": targets, f"{which}_weights": np.array([weight])}


FAILED = {"nic_bandwidths": [1, 1, 1, 1, 1, 0]}
ABSENT = "is not a file in the archive"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"format": "fastjax-plan-file-0"}, "format 'fastjax-plan-file-0', not 'fastjax-plan-"),
        ({"format": None}, "'format'"),
        ({"stages": None}, "'stages'"),
        ({"stages": "many"}, "invalid literal for int() with base 10: 'many'"),
        ({"row_bytes": float("inf")}, "cannot convert float infinity to integer"),
        ({"row_bytes": 0}, "row_bytes must be an integer from 1 to 2**40 - 1, got 0."),
        ({"scheduler": "best"}, "scheduler must be one of auto, "),
        ({"topology": 7}, "must be a mapping"),
        ({"topology": {"servers": 3}}, "devices_per_server"),
        (of_topology(colour=1), "unexpected keyword argument 'colour'"),
        (of_topology(servers=0), "servers must be an integer from 1"),
        (of_topology(servers=2), "matchings of 2 servers have shape "),
        (of_topology(**FAILED) | {"scheduler": "direct"}, "that of device 5 has failed"),
    ],
    ids=str,
)
def test_files_with_other_facts(saved, facts, told):
    change(saved, facts, {})
    refused(ArgumentError, lambda: Plan.load(saved), f"{saved} is no plan of fastjax: ", told)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"facts": None}, f"facts {ABSENT}"),
        ({"traffic": None}, f"traffic {ABSENT}"),
        ({"solved_weights": None}, f"solved_weights {ABSENT}"),
        ({"traffic": np.ones((4, 4), int)}, "traffic must have shape (6, 6) for a topology of"),
        ({"traffic": np.ones((6, 6))}, "traffic must be integers (rows), got float64."),
        ({"traffic": -np.ones((6, 6), int)}, "traffic must be 0 or more, got traffic[0, 0]"),
        (matched("found", [0, 0, 0], 1, float), "matchings are float64 and int64, not a matrix"),
        ({"solved_weights": np.ones((1, 1), int)}, "matchings are int16 and int64, not a "),
        ({"solved_weights": np.ones(99, int)}, "99 matchings of 3 servers have shape "),
        (matched("solved", [0, 0, 0], 1), "matchings are not one-to-one"),
        (matched("solved", [1, 3, 0], 1), "matchings are not one-to-one"),
        (matched("solved", [1, 2, 0], 0), "a matching's weight is not positive"),
    ],
    ids=lambda v: "" if isinstance(v, dict) else v,
)
def test_files_with_other_arrays(saved, arrays, told):
    change(saved, {}, arrays)
    refused(ArgumentError, lambda: Plan.load(saved), f"{saved} is no plan of fastjax: ", told)


@pytest.mark.parametrize(
    ("facts", "arrays"),
    [
        ({"stages": 1}, {}),
        ({}, matched("found", [1, 2, 0], 1)),
        ({}, {"traffic": np.full((6, 6), 10**6)}),
    ],
)
def test_plans_that_would_be_others(saved, facts, arrays):
    change(saved, facts, arrays)
    refused(ArgumentError, lambda: Plan.load(saved), f"{saved} is a plan of a version of fastjax")


EMPTY_ARCHIVE = b"PK\x05\x06" + bytes(18)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"no plan at all\n" * 99, b"\x93NUMPY", EMPTY_ARCHIVE]
)
def test_files_of_other_kinds(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    refused(ArgumentError, lambda: Plan.load(path), "other is no plan of fastjax: ")


def test_arrays_that_are_no_archive_of_plain_arrays(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.ones(3))
    refused(ArgumentError, lambda: Plan.load(path), "array.npy is no plan", "not an archive of")
    path = tmp_path / "objects.npz"
    np.savez(path, facts=np.array([{}], object), allow_pickle=True)
    refused(ArgumentError, lambda: Plan.load(path), "Object arrays cannot be loaded")


@LOADING
@hypothesis.given(data=st.data())
def test_damaged_files(saved, data):
    """Cut short or with bits changed, a file is refused, or means the same."""
    content = bytearray(saved.read_bytes())
    plan = Plan.load(saved)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = saved.with_suffix(".damaged")
    damaged.write_bytes(content)
    try:
        loaded = Plan.load(damaged)
    except ArgumentError as error:
        said = str(error)
    else:
        assert_same(plan, loaded)
        said = f"{damaged} is as good as new"
    assert said.startswith(f"{damaged} is ")


def test_a_damaged_end(saved):
    """There an archive says where its parts are: some would lie before the file."""
    content = saved.read_bytes()
    end = content.rindex(b"PK\5\6")
    plan = Plan.load(saved)
    damaged = saved.with_suffix(".damaged")
    for at in range(end, len(content)):
        for bit in (1, 128):
            changed = bytearray(content)
            changed[at] ^= bit
            damaged.write_bytes(changed)
            with contextlib.suppress(ArgumentError):
                assert_same(plan, Plan.load(damaged))


@pytest.mark.parametrize("scheduler", ["auto", "balanced"])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_and_pickles_are_the_same(scheduler, again):
    matrix = traffic.pair_zipf(16, 1000)
    plan = make_plan(matrix, Topology(2, 8), scheduler=scheduler, row_bytes=64).transpose()
    assert again(plan) is not plan
    assert_same(plan, again(plan))


def test_a_pickle_of_another_version(monkeypatch):
    plan = make_plan(np.ones((4, 4), int), Topology(2, 2), scheduler="fast")
    written = pickle.dumps(plan)
    monkeypatch.setattr(_core.HostPlan, "num_stages", 99)
    told = "the pickle is a plan of a version of fastjax"
    refused(ArgumentError, lambda: pickle.loads(written), told)
