"""Peers that are not in the library, as transfers: from the ideas of their papers only."""

from __future__ import annotations

import numpy as np
import textbook

from fastjax import Topology
from paper.rails import (
    balanced_rails,
    matched_stages,
    own_rails,
    staged_transfers,
    target_rails,
)


def as_published(traffic: np.ndarray, topology: Topology) -> np.ndarray:
    """FAST (arXiv 2505.09764) as its paper has it.

    Each server pair's rows are spread evenly over the rails, without regard to where they are for;
    the matrix of servers is padded and decomposed (Birkhoff) with arbitrary perfect matchings; no
    stage is cut. The longest comes first, the order that serves it best: little is left to hand on
    behind the last. All balance comes before the first, which is up to whoever simulates it.
    """
    n, m = topology.servers, topology.devices_per_server
    rails = balanced_rails(traffic, n, m)
    matchings = textbook.decompose(rails.lengths().max(axis=2))
    matchings.sort(key=lambda matching: -matching[1])
    targets = np.array([each for each, _ in matchings], np.int64).reshape(-1, n)
    lengths = np.array([length for _, length in matchings], np.int64)
    return staged_transfers(traffic, rails, matched_stages(rails, targets, lengths))


def pxn(traffic: np.ndarray, topology: Topology) -> np.ndarray:
    """What NCCL does from 2.12 on where servers have several NICs (PXN): the other way round.

    Rows go to the device of their own server that has the target's place, which sends them on
    over its NIC, straight to the target; all servers at once, and nothing is balanced.
    """
    n, m = topology.servers, topology.devices_per_server
    rails = target_rails(traffic, n, m)
    return staged_transfers(traffic, rails, rails.lengths().reshape(-1, 1))


def two_tier(traffic: np.ndarray, topology: Topology) -> np.ndarray:
    """Forwarding between servers, in DeepEP's manner.

    Device k of a server sends all that it has for another server to device k there, which hands it
    on; all servers at once, and nothing is balanced. Every row crosses for itself: where rows are
    of tokens, `two_tier_once` makes the traffic of those that DeepEP sends once.
    """
    n, m = topology.servers, topology.devices_per_server
    rails = own_rails(traffic, n, m)
    return staged_transfers(traffic, rails, rails.lengths().reshape(-1, 1))


def two_tier_once(choices: np.ndarray, topology: Topology, num_experts: int) -> np.ndarray:
    """What `two_tier` is to carry for a layer's dispatch, and `pxn`, transposed, for its combine.

    DeepEP sends a token once to each server that has experts of its, to the device of its own place
    there, which copies it to each device that wants it, once. Of these copies, the first is the row
    that crosses. The others begin on the device that it came to, as rows of that server: nobody can
    send before there is something to send, but here they need not wait for it, which favours the
    peer, by no more than the copies of the last piece. Likewise on the way back, where a device
    sums what it has for a token before it sends it, and the server what its devices have.

    Args:
      choices: experts of each device's tokens, all of 0 or more, shape (devices, tokens, k).
      topology: the servers.
      num_experts: of the layer.

    Returns:
      Rows, int64, shape (devices, devices).
    """
    devices, m = topology.num_devices, topology.devices_per_server
    traffic = np.zeros((devices, devices), np.int64)
    for device, experts in enumerate(choices):
        wants = np.zeros((len(experts), devices), bool)
        np.put_along_axis(wants, experts // (num_experts // devices), True, 1)
        here = wants.reshape(len(experts), topology.servers, m)
        for server in range(topology.servers):
            first = server * m
            inside = here[:, server]
            if server == device // m:
                traffic[device, first : first + m] += inside.sum(0)
                continue
            token = inside.any(1)
            crosses = np.bincount(inside[token].argmax(1), minlength=m)
            traffic[device, first : first + m] += crosses
            traffic[first + device % m, first : first + m] += inside.sum(0) - crosses
    return traffic
