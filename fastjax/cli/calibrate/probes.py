"""The exchanges that calibration times: each tells one thing of one fabric."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

import fastjax
from fastjax import scheduler_traits
from fastjax.cli.calibrate import fit
from fastjax.cli.shared.device_workload import AXIS, DeviceWorkload
from fastjax.cli.shared.measure import Timing, interleave

ROW_BYTES = 1024
IDLE = "idle"
PARTNERS = "partners"
SCALE_UP = "scale_up"
SCALE_OUT = "scale_out"


@dataclasses.dataclass(frozen=True)
class Probe:
    """One exchange.

    Attributes:
      kind: `IDLE`, `SCALE_UP`, `SCALE_OUT` or `PARTNERS`.
      amount: bytes that a device sends, or partners that it has.
      traffic: rows of `ROW_BYTES` bytes that position i of the mesh axis sends to position j.
    """

    kind: str
    amount: int
    traffic: np.ndarray

    @property
    def key(self) -> str:
        """A name no other probe of a run has."""
        return f"{self.kind} {self.amount}"


def plan_probes(topology: fastjax.Topology, sizes: Sequence[int]) -> list[Probe]:
    """The exchanges to time.

    Args:
      topology: which devices share a server; its rates do not matter.
      sizes: bytes that each device sends to one other, multiples of `ROW_BYTES`.
    """
    servers, per_server = topology.servers, topology.devices_per_server
    probes = [Probe(IDLE, 0, shifts(topology, 0, 1, across=False))]
    for kind, there in ((SCALE_UP, per_server > 1), (SCALE_OUT, servers > 1)):
        for size in sizes if there else ():
            rows = size // ROW_BYTES
            probes.append(Probe(kind, size, shifts(topology, rows, 1, across=kind == SCALE_OUT)))
    across = per_server < 3  # one fabric only, so that bandwidth stays out of it
    most = (servers if across else per_server) - 1
    if most > 1:
        counts = [2**k for k in range(most.bit_length())]
        for count in counts:
            rows = counts[-1] // count
            probes.append(Probe(PARTNERS, count, shifts(topology, rows, count, across=across)))
    return probes


def shifts(topology: fastjax.Topology, rows: int, partners: int, *, across: bool) -> np.ndarray:
    """Traffic in which each device sends `rows` to each of its next `partners`.

    Args:
      topology: which devices share a server, and where they are on the mesh axis.
      rows: to each partner.
      partners: how many; fewer than there are servers, or devices in one.
      across: whether partners are the same device of the next servers; otherwise they are the next
        devices of the same server.

    Returns:
      int64, shape (devices, devices), by position on the mesh axis.
    """
    size, per_server = topology.num_devices, topology.devices_per_server
    device = np.arange(size)
    server, local = np.divmod(device, per_server)
    by_rank = np.zeros((size, size), np.int64)
    for shift in range(1, partners + 1):
        peer_server = (server + shift) % topology.servers if across else server
        peer_local = local if across else (local + shift) % per_server
        by_rank[device, peer_server * per_server + peer_local] = rows
    rank_of = device if topology.placement is None else np.array(topology.placement)
    return by_rank[np.ix_(rank_of, rank_of)]


def measure(
    mesh: jax.sharding.Mesh,
    topology: fastjax.Topology,
    probes: Sequence[Probe],
    rounds: int,
    *,
    seed: int = 0,
) -> tuple[dict[str, Timing], int]:
    """Times all probes, in turn, under the scheduler whose transfers wait for no others.

    Returns:
      Times by `Probe.key`, and how many rows were wrong.
    """
    exchange = functools.partial(
        fastjax.fast_ragged_all_to_all,
        axis_name=AXIS,
        topology=topology,
        scheduler=scheduler_traits.FALLBACK,
    )
    runs: dict[str, Callable[[], object]] = {}
    wrong = 0
    for probe in probes:
        workload = DeviceWorkload(mesh, probe.traffic, ROW_BYTES, np.float32, seed)
        program = workload.program(exchange)
        wrong += workload.count_wrong(program)
        runs[probe.key] = functools.partial(workload.run, program)
    return interleave(runs, rounds, seed=seed), wrong


def rates(probes: Sequence[Probe], timings: dict[str, Timing]) -> list[fit.Rate]:
    """What the times tell; rates that nothing was measured for are missing."""
    by_kind: dict[str, dict[int, Timing]] = {}
    for probe in probes:
        by_kind.setdefault(probe.kind, {})[probe.amount] = timings[probe.key]
    found: list[fit.Rate] = []
    for fabric in (SCALE_UP, SCALE_OUT):
        if fabric in by_kind:
            found += fit.bandwidth_and_latency(fabric, by_kind[IDLE][0], by_kind[fabric])
    if PARTNERS in by_kind:
        found.append(fit.transfer_overhead(by_kind[PARTNERS]))
    return found


__all__ = ["ROW_BYTES", "Probe", "measure", "plan_probes", "rates", "shifts"]
