"""A layer whose experts are levelled inside servers, beside those at home, or placed as by EPLB.

Which device computes which rows is dealt once for all tokens. Then the layer is simulated as one of
an expert for each device, which is chosen by the rows that the device computes.
"""

from __future__ import annotations

import bisect
import dataclasses

import numpy as np

from fastjax.chunking import levelling
from fastjax.chunking.levelling import Levelling
from fastjax.cli.shared import text
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import layer
from fastjax.cli.simulate.layer import Way, Ways, Work
from fastjax.traffic.generators import round_shares

_MOST_TOKENS = 2**20
_CAPTION = """\
slowest / mean: of devices' rows. copies: of experts, in all and the most on a device. time: with
planning, in the best number of chunks; levelled, with the way of the copies' weights, which is of
all devices, and what joins them to the device's own."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A layer whose experts are somewhere.

    Attributes:
      way: the best way to run it, by the name of the place.
      loads: rows that each device computes.
      copies: of experts that each device has for others.
    """

    way: Way
    loads: np.ndarray
    copies: np.ndarray

    @property
    def slowest(self) -> float:
        """The most rows of a device, by the mean."""
        return float(self.loads.max() / max(self.loads.mean(), 1))


@dataclasses.dataclass(frozen=True)
class Balanced:
    """A layer with experts at home, levelled, and with the popular ones on several devices.

    Attributes:
      home: each device computes for its experts.
      levelled: devices of a server compute for each other's.
      placed: whole experts are where their popularity, which is known, wants them.
      least: the fewest tokens of a device with which levelling gains; None if it never does.
      default: whether `moe.layer` levels if nobody says so.
    """

    home: Placed
    levelled: Placed
    placed: Placed
    least: int | None
    default: bool


def simulate(work: Work, ways: Ways) -> Balanced:
    """Each way is planned by the scheduler that is fastest for experts at home."""
    assert work.seconds_per_row is not None
    fabric, copies, seconds = work.topology, work.copies, work.seconds_per_row
    model = Levelling(fabric, copies, work.expert_bytes, seconds, layer.PLATFORM)
    counts, devices = work.counts, fabric.num_devices
    experts, tokens = len(counts), work.tokens
    slots, rows = model.deal(counts)
    levelled, placed = dealt(slots, rows, experts), by_popularity(counts, devices)
    weights, fixed = model.weights_seconds(slots, experts), model.fixed_seconds(experts)
    none = np.zeros(devices, int)
    home = dataclasses.replace(layer.best_of(ways.split), name="at home")
    way = _best("levelled", work, ways, levelled, weights, fixed)
    as_eplb = _best("popularity known, as EPLB", work, ways, placed)
    return Balanced(
        Placed(home, work.traffic.each.sum(0), none),
        Placed(way, levelled.sum(0), (slots >= 0).sum(1)),
        Placed(as_eplb, placed.sum(0), none),
        break_even(model, counts, tokens.count),
        levelling.pays(model, tokens.count, tokens.top_k, experts),
    )


def _best(
    name: str,
    work: Work,
    ways: Ways,
    quotas: np.ndarray,
    weights: float = 0.0,
    fixed: float = 0.0,
) -> Way:
    """The best way where devices compute so many rows of each expert."""
    owners = devices_of(work.choices, quotas)
    moved = dataclasses.replace(work, choices=owners, num_experts=len(owners))
    with Progress(sum(way.forward.chunks for way in ways.split)) as progress:
        found = [
            layer.in_chunks(
                moved,
                way.scheduler,
                way.forward.chunks,
                progress,
                once=way.forward.deduplicated,
                weights=weights,
                fixed=fixed,
            )
            for way in ways.split
        ]
    return dataclasses.replace(layer.best_of(found), name=name)


def dealt(slots: np.ndarray, rows: np.ndarray, experts: int) -> np.ndarray:
    """Rows of each expert for each device, of what `Levelling.deal` returns."""
    devices = len(slots)
    homes = np.arange(experts).reshape(devices, -1)
    groups = np.concatenate([homes, slots], axis=1)
    device, group = np.nonzero(groups >= 0)
    quotas = np.zeros((experts, devices), np.int64)
    np.add.at(quotas, (groups[device, group], device), rows[device, group])
    return quotas


def by_popularity(counts: np.ndarray, devices: int) -> np.ndarray:
    """The same of whole experts that have been placed by their loads.

    As EPLB's global policy does (github deepseek-ai/EPLB), with one replica for each device: the
    expert with most load a replica gets the next one; then replicas go to devices, those with most
    load first, each to the one with least that has room. Replicas share an expert's rows alike.
    """
    replicas = np.ones(len(counts), np.int64)
    for _ in range(devices):
        replicas[np.argmax(counts / replicas)] += 1
    expert = np.repeat(np.arange(len(counts)), replicas)
    load = (counts / replicas)[expert]
    room = np.full(devices, len(expert) // devices)
    filled = np.zeros(devices)
    placed = np.zeros((len(counts), devices))
    for number in np.argsort(-load, kind="stable"):
        device = np.argmin(np.where(room > 0, filled, np.inf))
        room[device] -= 1
        filled[device] += load[number]
        placed[expert[number], device] += 1
    shares = placed / replicas[:, None]
    return np.stack([round_shares(*of) for of in zip(shares, counts.tolist(), strict=True)])


def devices_of(choices: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """The device that computes each choice's row, -1 for none.

    Rows that are already where they may be computed stay. All are interleaved, so that each part of
    the tokens is dealt about as all of them.

    Args:
      choices: experts of each device's tokens, shape (devices, tokens, k); -1: none.
      quotas: rows of each expert for each device; together as many as there are choices.
    """
    devices = len(choices)
    order = np.argsort(choices, axis=None, kind="stable")
    ends = np.cumsum(np.bincount(choices.ravel() + 1, minlength=len(quotas) + 1))
    found = np.full(choices.size, -1)
    for rows, first, last in zip(quotas, ends, ends[1:], strict=False):
        places = order[first:last]
        sender = places // max(1, found.size // devices)
        sent = np.bincount(sender, minlength=devices)
        kept = np.minimum(sent, rows)
        number = np.arange(len(sender)) - np.repeat(np.cumsum(sent) - sent, sent)
        of, many = np.repeat(kept, sent), np.repeat(sent, sent)
        stays = (number + 1) * of // many > number * of // many
        found[places[stays]] = sender[stays]
        found[places[~stays]] = _interleaved(rows - kept)
    return found.reshape(choices.shape)


def _interleaved(counts: np.ndarray) -> np.ndarray:
    """Each number as often as `counts` says, evenly spread."""
    device = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(device)) - np.repeat(np.cumsum(counts) - counts, counts)
    return device[np.argsort((number + 0.5) / counts[device], kind="stable")]


def break_even(model: Levelling, counts: np.ndarray, tokens: int) -> int | None:
    """The fewest tokens of a device with which levelling gains, for the same popularity.

    Args:
      model: the experts.
      counts: rows of each.
      tokens: of a device, that chose them.

    Returns:
      How many, up to 2**20; None if there is no gain with as many.
    """

    def gains(many: int) -> bool:
        return model.gain(np.rint(counts * (many / max(1, tokens))).astype(np.int64)) > 0

    most = min(_MOST_TOKENS, (2**31 - 1 - len(counts)) * tokens // max(1, int(counts.sum())))
    least = bisect.bisect_left(range(1, most + 1), True, key=gains) + 1
    return least if least <= most else None


def table(work: Work, found: Balanced) -> str:
    """A line for each place of experts."""
    home = found.home.way.forward.total
    columns: text.Columns = {
        "experts": lambda placed: placed.way.name,
        "slowest / mean": lambda placed: f"{placed.slowest:.3f}",
        "copies": lambda placed: (
            f"{placed.copies.sum()}, {placed.copies.max()}" if placed.copies.any() else "0"
        ),
        "weights moved": lambda placed: text.size(int(placed.copies.sum()) * work.expert_bytes),
        "chunks": lambda placed: str(placed.way.forward.chunks),
        "time": lambda placed: text.seconds(placed.way.forward.total),
        "x at home": lambda placed: f"{placed.way.forward.total / home:.3f}",
    }
    row = text.seconds(work.seconds_per_row or 0.0)
    title = f"experts of {text.size(work.expert_bytes)}, {row} a row"
    return text.table(title, columns, [found.home, found.levelled, found.placed], _CAPTION)


def verdict(found: Balanced) -> list[str]:
    """What levelling gains: sentences."""
    least = found.least
    pays = "does not pay" if least is None else f"pays from {least:,} tokens a device"
    before, after = (f"{placed.slowest:.2f}" for placed in (found.home, found.levelled))
    ratio = found.levelled.way.forward.total / found.home.way.forward.total
    return [
        f"Levelled, the slowest device has {after} x the mean rows in place of {before} x.",
        f"The layer takes {ratio:.2f} x as long.",
        f"With experts as popular, and apart from exchanges, that {pays}.",
        f"By default moe.layer {'levels' if found.default else 'does not level'} experts here.",
    ]
