"""The least time that a two-tier fabric needs for some traffic, by linear programming."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.optimal.checks import Clock, check_square, check_time_limit, scipy_module
from fastjax.topology import Topology

# A link that cannot be busy for a third of the least time anyone needs is not looked at: a row uses
# it twice at most, on the way out of a server and on the way in.
_NEVER_BUSY = 3.0


def fluid_lower_bound(
    traffic: ArrayLike, topology: Topology, *, row_bytes: int = 1, time_limit: float = 60.0
) -> float:
    """Seconds that no schedule can beat, if rows could be cut and relayed at will.

    Every device has a scale-up link and a NIC, both full duplex. A row may take any way: through
    other devices of its server to any NIC, from there to any NIC of the target's server, and on to
    the target; rows that stay in their server too. Latencies are not counted. It is at least
    `Plan.lower_bound()`, and more where the scale-up links are too slow to bring rows to idle NICs.

    Args:
      traffic: rows device i sends to device j, integers, shape (devices, devices), server-major;
        what stays on its device is ignored.
      topology: the fabric: `servers`, `devices_per_server`, `scale_up_bandwidth`,
        `scale_out_bandwidth` and `nic_bandwidths` are read.
      row_bytes: bytes of a row.
      time_limit: seconds to solve in.

    Returns:
      Seconds, to about a millionth.

    Raises:
      ArgumentError: traffic is not such a matrix, or row_bytes or time_limit is impossible.
      UnsupportedError: it could not be solved in time, or scipy is not installed.
    """
    matrix, clock = check_square("traffic", traffic), check_time_limit(time_limit)
    n, m = topology.servers, topology.devices_per_server
    if len(matrix) != n * m:
        raise ArgumentError(
            f"traffic must have shape ({n * m}, {n * m}) for a topology of {n} x {m} devices, "
            f"got {matrix.shape}."
        )
    if not isinstance(row_bytes, (int, np.integer)) or row_bytes < 1:
        raise ArgumentError(f"row_bytes must be an integer of 1 or more, got {row_bytes!r}.")
    np.fill_diagonal(matrix, 0)
    nics = np.array(topology.nic_bandwidths or [topology.scale_out_bandwidth] * (n * m), float)
    rows_seconds = 0.0
    for server in range(n):
        mine = slice(server * m, (server + 1) * m)
        local = matrix[mine, mine]
        out = matrix[mine].sum(axis=1) - local.sum(axis=1)
        into = matrix[:, mine].sum(axis=0) - local.sum(axis=0)
        rates = topology.scale_up_bandwidth, nics[mine]
        rows_seconds = max(rows_seconds, _server_seconds(local, out, into, *rates, clock))
    return rows_seconds * int(row_bytes)


def _server_seconds(
    local: np.ndarray,
    out: np.ndarray,
    into: np.ndarray,
    scale_up: float,
    nics: np.ndarray,
    clock: Clock,
) -> float:
    """Least time of one server: what happens in the others does not touch its links.

    Args:
      local: rows between its devices, shape (m, m).
      out: rows that each device sends to other servers, shape (m,).
      into: rows that each device receives from other servers, shape (m,).
      scale_up: bytes/s of a scale-up link.
      nics: bytes/s of each NIC, shape (m,).
      clock: when to give up.
    """
    sent, received = out + local.sum(axis=1), into + local.sum(axis=0)
    least = max(
        max(out.sum(), into.sum()) / nics.sum(),
        (np.maximum(sent, received) / (scale_up + nics)).max(),
    )
    if not least:
        return 0.0
    # Time in units of the least, rows in units of all: no coefficient is then far from 1.
    total = float(out.sum() + into.sum() + local.sum())
    speeds = np.concatenate([np.full(2 * len(nics), scale_up), nics, nics]) * (least / total)
    result = _solve(local / total, out / total, into / total, speeds, clock)
    if result.status != 0:
        raise UnsupportedError(
            f"the fluid bound of {len(nics)} devices a server was not solved within the time "
            f"limit of {clock.seconds} s; give it more time_limit. HiGHS says: {result.message}"
        )
    return least * max(1.0, float(result.fun))


def _solve(
    local: np.ndarray, out: np.ndarray, into: np.ndarray, speeds: np.ndarray, clock: Clock
) -> Any:
    """Solves for the time; variables are exits, entries, detours and the time.

    exits[i, k] are rows of device i that leave by NIC k, entries[l, j] those for device j that come
    by NIC l, and detours[i, j] rows between devices of this server that take that way too. `speeds`
    are of scale-up out, scale-up in, NIC out and NIC in, by device.
    """
    m = len(out)
    eye, one, none = np.eye(m), np.ones(m), np.zeros((m, m * m))
    of_first, of_second = np.kron(eye, one), np.kron(one, eye)  # sum over the other index
    apart = 1.0 - eye.ravel()
    conserve = np.block([[of_first, none, -of_first], [none, of_second, -of_second]])
    loads = np.block(
        [
            [of_first * apart, of_first * apart, -of_first],
            [of_second * apart, of_second * apart, -of_second],
            [of_second, none, none],
            [none, of_first, none],
        ]
    )
    straight = np.concatenate([local.sum(axis=1), local.sum(axis=0), np.zeros(2 * m)])
    busy = speeds < _NEVER_BUSY
    free = [(0, None)] * (2 * m * m)
    return scipy_module("optimize").linprog(
        np.arange(3 * m * m + 1) == 3 * m * m,
        A_ub=np.column_stack([loads, -speeds])[busy],
        b_ub=-straight[busy],
        A_eq=np.column_stack([conserve, np.zeros(2 * m)]),
        b_eq=np.concatenate([out, into]),
        bounds=[*free, *((0, most) for most in local.ravel()), (0, None)],
        method="highs",
        options={"time_limit": clock.left()},
    )
