"""A layer whose experts are levelled inside servers, or placed as by EPLB: who computes which rows.

That is dealt once for all tokens. Then the layer can be simulated as one of an expert for each
device, which is chosen by the rows that the device computes.
"""

from __future__ import annotations

import bisect

import numpy as np

from fastjax.chunking import levelling
from fastjax.chunking.levelling import Levelling
from fastjax.chunking.resources import Parts
from fastjax.cli.shared import text
from fastjax.traffic.generators import round_shares

_MOST_TOKENS = 2**20


def level(counts: np.ndarray, model: Levelling) -> tuple[np.ndarray, Parts, str]:
    """Rows of each expert for each device, what the first chunk takes more, and copies in words.

    It takes the way of the copies' weights more, which is of all devices, and what joins them to
    the device's own.

    Args:
      counts: choices of each expert.
      model: how experts are levelled.
    """
    slots, rows = model.deal(counts)
    copies = (slots >= 0).sum(1)
    weights = model.weights_seconds(slots, len(counts))
    more = Parts(copies=weights, experts=model.fixed_seconds(len(counts)))
    size = text.size(int(copies.sum()) * model.expert_bytes)
    words = f"{copies.sum()}, at most {copies.max()} on a device; {size} of weights move"
    return dealt(slots, rows, len(counts)), more, words


def by_popularity(counts: np.ndarray, devices: int) -> np.ndarray:
    """Rows of each expert for each device, of whole experts that are placed by their loads.

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


def verdict(model: Levelling, counts: np.ndarray, tokens: int, top_k: int) -> list[str]:
    """When levelling gains, and whether the model of `moe.layer` would level: sentences."""
    least = break_even(model, counts, tokens)
    pays = "does not pay" if least is None else f"pays from {least:,} tokens a device"
    levels = levelling.pays(model, tokens, top_k, len(counts))
    return [
        f"With experts as popular, and apart from exchanges, levelling {pays}.",
        f"The cost model, which does not know them, would {'' if levels else 'not '}level experts.",
    ]


def dealt(slots: np.ndarray, rows: np.ndarray, experts: int) -> np.ndarray:
    """Rows of each expert for each device, of what `Levelling.deal` returns."""
    devices = len(slots)
    homes = np.arange(experts).reshape(devices, -1)
    groups = np.concatenate([homes, slots], axis=1)
    device, group = np.nonzero(groups >= 0)
    quotas = np.zeros((experts, devices), np.int64)
    np.add.at(quotas, (groups[device, group], device), rows[device, group])
    return quotas


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
