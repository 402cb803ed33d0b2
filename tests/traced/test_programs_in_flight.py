"""Each launch gets rows of its own program and step, whatever else the processes have in flight."""

import dataclasses
import itertools
from pathlib import Path

import multiprocess
import programs_in_flight
import pytest
from programs_in_flight import KINDS, Scenario

FILE = programs_in_flight.__file__
NOT_KEPT = {"JAX_COMPILATION_CACHE_DIR": ""}  # by the cache of all tests

PARTS = 6  # that take some minutes each
SOME = [
    Scenario(("fused", "fused"), late=0.5, late_at=1),
    Scenario(("planned", "planned"), late=0.5, late_at=5, same_name=False),
    Scenario(("fused", "planned", "loop"), late=0.3, late_at=2, same_shape=False),
    Scenario(("fused", "fused"), same_function=True, forgets="all", late=0.3, late_at=4, who=0),
    Scenario(("copies", "branch", "fused"), forgets="one", late=0.3, late_at=1),
    Scenario(("chunks", "layer"), forgets="all", inspects=True, late=0.3, late_at=4),
]


def fly(scenarios: list[Scenario], processes: int, devices: int, cache: str = "") -> None:
    results = multiprocess.run(
        FILE,
        "fly_all",
        processes=processes,
        devices=devices,
        arguments={"scenarios": [dataclasses.asdict(s) for s in scenarios], "cache": cache},
        environment=NOT_KEPT,
        seconds=1200,
    )
    assert [result["found"] for result in results] == [{}] * processes


def test_compiled_and_then_read_from_a_cache_in_one_process(tmp_path: Path) -> None:
    fly(SOME[2:], 2, 2, str(tmp_path))
    cached = sorted(path.name for path in tmp_path.glob("*-cache"))
    assert len([name for name in cached if "step" in name]) >= len(SOME[2:])
    fly(SOME[2:], 2, 2, str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*-cache")) == cached


def test_four_processes() -> None:
    fly(SOME[:2], 4, 1)


@pytest.mark.parametrize(
    "how", ["fails", "another", pytest.param("leaves", marks=pytest.mark.nightly)]
)
def test_a_launch_that_one_process_skips(how: str) -> None:
    here, there = multiprocess.run(
        FILE,
        "skip",
        processes=2,
        devices=2,
        arguments={"how": how},
        environment={"FASTJAX_TIMEOUT": "3"},
    )
    skipped = f"program 0, step {programs_in_flight.SKIPPED[how]}"
    assert "did not reach this call" in here.pop(skipped)
    if how == "fails":
        # It is the same launch of the program in both, and so are those after it.
        assert "send_sizes" in there.pop(skipped)
    if how == "another":
        # Nobody comes to that one, and then to so many launches of it.
        for verdict in (
            there.pop(skipped),
            *(each.pop("program 1, step 4") for each in (here, there)),
        ):
            assert "did not reach this call" in verdict
    assert set(here.values()) == set(there.values()) == {"right"}


def test_executables_that_are_loaded(tmp_path: Path) -> None:
    """Nothing says from where XLA counts; if all load them, they count alike."""

    def load(*who: int) -> list[str]:
        how = {"arguments": {"folder": str(tmp_path), "who": who}, "environment": NOT_KEPT}
        results = multiprocess.run(FILE, "load", processes=2, devices=2, **how)
        return [verdict for result in results for verdict in result.values()]

    assert set(load()) == {"right"}
    assert set(load(0, 1)) == {"right"}
    for verdict in load(0):
        assert "cannot be told to be the same" in verdict
        assert verdict.count("of jit_step") == 2  # both are named


def everything() -> list[list[Scenario]]:
    """All of the matrix, in jobs that take a few minutes each."""
    names_and_shapes = list(itertools.product((True, False), repeat=2))
    lateness = [(0, 0, 0), (3, 0, 0), (3, 1, 1), (10, 1, 0), (3, 5, 1)]
    found = []
    for number, kind in enumerate(KINDS):
        others = [kind, ("fused", "layer")[number % 2]]
        for count, (name, shape), (late, at, who) in itertools.product(
            (2, 3), names_and_shapes, lateness
        ):
            kinds = tuple(itertools.islice(itertools.cycle(others), count))
            found.append(Scenario(kinds, name, shape, late=late, late_at=at, who=who))
        for forgets, same, inspects in itertools.product(
            ("all", "one", "none"), (True, False), (True, False)
        ):
            found.append(
                Scenario((kind, kind), same_function=same, forgets=forgets, inspects=inspects)
            )
    return [found[start::PARTS] for start in range(PARTS)]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_everything(processes: int, devices: int, part: int, tmp_path: Path) -> None:
    for _ in ("compiled in all", "read from a cache in one"):
        fly(everything()[part], processes, devices, str(tmp_path))
