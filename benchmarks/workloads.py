"""Traffic that plans are judged with: what models send, and what is hardest on a fabric.

Each kind is a function of servers, devices of each, rows and a seed. Rows are those of a device:
what each one sends, or the mean of it where senders differ, or what the one flow has.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastjax.cli.shared.workloads import Skew, make_traffic
from fastjax.traffic import read_routing_trace, traffic_from_routing

TRACE = Path(__file__).parent / "traces" / "train_moe.jsonl.gz"
TRACE_DEVICES = 8  # and as many experts

Workload = Callable[[int, int, int, int], np.ndarray]


def drawn(skew: Skew, alpha: float = 0.0) -> Workload:
    """The benchmark's own traffic, with popular experts on any device and not on the first ones."""

    def make(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
        devices = servers * per_server
        traffic = make_traffic(skew, devices, rows, alpha=alpha, seed=seed)
        if skew != "expert-popularity":
            return traffic
        return traffic[:, np.random.default_rng([seed, 1]).permutation(devices)]

    return make


def hot_receiver(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """Every device sends all it has to one device."""
    devices = servers * per_server
    traffic = np.zeros((devices, devices), np.int64)
    traffic[:, np.random.default_rng(seed).integers(devices)] = rows
    return traffic


def single_flow(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """One device sends to one device, of another server where there are several."""
    rng = np.random.default_rng(seed)
    devices = servers * per_server
    src = rng.integers(devices)
    others = np.arange(devices) != src
    if servers > 1:
        others = np.arange(devices) // per_server != src // per_server
    traffic = np.zeros((devices, devices), np.int64)
    traffic[src, rng.choice(np.nonzero(others)[0])] = rows
    return traffic


@functools.cache
def routed() -> np.ndarray:
    """What was sent in the trace, shape (layers, steps, devices, devices)."""
    found = traffic_from_routing(
        read_routing_trace(TRACE), devices=TRACE_DEVICES, num_experts=TRACE_DEVICES
    )
    layers = sorted({exchange.layer for exchange in found})
    return np.array([[t for e, t in found.items() if e.layer == layer] for layer in layers])


def trained(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """In the proportions of a model's own routing, from a trace of eight devices.

    Any eight devices receive as those of the trace did in some layer, from any eight as in some
    step of it: so all senders have the same popular experts, but not just as popular.
    """
    rng = np.random.default_rng(seed)
    found, devices = routed(), servers * per_server
    tiles = -(-devices // TRACE_DEVICES)
    layer = rng.integers(len(found), size=tiles)
    step = rng.integers(found.shape[1], size=(tiles, tiles))
    shares = np.block([[found[layer[j], step[i, j]] for j in range(tiles)] for i in range(tiles)])
    ends = shares[:devices, :devices].cumsum(axis=1)
    return np.diff(ends * rows // ends[:, -1:], axis=1, prepend=0)


WORKLOADS: dict[str, Workload] = {
    "uniform": drawn("uniform"),
    "pair-zipf 0.8": drawn("pair-zipf", 0.8),
    "expert 0.8": drawn("expert-popularity", 0.8),
    "trained": trained,
    "hot receiver": hot_receiver,
    "single flow": single_flow,
}
