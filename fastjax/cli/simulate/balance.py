"""A layer whose experts are levelled inside servers: which device computes which rows.

That is dealt once for all tokens. Then the layer can be simulated as one of an expert for each
device, which is chosen by the rows that the device computes.
"""

from __future__ import annotations

import numpy as np

from fastjax.chunking.levelling import Levelling
from fastjax.chunking.resources import Parts


def level(choices: np.ndarray, counts: np.ndarray, model: Levelling) -> tuple[np.ndarray, Parts]:
    """The device that computes each choice's row, and what the first chunk takes more.

    That is the way of the copies' weights, which is of all devices, and what joins them to the
    device's own.

    Args:
      choices: experts of each device's tokens, shape (devices, tokens, k); -1: none.
      counts: choices of each expert.
      model: how experts are levelled.
    """
    slots, rows = model.deal(counts)
    weights = model.weights_seconds(slots, len(counts))
    more = Parts(copies=weights, experts=model.fixed_seconds(len(counts)))
    return devices_of(choices, dealt(slots, rows, len(counts))), more


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
