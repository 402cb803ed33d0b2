"""What the exchanges of a layer take, simulated: its dispatch and combine, deduplicated and not."""

from __future__ import annotations

import numpy as np

from fastjax import scheduling
from fastjax.chunking import prices
from fastjax.chunking.prices import Price, Pricer, Tokens
from fastjax.chunking.resources import Parts
from fastjax.host.plan import make_plan
from fastjax.simulation.fabric import Fabric
from fastjax.simulation.simulator import simulate_transfers
from fastjax.topology import Topology
from fastjax.traffic import LayerTraffic


def by_simulation(fabric: Fabric) -> Pricer:
    """Prices exchanges by what they take on that fabric."""

    def price(
        traffic: np.ndarray, topology: Topology, scheduler: str, out_bytes: int, back_bytes: int
    ) -> Price:
        plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=out_bytes)
        out, back = (
            simulate_transfers(moves.transfers, topology, row_bytes=size, fabric=fabric)
            for moves, size in ((plan, out_bytes), (plan.transpose(), back_bytes))
        )
        return plan.planning_time(), out.completion_time, back.completion_time

    return price


def forwarded(
    choices: np.ndarray, experts: int, topology: Topology, fabric: Fabric, tokens: Tokens
) -> Parts:
    """A row for each server that a token goes to, handed on there, as DeepEP does it.

    Nothing is balanced or planned. Devices hand on as rows come, so that each way takes as long as
    the longer of its two exchanges: a lower bound of what it can take.
    """
    traffic = forwarded_traffic(choices, experts, topology)
    direct = scheduling.FALLBACK
    once = traffic.exchanges(deduplicate=True)
    found = prices.exchanges(once, topology, tokens, direct, by_simulation(fabric))
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
