"""Traffic that plans are judged with: what models send, and what is hardest on a fabric.

Each kind is a function of servers, devices of each, rows and a seed. Rows are those of a device:
what each one sends, or the mean of it where senders differ, or what the one flow has.
"""

from collections.abc import Callable

import numpy as np

from fastjax.cli.traffic import Skew, make_traffic

Workload = Callable[[int, int, int, int], np.ndarray]


def drawn(skew: Skew, alpha: float = 0.0) -> Workload:
    """The benchmark's own traffic, with popular experts on any device and not on the first ones."""

    def make(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
        devices = servers * per_server
        traffic = make_traffic(skew, devices, rows, alpha=alpha, seed=seed)
        if skew != "zipf-expert":
            return traffic
        return traffic[:, np.random.default_rng([seed, 1]).permutation(devices)]

    return make


def hot_receiver(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """Every device sends all it has to one device."""
    devices = servers * per_server
    traffic = np.zeros((devices, devices), np.int64)
    traffic[:, np.random.default_rng(seed).integers(devices)] = rows
    return traffic


def hot_sender(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """One device sends as many rows to each, and nobody else sends anything."""
    return np.ascontiguousarray(hot_receiver(servers, per_server, rows, seed).T)


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


def permutation(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """Every device sends all it has to one device, each to another one; none to itself."""
    devices = servers * per_server
    ring = np.random.default_rng(seed).permutation(devices)
    traffic = np.zeros((devices, devices), np.int64)
    traffic[ring, np.roll(ring, 1)] = rows
    return traffic


def mostly_local(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """Nine rows of ten stay inside the server, spread evenly, as do the others over the rest."""
    del seed
    devices = servers * per_server
    server = np.arange(devices) // per_server
    inside = server[:, None] == server
    elsewhere = max(devices - per_server, 1)
    return np.where(inside, rows * 9 // (10 * per_server), rows // (10 * elsewhere))


WORKLOADS: dict[str, Workload] = {
    "uniform": drawn("uniform"),
    "pair-zipf 0.4": drawn("pair-zipf", 0.4),
    "pair-zipf 0.8": drawn("pair-zipf", 0.8),
    "pair-zipf 1.2": drawn("pair-zipf", 1.2),
    "expert 0.4": drawn("zipf-expert", 0.4),
    "expert 0.8": drawn("zipf-expert", 0.8),
    "hot receiver": hot_receiver,
    "hot sender": hot_sender,
    "single flow": single_flow,
    "permutation": permutation,
    "mostly local": mostly_local,
}
