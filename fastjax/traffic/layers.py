"""The traffic of a layer: a row for each choice, or for each server that a token goes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks, landing


@dataclasses.dataclass(frozen=True, eq=False)
class LayerTraffic:
    """Rows that a layer's dispatch moves; its combine, the way back, moves the transposes.

    All are int64, shape (devices, devices), rows that device i sends to device j, of which those on
    the diagonal stay where they are.

    Attributes:
      each: with a row for each choice, straight to the device of its expert.
      crossing: deduplicated, between servers: a row for each token and other server that has one of
        its experts, to the device where it lands, as `fastjax.moe.dispatch(deduplicate=True)` has
        it. None is inside a server.
      inside: deduplicated, inside servers: a row for each choice, from where its token is, or has
        landed, to the device of its expert.
      tokens: of all devices, that have any choice.
      servers: that the devices are split into.
    """

    each: np.ndarray
    crossing: np.ndarray
    inside: np.ndarray
    tokens: int
    servers: int

    def exchanges(self, *, deduplicate: bool) -> list[np.ndarray]:
        """Of a dispatch: of all devices; or, deduplicated, between servers and inside each."""
        if not deduplicate:
            return [self.each]
        n, m = self.servers, len(self.each) // self.servers
        inside = self.inside.reshape(n, m, n, m)
        return [self.crossing, *(inside[server, :, server] for server in range(n))]

    def crossing_per_token(self, *, deduplicate: bool) -> float:
        """Rows that cross from server to server, by the number of tokens; 0 without tokens."""
        server = np.arange(len(self.each)) // (len(self.each) // self.servers)
        traffic = self.crossing if deduplicate else self.each
        return float(traffic[server[:, None] != server].sum() / max(1, self.tokens))


def layer_traffic(
    choices: Any,
    *,
    servers: int,
    num_experts: int,
    nic_bandwidths: Sequence[float] | None = None,
) -> LayerTraffic:
    """The traffic of a layer of experts, deduplicated and not.

    Devices are numbered server by server. Device d holds the d-th of as many equal runs of experts.

    Args:
      choices: experts of each device's tokens, integers, shape (devices, tokens, k); -1: none.
      servers: servers that the devices are split into.
      num_experts: experts of the layer, a multiple of the devices.
      nic_bandwidths: speed of each device's NIC, in any unit, 0 for one that has failed; by default
        all are alike. It decides how much each rail carries of deduplicated rows.

    Returns:
      Traffic matrices.

    Raises:
      ArgumentError: choices are no such array or name an expert that there is not; servers or
        experts do not divide; or nic_bandwidths are not one number of 0 or more for each device.
    """
    chosen = _checked(choices, checks.integer("num_experts", num_experts, 1))
    devices = len(chosen)
    servers = checks.integer("servers", servers, 1)
    if devices % servers:
        raise ArgumentError(f"{devices} devices do not divide into {servers} servers.")
    if num_experts % devices:
        raise ArgumentError(f"{num_experts} experts do not divide over {devices} devices.")
    per_server = devices // servers
    shares = landing.rail_shares(servers, per_server, nic_bandwidths)
    # Device of each choice's expert; choices that go nowhere are of one behind all.
    owner = np.where(chosen < 0, devices, chosen // (num_experts // devices))
    goes = servers_of(owner, servers, per_server)
    wanted = goes.sum(1).reshape(servers, per_server, servers)
    crossing = landing.rows_to_devices(wanted, shares)
    at = _where_they_land(goes, crossing, per_server)
    each = np.stack([np.bincount(own.ravel(), minlength=devices + 1)[:-1] for own in owner])
    return LayerTraffic(
        each=each.astype(np.int64),
        crossing=crossing,
        inside=_inside(owner, at, per_server),
        tokens=int((chosen >= 0).any(2).sum()),
        servers=servers,
    )


def _checked(choices: Any, num_experts: int) -> np.ndarray:
    chosen = np.asarray(choices)
    if chosen.ndim != 3 or not np.issubdtype(chosen.dtype, np.integer) or not len(chosen):
        raise ArgumentError(
            "choices must be integers of shape (devices, tokens, k); got "
            f"{chosen.dtype} of shape {chosen.shape}."
        )
    if chosen.size and not -1 <= chosen.min() <= chosen.max() < num_experts:
        wrong = chosen.max() if chosen.max() >= num_experts else chosen.min()
        raise ArgumentError(
            f"choices must be from 0 to {num_experts - 1}, or -1 for none; got {wrong}."
        )
    return chosen


def servers_of(owner: np.ndarray, servers: int, per_server: int) -> np.ndarray:
    """Which other servers each token goes to, shape (devices, tokens, servers).

    Args:
      owner: device of each choice's expert, (devices, tokens, k); the number of devices for none.
      servers: how many.
      per_server: devices of each.
    """
    server = owner // per_server
    goes = np.stack([(server == each).any(2) for each in range(servers)], axis=2)
    goes[np.arange(len(owner)), :, np.arange(len(owner)) // per_server] = False
    return goes


def _where_they_land(goes: np.ndarray, crossing: np.ndarray, per_server: int) -> np.ndarray:
    """The device where each token lands in each server; its own, where it does not cross.

    A device's rows for a server, in order of tokens, go to the server's devices in order.
    """
    at = np.broadcast_to(np.arange(len(goes))[:, None, None], goes.shape).copy()
    for device, server in np.ndindex(len(goes), goes.shape[2]):
        first = server * per_server
        rows = crossing[device, first : first + per_server]
        at[device, goes[device, :, server], server] = first + np.repeat(np.arange(per_server), rows)
    return at


def _inside(owner: np.ndarray, at: np.ndarray, per_server: int) -> np.ndarray:
    """Rows from where tokens are in a server to the devices of their experts there."""
    devices = len(owner)
    traffic = np.zeros(devices * devices, np.int64)
    for chosen, landed in zip(owner, at, strict=True):
        token, choice = np.nonzero(chosen < devices)
        to = chosen[token, choice]
        pairs = landed[token, to // per_server] * devices + to
        traffic += np.bincount(pairs, minlength=devices * devices)
    return traffic.reshape(devices, devices)
