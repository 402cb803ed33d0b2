"""Which device computes which rows: experts as they are placed, and choices as they are dealt."""

from __future__ import annotations

import numpy as np

from fastjax.traffic.generators import round_shares


def dealt(slots: np.ndarray, rows: np.ndarray, experts: int) -> np.ndarray:
    """Rows of each expert for each device, of what `host.levelling.level` returns."""
    devices = len(slots)
    homes = np.arange(experts).reshape(devices, -1)
    groups = np.concatenate([homes, slots], axis=1)
    device, group = np.nonzero(groups >= 0)
    quotas = np.zeros((experts, devices), np.int64)
    np.add.at(quotas, (groups[device, group], device), rows[device, group])
    return quotas


def by_history(history: np.ndarray, counts: np.ndarray, devices: int) -> np.ndarray:
    """The same of whole experts that have been placed by loads of the past.

    As EPLB's global policy does (github deepseek-ai/EPLB), with one replica for each device: the
    expert with most load a replica gets the next one; then replicas go to devices, those with most
    load first, each to the one with least that has room. Replicas share an expert's rows alike.
    """
    replicas = np.ones(len(history), np.int64)
    for _ in range(devices):
        replicas[np.argmax(history / replicas)] += 1
    expert = np.repeat(np.arange(len(history)), replicas)
    load = (history / replicas)[expert]
    room = np.full(devices, len(expert) // devices)
    filled = np.zeros(devices)
    placed = np.zeros((len(history), devices))
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
