"""What the others do when a process of a job is hurt: some faults here, all by `make faults`."""

import dataclasses
import re
from collections.abc import Iterator

import fault_cells
import fault_kinds
import pytest
from fault_cells import AFTER, BEFORE, DURING, EXIT, LAYER, Cell, check
from fault_kinds import STOP, Slow, Stranger, World
from fault_scene import HANG, SceneError
from leftovers import Leftovers

HERE = World()
UNSENT, MET, BALANCE, FIRST, MIDDLE, LAST, REDISTRIBUTION, _, TWO_MET, TWO_MIDDLE = DURING


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither processes nor shared memory; and jobs of later tests start where these ended."""
    before = Leftovers()
    yield
    assert before.after(HANG) == []


@pytest.mark.parametrize(
    ("fault", "phases"),
    [
        pytest.param(STOP, (UNSENT, REDISTRIBUTION, TWO_MET, TWO_MIDDLE, EXIT), id="stop"),
        pytest.param(Slow(), (BALANCE, LAST, TWO_MIDDLE), id="slow", marks=pytest.mark.nightly),
        pytest.param(Stranger(), (MET, MIDDLE, EXIT), id="stranger"),
        pytest.param(STOP, LAYER[:1], id="stop, counts"),
    ],
)
def test_all_live(fault: fault_kinds.Fault, phases: tuple[fault_cells.Phase, ...]) -> None:
    cells = list(fault_cells.living_during(fault, HERE, phases))
    assert [cell.phase for cell in cells] == [phase.name for phase in phases]
    assert all(cell.then == "right" for cell in cells)
    # The faults are real: whoever must miss a process that stands still does.
    for cell in cells:
        assert any(cell.survivors) == (fault is STOP and cell.phase != EXIT.name)


def test_a_stop_before_there_is_a_network() -> None:
    cell = fault_cells.living_bootstrap(STOP, HERE, BEFORE)
    assert all("process 1, which has not joined" in said for said in cell.survivors)
    assert "gave up" in (cell.victim or "")
    assert cell.then == "right"


@pytest.mark.parametrize(
    "phase",
    [AFTER, MIDDLE, EXIT, LAYER[5]],  # in the last, too, a process is gone that has met
    ids=lambda phase: phase.name,
)
def test_kill(phase: fault_cells.Phase) -> None:
    cell = fault_cells.deadly(HERE, phase)
    assert all(cell.survivors) == (phase is not EXIT)


@pytest.mark.parametrize("call", ["scheduler", "program"])
def test_wrong_program(call: str) -> None:
    cell = fault_cells.wrong_program(HERE, call)
    expected = {
        "scheduler": "plans with another topology, scheduler or row size",
        # It may wait a little longer than they do, and give up before them.
        "program": r"which (is at another call|was at another call, and gave that up): "
        r"fast_ragged_all_to_all over axis 'x' \(channel 2 of jit_something_else\)",
    }
    assert all(re.search(expected[call], said) for said in cell.survivors)


def test_wrong_secret() -> None:
    cell = fault_cells.wrong_secret(HERE)
    assert all("for process 1 (" in said for said in cell.survivors)


RIGHT = {"error": "", "right": True, "intact": True}
LOST = "UNAVAILABLE: fast_ragged_all_to_all over axis 'x' (channel 2): stage 1 of 3: process 1 gone"


@pytest.mark.parametrize(
    ("wrong", "fails", "reason"),
    [
        ({"right": False}, True, "a wrong result"),
        ({"intact": False}, True, "what was sent has changed"),
        ({"error": LOST}, False, "nothing should have failed"),
        ({"error": "INTERNAL: something"}, True, "names no exchange"),
        ({"error": LOST.replace("1 gone", "2")}, True, "does not name process 1"),
        ({"error": LOST.replace("stage 1 of 3", "")}, True, "names no stage"),
    ],
)
def test_what_no_fault_excuses(wrong: dict[str, object], fails: bool, reason: str) -> None:
    cell = Cell("", FIRST.name, "")
    with pytest.raises(SceneError, match=reason):
        check(cell, RIGHT | wrong, "process 1", fails=fails)
    # Nothing else is wrong with it.
    assert check(cell, RIGHT, "process 1", fails=fails) == ""
    assert check(cell, RIGHT | {"error": LOST}, "process 1", fails=True) == LOST
    if "stage" in reason:
        planning = dataclasses.replace(cell, phase=UNSENT.name)
        assert check(planning, RIGHT | wrong, "process 1", fails=True)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", fault_cells.runs(HERE))
def test_on_one_host(name: str) -> None:
    assert fault_cells.runs(HERE)[name]()


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[World]:
    reason = fault_kinds.no_hosts()
    if reason:
        pytest.skip(f"no emulated cluster: {reason}")
    with fault_kinds.three_hosts("fjm") as world:
        yield world


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", fault_cells.runs(fault_kinds.ANY_HOSTS))
def test_on_three_hosts(name: str, three_hosts: World) -> None:
    assert fault_cells.runs(three_hosts)[name]()
