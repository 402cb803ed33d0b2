"""What the exchanges of a layer take, simulated: its dispatch and combine, deduplicated and not."""

from __future__ import annotations

import dataclasses

import numpy as np

from fastjax import scheduling
from fastjax.chunking.prices import Tokens
from fastjax.chunking.resources import Parts
from fastjax.host.plan import Plan, make_plan
from fastjax.simulation.fabric import Fabric
from fastjax.simulation.simulator import simulate_transfers
from fastjax.topology import Topology
from fastjax.traffic import LayerTraffic


def each_choice(
    scheduler: str, layer: LayerTraffic, topology: Topology, fabric: Fabric, tokens: Tokens
) -> Parts:
    """A row for each choice, straight to the device of its expert."""
    plan = make_plan(layer.each, topology, scheduler=scheduler, row_bytes=tokens.row_bytes)
    there, back = (_seconds(p, tokens.row_bytes, fabric) for p in (plan, plan.transpose()))
    if topology.servers == 1:
        return Parts(plan.planning_time(), copies=there, sums=back)
    return Parts(plan.planning_time(), out=there, back=back)


def once(
    scheduler: str, layer: LayerTraffic, topology: Topology, fabric: Fabric, tokens: Tokens
) -> Parts:
    """A row for each server that a token goes to, and then one for each choice inside servers."""
    row, crossing = tokens.row_bytes, tokens.crossing_bytes
    plan = make_plan(layer.crossing, topology, scheduler=scheduler, row_bytes=crossing)
    # Each server's own exchange, which `fastjax.moe` does all at once.
    m, own = topology.devices_per_server, scheduling.FALLBACK
    one = dataclasses.replace(topology, servers=1, nic_bandwidths=None)
    blocks = (layer.inside[i : i + m, i : i + m] for i in range(0, topology.num_devices, m))
    inside = [make_plan(b, one, scheduler=own, row_bytes=row) for b in blocks]
    return Parts(
        plan.planning_time() + max(p.planning_time() for p in inside),
        out=_seconds(plan, crossing, fabric),
        copies=max(_seconds(p, row, fabric) for p in inside),
        sums=max(_seconds(p.transpose(), row, fabric) for p in inside),
        back=_seconds(plan.transpose(), row, fabric),
    )


def forwarded(
    choices: np.ndarray, experts: int, topology: Topology, fabric: Fabric, tokens: Tokens
) -> Parts:
    """A row for each server that a token goes to, handed on there, as DeepEP does it.

    Nothing is balanced or planned. Devices hand on as rows come, so that each way takes as long as
    the longer of its two exchanges: a lower bound of what it can take.
    """
    traffic = forwarded_traffic(choices, experts, topology)
    found = once(scheduling.FALLBACK, traffic, topology, fabric, tokens)
    return Parts(out=max(found.out, found.copies), back=max(found.back, found.sums))


def forwarded_traffic(choices: np.ndarray, experts: int, topology: Topology) -> LayerTraffic:
    """A token crosses over its device's own NIC to the device of the same place in a server.

    That hands it on, once to each device that wants it.
    """
    n, m = topology.servers, topology.devices_per_server
    crossing, inside = np.zeros((2, n * m, n * m), np.int64)
    for device, chosen in enumerate(choices):
        owner = np.where(chosen < 0, n * m, chosen // (experts // (n * m)))
        wants = np.zeros((len(chosen), n * m + 1), bool)  # the last: choices of none
        np.put_along_axis(wants, owner, True, 1)
        here = wants[:, :-1].reshape(len(chosen), n, m)
        at = np.arange(n) * m + device % m
        crossing[device, at] = here.any(2).sum(0)
        crossing[device, device] = 0
        inside.reshape(n * m, n, m)[at, np.arange(n)] += here.sum(0)
    return LayerTraffic(crossing, crossing, inside, 0, n)


def _seconds(plan: Plan, row_bytes: int, fabric: Fabric) -> float:
    return simulate_transfers(
        plan.transfers, plan.topology, row_bytes=row_bytes, fabric=fabric
    ).completion_time
