"""Peers that are not in the library, as transfers made by hand: from the ideas of papers only.

Nothing here is the planner's.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fastjax import Topology
from fastjax.schedule import TRANSFER_DTYPE

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)


@dataclasses.dataclass(frozen=True)
class Rails:
    """Rows that cross between servers, by the rail that carries them.

    Segments are in order of their rail, and in the order in which the rail carries them. Rail
    (s * servers + d) * per_server + k leads from device k of server s to device k of server d.

    Attributes:
      servers, per_server: the topology's.
      rail, origin, target, first_row, rows: of each segment.
    """

    servers: int
    per_server: int
    rail: np.ndarray
    origin: np.ndarray
    target: np.ndarray
    first_row: np.ndarray
    rows: np.ndarray

    def lengths(self) -> np.ndarray:
        """Rows of each rail, shape (servers, servers, per_server)."""
        n, m = self.servers, self.per_server
        found = np.bincount(self.rail, weights=self.rows, minlength=n * n * m)
        return found.astype(np.int64).reshape(n, n, m)


def overlay(ones: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Cuts two rows of lengths, laid side by side from the same point, at each other's joints.

    Args:
      ones, others: lengths of 0 or more, with the same sum.

    Returns:
      For each piece which of the ones and of the others it is of, where in the one it begins, and
      its length.
    """
    if ones.sum() != others.sum():
        raise AssertionError(f"lengths of {ones.sum()} and {others.sum()} do not match.")
    ends = np.cumsum(ones), np.cumsum(others)
    edges = np.unique(np.concatenate([[0], *ends]))
    begin, rows = edges[:-1], np.diff(edges)
    one, other = (np.searchsorted(end, begin, side="right") for end in ends)
    return one, other, begin - (ends[0] - ones)[one], rows


def crossing(traffic: np.ndarray, servers: int, per_server: int) -> dict[str, np.ndarray]:
    """Blocks between servers by server pair, then by sender and receiver; flat arrays."""
    n, m = servers, per_server
    s, d, i, j = (axis.ravel() for axis in np.indices((n, n, m, m)))
    rows = np.where(s == d, 0, traffic[s * m + i, d * m + j])
    return {"pair": s * n + d, "origin": s * m + i, "target": d * m + j, "rows": rows}


def balanced_rails(traffic: np.ndarray, servers: int, per_server: int) -> Rails:
    """Every rail carries 1/m of its server pair's rows, give or take one.

    Devices that have more keep their first rows and give the others, in order, to those that have
    less, whichever device they are for: what moves inside the target's server is left to chance.
    """
    n, m = servers, per_server
    blocks = crossing(traffic, n, m)
    sizes = blocks["rows"].reshape(n * n, m, m)
    held = sizes.sum(axis=2)
    total = held.sum(axis=1, keepdims=True)
    share = total // m + (np.arange(m) < total % m)
    before = (np.cumsum(sizes, axis=2) - sizes).ravel()
    keep = np.repeat(np.minimum(held, share).ravel(), m)
    kept = np.clip(keep - before, 0, blocks["rows"])
    given, taker, offset, rows = overlay(blocks["rows"] - kept, (share - held).clip(0).ravel())
    own = blocks["pair"] * m + blocks["origin"] % m
    parts = {
        name: np.concatenate([values, values[given]])
        for name, values in blocks.items()
        if name != "rows"
    }
    parts["rows"] = np.concatenate([kept, rows])
    first = np.concatenate([np.zeros_like(kept), kept[given] + offset])
    return _in_order(n, m, np.concatenate([own, taker]), parts, first)


def _in_order(
    servers: int,
    per_server: int,
    rail: np.ndarray,
    parts: dict[str, np.ndarray],
    first_row: np.ndarray,
) -> Rails:
    order = np.argsort(rail, kind="stable")
    order = order[parts["rows"][order] > 0]
    fields = (parts["origin"], parts["target"], first_row, parts["rows"])
    return Rails(servers, per_server, rail[order], *(values[order] for values in fields))


def matched_stages(rails: Rails, targets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows of each rail in each stage, shape (rails, stages), by matchings of servers.

    Args:
      rails: what is to be cut.
      targets: the server that each sends to, shape (stages, servers), or -1.
      lengths: rows that a rail carries at most, shape (stages,).
    """
    n, m = rails.servers, rails.per_server
    stage, server = np.nonzero(targets >= 0)
    room = np.zeros((n, n, len(lengths)), np.int64)
    room[server, targets[stage, server], stage] = lengths[stage]
    ends = np.minimum(np.cumsum(room, axis=2)[:, :, None, :], rails.lengths()[..., None])
    return np.diff(ends, axis=3, prepend=0).reshape(n * n * m, -1)


def staged_transfers(traffic: np.ndarray, rails: Rails, quotas: np.ndarray) -> np.ndarray:
    """All transfers of an exchange.

    Args:
      traffic: rows that devices send to each other.
      rails: what crosses between servers.
      quotas: rows of each rail in each stage, shape (rails, stages). Stages without any are left
        out.

    Returns:
      Of `TRANSFER_DTYPE`: local ones, then stage by stage balance, scale-out and redistribution.
    """
    n, m = rails.servers, rails.per_server
    quotas = quotas[:, quotas.any(axis=0)]
    segment, slot, offset, rows = overlay(rails.rows, quotas.ravel())
    pair, k = np.divmod(rails.rail[segment], m)
    sender, receiver = pair // n * m + k, pair % n * m + k
    piece = np.zeros(len(rows), TRANSFER_DTYPE)
    piece["stage"] = slot % max(1, quotas.shape[1])
    piece["origin"], piece["target"] = rails.origin[segment], rails.target[segment]
    piece["first_row"] = rails.first_row[segment] + offset
    piece["rows"] = rows
    moves = [local_transfers(traffic, m)]
    ends = [(BALANCE, piece["origin"], sender), (SCALE_OUT, sender, receiver)]
    for phase, src, dst in [*ends, (REDISTRIBUTE, receiver, piece["target"])]:
        move = piece.copy()
        move["phase"], move["src"], move["dst"] = phase, src, dst
        moves.append(move[src != dst])
    return in_order(np.concatenate(moves), n, m)


def local_transfers(traffic: np.ndarray, per_server: int) -> np.ndarray:
    """Rows that stay inside servers, straight to where they are for."""
    server = np.arange(len(traffic)) // per_server
    src, dst = np.nonzero((traffic > 0) & (server[:, None] == server))
    moves = np.zeros(len(src), TRANSFER_DTYPE)
    moves["stage"] = -1
    for one, other, ends in (("src", "origin", src), ("dst", "target", dst)):
        moves[one] = moves[other] = ends
    moves["rows"] = traffic[src, dst]
    return moves


def in_order(transfers: np.ndarray, servers: int, per_server: int) -> np.ndarray:
    """Stage by stage, and in each by phase: an order that can be executed as it stands.

    Between servers, those next to the sender's come first: devices that post their messages one
    after another then never meet at a receiver.
    """
    phase, stage = transfers["phase"], transfers["stage"]
    away = (transfers["dst"] // per_server - transfers["src"] // per_server) % servers
    return transfers[np.lexsort((np.where(phase == SCALE_OUT, away, 0), phase, stage))]


def _padded(rows: np.ndarray) -> np.ndarray:
    """Fills a square matrix up until all its lines have the sum of the largest one."""
    padded = rows.astype(np.int64)
    total = max(padded.sum(axis=0).max(), padded.sum(axis=1).max())
    for i in range(len(padded)):
        for j in range(len(padded)):
            padded[i, j] += total - max(padded[i].sum(), padded[:, j].sum())
    return padded


def birkhoff(rows: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Birkhoff's decomposition: perfect matchings of the padded matrix.

    Each is as long as its smallest entry.

    Args:
      rows: what each server sends to each, square, of 0 or more.

    Returns:
      For each matching the target of every server, and its length.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    left = _padded(rows)
    servers = np.arange(len(left))
    matchings = []
    while left.any():
        targets = maximum_bipartite_matching(csr_array(left), perm_type="column")
        length = int(left[servers, targets].min())
        left[servers, targets] -= length
        matchings.append((targets, length))
    return matchings


def as_published(traffic: np.ndarray, topology: Topology) -> np.ndarray:
    """FAST (arXiv 2505.09764) as its paper has it.

    Each server pair's rows are spread evenly over the rails, without regard to where they are for;
    the matrix of servers is padded and decomposed (Birkhoff) with arbitrary perfect matchings; no
    stage is cut. The longest comes first, the order that serves it best: little is left to hand on
    behind the last. All balance comes before the first, which is up to whoever simulates it.
    """
    n, m = topology.servers, topology.devices_per_server
    rails = balanced_rails(traffic, n, m)
    matchings = birkhoff(rails.lengths().max(axis=2))
    matchings.sort(key=lambda matching: -matching[1])
    targets = np.array([each for each, _ in matchings], np.int64).reshape(-1, n)
    lengths = np.array([length for _, length in matchings], np.int64)
    return staged_transfers(traffic, rails, matched_stages(rails, targets, lengths))


def pxn(traffic: np.ndarray, topology: Topology) -> np.ndarray:
    """What NCCL does from 2.12 on where servers have several NICs (PXN).

    Rows go to the device of their own server that has the target's place, which sends them on
    over its NIC, straight to the target; all servers at once, and nothing is balanced.
    """
    return _over_nics_of(traffic, topology, "target")


def two_tier(traffic: np.ndarray, topology: Topology) -> np.ndarray:
    """Forwarding between servers, in DeepEP's manner: the other way round.

    Device k of a server sends all that it has for another server to device k there, which hands it
    on; all servers at once, and nothing is balanced. Every row crosses for itself: where rows are
    of tokens, `two_tier_once` makes the traffic of those that DeepEP sends once.
    """
    return _over_nics_of(traffic, topology, "origin")


def _over_nics_of(traffic: np.ndarray, topology: Topology, end: str) -> np.ndarray:
    """Rows cross, in one stage, over the rail of their origin's or of their target's place."""
    n, m = topology.servers, topology.devices_per_server
    blocks = crossing(traffic, n, m)
    rail = blocks["pair"] * m + blocks[end] % m
    rails = _in_order(n, m, rail, blocks, np.zeros_like(rail))
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
