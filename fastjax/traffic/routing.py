"""The traffic of the exchanges in a routing trace, and the choices that it comes from."""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks
from fastjax.traffic.traces import RoutingRecord


class Exchange(NamedTuple):
    """Which exchange of a trace: the records of all ranks with these fields are of one.

    Attributes:
      step: as in the records.
      block: as in the records.
      mtp_idx: as in the records.
      layer: as in the records.
      repeat: how many records of a rank with these fields came before; counts microbatches.
    """

    step: int
    block: str
    mtp_idx: int | None
    layer: int
    repeat: int

    def __str__(self) -> str:
        head = "" if self.mtp_idx is None else f" {self.mtp_idx}"
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"step {self.step}, {self.block}{head} layer {self.layer}{repeat}"

    @property
    def order(self) -> tuple[int, str, int, int, int]:
        """To sort by: in order of step, block, head, layer and repeat."""
        head = -1 if self.mtp_idx is None else self.mtp_idx
        return self.step, self.block, head, self.layer, self.repeat


def traffic_from_routing(
    records: Iterable[RoutingRecord],
    *,
    devices: int,
    num_experts: int,
    ranks: Sequence[int] | None = None,
    deduplicate: bool = False,
    require_all: bool = True,
) -> dict[Exchange, np.ndarray]:
    """The traffic of every dispatch in a trace: how many rows each device sends to each.

    Args:
      records: as `read_routing_trace` yields them; those of each rank in the order of its file.
      devices: devices of the expert-parallel group.
      num_experts: experts of a layer; device d holds the d-th of as many equal runs of them.
      ranks: the group's ranks, in order of device; records of others are left out. By default 0 to
        devices - 1, and others are refused. A program with several expert-parallel groups needs
        one call for each.
      deduplicate: a token with several experts on one device is as many rows there; with True, one.
      require_all: refuse exchanges of which some device has no record; with False, it sends
        nothing.

    Returns:
      For each exchange, in order: rows that device i sends to device j, int64, shape (devices,
      devices). The combine, the way back, is its transpose.

    Raises:
      ArgumentError: the experts do not divide over the devices; a record has an unknown rank or
        expert; or a device has no record of an exchange.
    """

    def sent(experts: np.ndarray) -> np.ndarray:
        """Rows to each device."""
        owners = experts // (num_experts // devices)
        if deduplicate:
            owners = np.sort(owners, axis=1)
            owners = owners[np.diff(owners, axis=1, prepend=-1) > 0]
        return np.bincount(owners.ravel(), minlength=devices)

    found = _by_exchange(records, devices, num_experts, ranks, require_all, sent)
    nothing = np.zeros(devices, np.int64)
    return {
        exchange: np.stack([of_device.get(device, nothing) for device in range(devices)])
        for exchange, of_device in found.items()
    }


def choices_from_routing(
    records: Iterable[RoutingRecord],
    *,
    devices: int,
    num_experts: int,
    ranks: Sequence[int] | None = None,
    require_all: bool = True,
) -> dict[Exchange, np.ndarray]:
    """The experts that tokens chose in every layer of a trace, for `layer_traffic`.

    Args:
      records: see `traffic_from_routing`. All that are not left out are kept in memory.
      devices: see `traffic_from_routing`.
      num_experts: experts of a layer.
      ranks: see `traffic_from_routing`.
      require_all: see `traffic_from_routing`.

    Returns:
      For each exchange, in order: experts of each device's tokens, int64, shape (devices, tokens,
      k). Devices with fewer tokens, and tokens with fewer choices, than others are filled up with
      -1.

    Raises:
      ArgumentError: as `traffic_from_routing`.
    """
    found = _by_exchange(records, devices, num_experts, ranks, require_all, np.asarray)
    return {exchange: _side_by_side(found[exchange], devices) for exchange in found}


def _side_by_side(of_device: dict[int, np.ndarray], devices: int) -> np.ndarray:
    """One array of what devices have, filled up with -1."""
    tokens, top_k = np.max([choices.shape for choices in of_device.values()], axis=0)
    choices = np.full((devices, tokens, top_k), -1, np.int64)
    for device, own in of_device.items():
        choices[device, : own.shape[0], : own.shape[1]] = own
    return choices


def _by_exchange(
    records: Iterable[RoutingRecord],
    devices: int,
    num_experts: int,
    ranks: Sequence[int] | None,
    require_all: bool,
    kept: Callable[[np.ndarray], np.ndarray],
) -> dict[Exchange, dict[int, np.ndarray]]:
    """What is kept of the choices of each device of the group, for each exchange, in order."""
    devices = checks.integer("devices", devices, 1)
    num_experts = checks.integer("num_experts", num_experts, 1)
    if num_experts % devices:
        raise ArgumentError(f"{num_experts} experts do not divide over {devices} devices.")
    device_of = _device_of(devices, ranks)
    found: dict[Exchange, dict[int, np.ndarray]] = {}
    repeats: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for record in records:
        if record.rank not in device_of:
            if ranks is not None:
                continue
            raise ArgumentError(
                f"a record is of rank {record.rank}; want 0 to {devices - 1}, one for each device, "
                "or pass ranks, those of the expert-parallel group."
            )
        name = (record.step, record.block, record.mtp_idx, record.layer)
        exchange = Exchange(*name, repeats[name, record.rank])
        repeats[name, record.rank] += 1
        experts = record.top_indices
        if experts.size and experts.max() >= num_experts:
            raise ArgumentError(
                f"{exchange}, rank {record.rank}: a token has expert {experts.max()}; num_experts "
                f"is {num_experts}."
            )
        found.setdefault(exchange, {})[device_of[record.rank]] = kept(experts)
    if require_all:
        for exchange, of_device in found.items():
            _check_complete(exchange, of_device, device_of)
    return {exchange: found[exchange] for exchange in sorted(found, key=lambda e: e.order)}


def _device_of(devices: int, ranks: Sequence[int] | None) -> dict[int, int]:
    if ranks is None:
        return {rank: rank for rank in range(devices)}
    device_of = {checks.integer("ranks", rank, 0): i for i, rank in enumerate(ranks)}
    if len(ranks) != devices or len(device_of) != devices:
        raise ArgumentError(f"ranks must be {devices} different ones, got {list(ranks)}.")
    return device_of


def _check_complete(
    exchange: Exchange, of_device: Container[int], device_of: dict[int, int]
) -> None:
    missing = [rank for rank, device in device_of.items() if device not in of_device]
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise ArgumentError(
            f"{exchange}: there is no record of rank(s) {', '.join(map(str, missing[:8]))}{more}. "
            "Every rank writes a file of its own; require_all=False takes those without for idle."
        )
