"""Exchanges simulated, flow by flow."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastjax import _core
from fastjax.checks import DEFAULT_ROW_BYTES, check_row_bytes, check_topology
from fastjax.errors import ArgumentError
from fastjax.host.plan import Plan
from fastjax.schedule import LOCAL, PHASES, REDISTRIBUTE, SCALE_OUT, TRANSFER_DTYPE
from fastjax.simulation.fabric import SYNCHRONIZATIONS, Fabric, Incast
from fastjax.simulation.timeline import MESSAGE_DTYPE, TIMED_DTYPE, Timeline
from fastjax.topology import Topology

_MOST_PIECES = 64
# Of the busiest link's time: what may lie between ends that are put together in exchanges of many
# flows (ffi/simulator/simulator.h).
_RESOLUTION = 1e-3


def simulate(
    plan: Plan,
    *,
    synchronization: str = "credit",
    incast: Incast | str = "none",
    oversubscription: float = 1.0,
) -> Timeline:
    """Simulates a plan on the fabric of its topology.

    Every device has four links: into and out of the fabric of its server, and of its NIC; they work
    in both directions at once. All that a device sends to another in one phase of one stage is a
    message. It is sent when its rows are there and the stage's turn has come, takes the topology's
    latency to start, and flows at its max-min fair share of the links it uses. Devices balance
    stage by stage; balancing goes before redistribution, and rows that stay inside servers use
    the rest of the links.

    Where a device sends to several in one stage, the k-th of those messages starts k times
    `Topology.transfer_overhead` later.

    Args:
      plan: from `fastjax.make_plan`.
      synchronization: how stages follow each other: one of `fastjax.simulation.SYNCHRONIZATIONS`,
        about "credit" between GPUs, and "window" between CPU hosts.
      incast: the loss where several senders meet at a NIC: a name of `fastjax.simulation.INCAST`,
        or an `Incast`. Results name it.
      oversubscription: what all NICs together could send, divided by what the core between
        servers carries; 1 for a core that is never short.

    Returns:
      The timeline of all transfers and messages.

    Raises:
      ArgumentError: plan is not a plan.
      OptionError: there is no such synchronization or incast, or oversubscription is below 1.
    """
    if not isinstance(plan, Plan):
        raise ArgumentError(f"plan must be a fastjax.Plan, got {plan!r}.")
    fabric = Fabric(synchronization, incast, oversubscription)
    about = plan.topology, plan.row_bytes, plan.scheduler, fabric
    found = _run(plan.transfers, plan.topology, plan.row_bytes, fabric)
    return Timeline(*about, *found, plan.planning_time(), plan.lower_bound())


def simulate_transfers(
    transfers: np.ndarray,
    topology: Topology,
    *,
    row_bytes: int = DEFAULT_ROW_BYTES,
    fabric: Fabric | None = None,
    balance_first: bool = False,
    pieces: int = 1,
) -> Timeline:
    """Simulates transfers that fastjax has not planned, as `simulate` does a plan's.

    Args:
      transfers: of `Plan.transfers`' dtype; shape (transfers,). Each row that they name has to come
        to its target, and once; which rows there are is what they say.
      topology: the servers, devices and rates.
      row_bytes: bytes of a row.
      fabric: how stages keep in step, what meeting senders lose, how narrow the core is.
      balance_first: nothing crosses before all balancing is done, everywhere.
      pieces: in how many pieces, 1 to 64, messages of transfers of one stage go; each is sent on
        as it comes.

    Returns:
      What happened when.

    Raises:
      ArgumentError: fabric or pieces is no such thing; or transfers are not of that dtype, name
        devices that the topology lacks, use a NIC that has failed, are of a phase that does not
        lead there, or wait for each other; or a row that they name comes to a device twice, does
        not come to its target, or is sent on from there or from where it has not come.
    """
    check_topology(topology)
    check_row_bytes(row_bytes)
    if fabric is not None and not isinstance(fabric, Fabric):
        raise ArgumentError(f"fabric must be a fastjax.simulation.Fabric, got {fabric!r}.")
    if not isinstance(pieces, (int, np.integer)) or not 1 <= pieces <= _MOST_PIECES:
        raise ArgumentError(f"pieces must be an integer from 1 to {_MOST_PIECES}, got {pieces!r}.")
    moved, row_bytes = _check_transfers(transfers, topology), int(row_bytes)
    fabric = fabric or Fabric()
    way = {"balance_first": bool(balance_first), "pieces": int(pieces)}
    found = _run(moved, topology, row_bytes, fabric, **way)
    bound = _lower_bound(moved, topology, row_bytes)
    return Timeline(topology, row_bytes, "transfers", fabric, *found, 0.0, bound)


def _run(
    transfers: np.ndarray,
    topology: Topology,
    row_bytes: int,
    fabric: Fabric,
    *,
    balance_first: bool = False,
    pieces: int = 1,
) -> tuple[np.ndarray, np.ndarray, float]:
    """`Timeline`'s transfers, messages and completion time, of transfers that are possible."""
    incast = fabric.incast
    assert isinstance(incast, Incast)  # names have been looked up
    most = max((count for count, _ in incast.points), default=0)
    counts = range(1, min(most, topology.num_devices) + 1)
    found: Any = _core.simulate(
        transfers.view(np.uint8),
        topology.words,
        row_bytes,
        SYNCHRONIZATIONS.index(fabric.synchronization),
        balance_first,
        pieces,
        float(fabric.oversubscription),
        [incast.efficiency(count) for count in counts],
        incast.count == "senders",
        _RESOLUTION,
    )
    if isinstance(found, str):
        raise ArgumentError(f"transfers: {found}.")
    records, first, last, number = found
    messages = records.view(MESSAGE_DTYPE)
    if number >= 0:
        stuck = messages[number]
        raise ArgumentError(
            f"transfers wait for each other: among others what device {stuck['src']} sends to "
            f"device {stuck['dst']} in phase {stuck['phase']} ({PHASES[stuck['phase']]}) of stage "
            f"{stuck['stage']}."
        )
    timed = np.zeros(len(transfers), TIMED_DTYPE)
    for name in TRANSFER_DTYPE.names or ():
        timed[name] = transfers[name]
    moved = first >= 0
    timed["start"][moved] = messages["start"][first[moved]]
    timed["end"][moved] = messages["end"][last[moved]]
    for shared in (messages, timed):
        shared.flags.writeable = False
    return timed, messages, float(messages["end"].max(initial=0.0))


def _check_transfers(transfers: Any, topology: Topology) -> np.ndarray:
    if not isinstance(transfers, np.ndarray) or transfers.dtype != TRANSFER_DTYPE:
        what = getattr(transfers, "dtype", type(transfers).__name__)
        raise ArgumentError(f"transfers must be an array of TRANSFER_DTYPE, got {what}.")
    moved = np.ascontiguousarray(transfers.ravel())

    def refuse(wrong: np.ndarray, what: str) -> None:
        if wrong.any():
            k = int(wrong.argmax())
            raise ArgumentError(f"transfers[{k}] = {moved[k]} {what}.")

    for name in ("src", "dst", "origin", "target"):
        strange = (moved[name] < 0) | (moved[name] >= topology.num_devices)
        refuse(strange, f"has a {name} that is none of the devices 0 to {topology.num_devices - 1}")
    refuse((moved["phase"] < LOCAL) | (moved["phase"] > REDISTRIBUTE), "is of no phase from 0 to 3")
    refuse(moved["rows"] < 0, "has fewer than 0 rows")
    row = moved["first_row"]
    refuse((row < 0) | (row > 2**62), "has a first_row that is not from 0 to 2**62")
    refuse(moved["rows"] > 2**62 // max(1, len(moved)), "has more rows than can be added up")
    refuse((moved["stage"] < -1) | (moved["stage"] == 2**31 - 1), "is of no stage below 2**31 - 1")
    local = topology.devices_per_server
    crosses = moved["src"] // local != moved["dst"] // local
    out = moved["phase"] == SCALE_OUT
    refuse(crosses & ~out, "leaves its server, which phase 2 does only")
    refuse(out & ~crosses & (moved["src"] != moved["dst"]), "is of phase 2 and stays in its server")
    failed = np.isin(moved["src"], topology.failed_nics) | np.isin(
        moved["dst"], topology.failed_nics
    )
    refuse(out & crosses & failed, "uses a NIC that has failed")
    return moved


def _lower_bound(transfers: np.ndarray, topology: Topology, row_bytes: int) -> float:
    """`Plan.lower_bound` of the traffic that they carry."""
    devices = topology.num_devices
    moved = transfers["src"] != transfers["dst"]
    arriving = transfers[moved & (transfers["dst"] == transfers["target"])]
    pairs = arriving["origin"].astype(np.int64) * devices + arriving["target"]
    traffic = np.zeros(devices * devices, np.int64)
    np.add.at(traffic, pairs, arriving["rows"])
    number = _core.fallback_scheduler  # any has the same bound
    square = traffic.reshape(devices, devices)
    return _core.HostPlan(square, topology.words, number, row_bytes).lower_bound()
