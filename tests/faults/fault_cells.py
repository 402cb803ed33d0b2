"""Faults at phases: what is done to a process of a job, when, and what must come of it.

Whatever happens: survivors that fail say within the time-out which process and which exchange it
is about, and, once rows move, at which stage; nobody hangs; a result that is there is right in
every row, as is what was sent; where all processes live, the next exchange works.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import fault_job
from fault_kinds import LIVING, Fault, Link, Partition, Slow, Stranger, World
from fault_scene import DEVICES, PROCESSES, VICTIM, Scene, SceneError


@dataclasses.dataclass(frozen=True)
class Phase:
    """A time of an exchange.

    Attributes:
      name: for people.
      place: as FASTJAX_FAULT takes it; "" of those in which no exchange is in flight.
      servers: of the topology; two of them share a process of three, so that balance and
        redistribution, too, go through the network.
      at_once: how many exchanges the program has in flight; the victim stops in the first.
      layer: of a layer of experts in place of exchanges, the launch in which the victim stops.
      balanced: whether the layer's experts are levelled.
    """

    name: str
    place: str = ""
    servers: int = 3
    at_once: int = 1
    layer: int | None = None
    balanced: bool = False

    @property
    def round(self) -> dict[str, Any]:
        """As `fault_job.play` takes it."""
        layer = "" if self.layer is None else "balanced" if self.balanced else "usual"
        return {"servers": self.servers, "at_once": self.at_once, "layer": layer}

    def stop(self, launches: int) -> str:
        """As FASTJAX_FAULT takes it, after so many launches."""
        return f"{self.place}@{launches + (self.layer or 0)}"


BEFORE = Phase("bootstrap, addresses not published")
AFTER = Phase("bootstrap, no message yet")
EXIT = Phase("exit")
DURING = (
    Phase("planning, metadata not sent", "meet"),
    Phase("planning, metadata met", "met"),
    Phase("balance", "balance", 2),
    Phase("first stage", "stage 1"),
    Phase("middle stage", "stage 2"),
    Phase("last stage", "stage 3"),
    Phase("redistribution", "redistribution", 2),
    Phase("all rows moved", "end"),
    Phase("two at once, metadata met", "met", at_once=2),
    Phase("two at once, middle stage", "stage 2", at_once=2),
)
PHASES = (BEFORE, AFTER, *DURING, EXIT)
# Of a layer whose tokens cross once. Each has a job of its own: the launches of one that fails are
# as many as it came to.
LAYER = (
    Phase("layer: counts not sent", "meet", layer=0),
    Phase("layer: sizes not sent to plan", "meet", layer=1),
    Phase("layer: first stage to experts", "stage 1", layer=2),
    # 3 and 4 are inside servers, and so inside processes.
    Phase("layer: metadata not sent of the way back", "meet", layer=5),
    Phase("layer: first stage back", "stage 1", layer=5),
    # Rows of this exchange are params of experts that devices of the server compute for, too.
    Phase("layer: metadata met of the weights of copies", "met", layer=3, balanced=True),
)
_OWN = range(VICTIM * DEVICES, (VICTIM + 1) * DEVICES)
_OWN_DEVICE = rf"waited [\d.]+ s for device\(s\) ({'|'.join(map(str, _OWN))}), which did not arrive"
# Where two are in flight, the error may be that of the other one.
ROWS = frozenset(phase.name for phase in (*DURING[1:7], LAYER[2], LAYER[4]))


@dataclasses.dataclass
class Cell:
    """What came of a fault at a phase.

    Attributes:
      fault, phase, where: of what.
      survivors: what those said that were left: errors, or "" for a right result.
      victim: what the victim said, if it could.
      seconds: from the fault, or the begin of the exchange, to the last survivor's error or result.
      then: what came of the next exchange: "right", or the errors.
    """

    fault: str
    phase: str
    where: str
    survivors: list[str] = dataclasses.field(default_factory=list)
    victim: str | None = None
    seconds: float = 0.0
    then: str = ""


def _expect(condition: object, what: str, cell: Cell, report: dict[str, Any]) -> None:
    if not condition:
        raise SceneError(f"{cell.fault}, {cell.phase}: {what}: {report}")


def check(cell: Cell, report: dict[str, Any], about: str | None, *, fails: bool) -> str:
    """What a process said of an exchange, if that may be said."""
    _expect(report["intact"], "what was sent has changed", cell, report)
    error = report["error"]
    if not error:
        _expect(report["right"], "a wrong result", cell, report)
        return ""
    _expect(fails, "nothing should have failed", cell, report)
    _expect(re.search(f"{fault_job.CALLS} over axis", error), "names no exchange", cell, report)
    if about:
        _expect(about in error, f"does not name {about}", cell, report)
    if cell.phase in ROWS:
        named = re.search(r"stage \d+ of \d+|inside a server", error)
        _expect(named, "names no stage", cell, report)
    return error


def _survivors(cell: Cell, scene: Scene, number: int, struck: float, *, fails: bool) -> None:
    ends = []
    for process in scene.survivors:
        report = scene.report(process, f"round {number}")
        said = check(cell, report, f"process {VICTIM}", fails=fails)
        cell.survivors.append(said)
        ends.append(report["ended"] - max(struck, report["began"]))
    cell.seconds = round(max(ends), 2)


def _all_right(cell: Cell, scene: Scene, number: int) -> None:
    for process in range(PROCESSES):
        check(cell, scene.report(process, f"round {number}"), None, fails=False)
    cell.then = "right"


def _strike(cell: Cell, fault: Fault, scene: Scene, world: World, number: int) -> None:
    """The fault during a round in which the victim stops, and the round after it."""
    # Where it cannot reach jax.distributed's store, it waits for it, and JAX gives it time.
    waits = fault.stands or (isinstance(fault, Partition) and cell.phase == BEFORE.name)
    struck = scene.until_stopped()
    fault.strike(scene, world)
    try:
        _survivors(cell, scene, number, struck, fails=fault.fails)
        if fault.stands:
            scene.go(number + 1)  # they wait for it
        if not waits:
            report = scene.report(VICTIM, f"round {number}")
            cell.victim = check(cell, report, "process ", fails=fault.fails)
    finally:
        fault.undo(scene, world)
    if waits:
        report = scene.report(VICTIM, f"round {number}")
        # When it goes on, the time of one of its devices may be up before the other comes.
        own = re.search(_OWN_DEVICE, report["error"] or "") if fault.stands else None
        cell.victim = check(cell, report, own[0] if own else "process ", fails=fault.fails)
    if not fault.stands:
        scene.go(number + 1)
    _all_right(cell, scene, number + 1)


def living_during(
    fault: Fault, world: World, phases: tuple[Phase, ...] = (*DURING, EXIT)
) -> Iterator[Cell]:
    """A fault that all processes outlive, at phases of exchanges of one job, and at its exit."""
    during = [phase for phase in phases if phase.place]
    rounds = [{"servers": 3}]
    stops = []
    for phase in during:
        stops.append(phase.stop(sum(one.get("at_once", 1) for one in rounds)))
        rounds += [{**phase.round, "width": fault.width}] * 2
    at_exit = EXIT in phases
    with world.scene(rounds, stops=",".join(stops), exit_stop=at_exit) as scene:
        scene.ready()
        scene.go(0)
        _all_right(Cell(fault.name, "before any", world.name), scene, 0)
        for i, phase in enumerate(during):
            cell = Cell(fault.name, phase.name, world.name)
            scene.go(2 * i + 1)
            _strike(cell, fault, scene, world, 2 * i + 1)
            yield cell
        if at_exit:
            yield _living_exit(fault, scene, world)
        scene.leave(alive=True)


def _living_exit(fault: Fault, scene: Scene, world: World) -> Cell:
    cell = Cell(fault.name, EXIT.name, world.name)
    scene.tell("end")
    struck = scene.until_stopped()
    fault.strike(scene, world)
    try:
        _closed(cell, scene, struck)
    finally:
        fault.undo(scene, world)
    scene.report(VICTIM, "closed")
    cell.then = "right"
    return cell


def _closed(cell: Cell, scene: Scene, struck: float) -> None:
    """Survivors leave."""
    ends = [scene.report(process, "closed")["at"] - struck for process in scene.survivors]
    cell.survivors = [""] * len(ends)
    cell.seconds = round(max(ends), 2)


def living_bootstrap(fault: Fault, world: World, phase: Phase) -> Cell:
    """The same, before there is any exchange."""
    cell = Cell(fault.name, phase.name, world.name)
    when = "before" if phase is BEFORE else "after"
    with world.scene([{"servers": 3}] * 2, bootstrap_stop=when) as scene:
        scene.until_stopped()
        scene.ready(scene.survivors)
        if when == "after":
            scene.ports[VICTIM] = sorted(fault_job.listening(str(scene.job.processes[VICTIM].pid)))
        scene.go(0)
        if phase is BEFORE and isinstance(fault, Link):
            _without_network(cell, fault, scene, world)
            scene.leave(alive=False)
        else:
            _strike(cell, fault, scene, world, 0)
            scene.leave(alive=True)
    return cell


def _without_network(cell: Cell, fault: Fault, scene: Scene, world: World) -> None:
    """One NIC is down when the victim opens its network: it cannot, and tells the others."""
    struck = scene.until_stopped()
    fault.strike(scene, world)
    try:
        cell.victim = scene.report(VICTIM, "ready")["error"]
        _expect("cannot be opened" in cell.victim, "opened it", cell, {})
        _survivors(cell, scene, 0, struck, fails=True)
        scene.go(1)
        _again(cell, scene, 1)
    finally:
        fault.undo(scene, world)


KILL = "kill -9"
RESTART = "kill -9, then restart"


def deadly(world: World, phase: Phase, *, restart: bool = False) -> Cell:
    """The victim is killed, and may come back; survivors fail, and so do their next exchanges."""
    cell = Cell(RESTART if restart else KILL, phase.name, world.name)
    when = {BEFORE: "before", AFTER: "after"}.get(phase, "")
    rounds = [{"servers": 3}, phase.round, phase.round]
    rounds = rounds[: 2 if when else 3]
    stops = phase.stop(1) if phase.place else ""
    with world.scene(rounds, stops=stops, bootstrap_stop=when, exit_stop=phase is EXIT) as scene:
        number = 0
        if not when:
            scene.ready()
            scene.go(0)
            _all_right(cell, scene, 0)
            number = 1
        if phase is EXIT:
            for number in (1, 2):
                scene.go(number)
                _all_right(cell, scene, number)
            scene.tell("end")
        elif not when:
            scene.go(1)
        struck = scene.until_stopped()
        scene.kill()
        if when:
            scene.ready(scene.survivors)
            scene.go(0)
        if phase is EXIT:
            _closed(cell, scene, struck)
        else:
            _survivors(cell, scene, number, struck, fails=True)
            if restart:
                cell.then = scene.restart()
                return cell
            scene.go(number + 1)
            _again(cell, scene, number + 1)
        scene.leave(alive=False)
    return cell


def _again(cell: Cell, scene: Scene, number: int) -> None:
    """The next exchange of survivors fails as well, and says so."""
    said = []
    for process in scene.survivors:
        report = scene.report(process, f"round {number}")
        unstaged = dataclasses.replace(cell, phase="next")
        said.append(check(unstaged, report, f"process {VICTIM}", fails=True))
    _expect(all(said), "a dead process took part", cell, {"errors": said})
    cell.then = max(said, key=len)


def wrong_program(world: World, call: str) -> Cell:
    """The victim calls something else, once; all processes say so, and go on with another call."""
    cell = Cell(f"wrong program: another {call}", DURING[0].name, world.name)
    rounds = [{"servers": 3}, {"servers": 3, "calls": call}, {"servers": 2}]
    with world.scene(rounds) as scene:
        scene.ready()
        scene.go(0)
        _all_right(cell, scene, 0)
        scene.go(1)
        _survivors(cell, scene, 1, 0.0, fails=True)
        report = scene.report(VICTIM, "round 1")
        cell.victim = check(cell, report, "process ", fails=True)
        _expect(all(cell.survivors) and cell.victim, "nobody noticed", cell, report)
        scene.go(2)
        _all_right(cell, scene, 2)
        scene.leave(alive=True)
    return cell


def wrong_secret(world: World) -> Cell:
    """The victim's messages prove nothing: nobody listens to it, nor it to them."""
    cell = Cell("wrong secret", AFTER.name, world.name)
    with world.scene([{"servers": 3}], wrong_secret=True) as scene:
        scene.ready()
        scene.go(0)
        _survivors(cell, scene, 0, 0.0, fails=True)
        report = scene.report(VICTIM, "round 0")
        cell.victim = check(cell, report, "process ", fails=True)
        _expect(all(cell.survivors) and cell.victim, "somebody believed it", cell, report)
        for process in range(PROCESSES):
            _expect(scene.report(process, "round 0")["refused"], "nothing refused", cell, report)
        cell.then = "the same"
        scene.leave(alive=True)
    return cell


Runs = dict[str, Callable[[], list[Cell]]]


def runs(world: World, faults: tuple[Fault, ...] = LIVING) -> Runs:
    """The whole matrix of a world: jobs by name, each of one or more cells."""
    found: Runs = {}
    for fault in faults:
        if fault.needs_hosts and world.fabric is None:
            continue
        if isinstance(fault, Stranger | Slow) and world.fabric is not None:
            continue  # not in their network; and there, links are slow
        found |= _living(fault, world)
    for phase in (*PHASES, *LAYER):
        found[f"{KILL}: {phase.name}"] = functools.partial(_alone, deadly, world, phase)
    if world.fabric is None:
        for phase in (BEFORE, AFTER, DURING[0], DURING[4]):
            found[f"{RESTART}: {phase.name}"] = functools.partial(
                _alone, deadly, world, phase, restart=True
            )
        for call in fault_job.DIFFERENT:
            found[f"wrong program: {call}"] = functools.partial(_alone, wrong_program, world, call)
        found["wrong secret"] = functools.partial(_alone, wrong_secret, world)
    return found


def _living(fault: Fault, world: World) -> Runs:
    # Bound early, by partial: the loops go on.
    during = functools.partial(_listed, living_during, fault, world)
    found: Runs = {f"{fault.name}: exchanges": during}
    for phase in LAYER:
        found[f"{fault.name}: {phase.name}"] = functools.partial(during, (phase,))
    for phase in (BEFORE, AFTER):
        if phase is BEFORE and isinstance(fault, Stranger):
            continue  # there is no port yet
        found[f"{fault.name}: {phase.name}"] = functools.partial(
            _alone, living_bootstrap, fault, world, phase
        )
    return found


def _listed(play: Callable[..., Iterator[Cell]], *arguments: Any) -> list[Cell]:
    return list(play(*arguments))


def _alone(play: Callable[..., Cell], *arguments: Any, **options: Any) -> list[Cell]:
    return [play(*arguments, **options)]
