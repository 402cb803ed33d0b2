"""Tables of what deduplication.py found."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import records

from fastjax.simulation import INCAST, PRESETS

SCHEMA = "fastjax-deduplication-1"
LEVEL = 0.01  # how far behind still counts as level
MOST_REGRET = 0.03
_FROM = 16_000_000  # bytes of a device's tokens
_SHOWN = 12  # choices that are listed

Cell = dict[str, Any]


def behind(cell: Cell) -> float:
    """How much longer ours takes, deduplicated, than the deduplicated peer."""
    return cell["seconds"]["once"] / cell["seconds"]["two-tier once"] - 1


def regret(cell: Cell) -> float:
    """How much longer the default takes than the better way."""
    return cell["seconds"][cell["default"]] / min(cell["seconds"].values()) - 1


def met(record: dict[str, Any]) -> bool:
    """Whether ours is nowhere behind the peer, and the default nowhere behind the better way."""
    judged = [cell for cell in record["layers"] if cell["device_bytes"] >= _FROM]
    even = [cell for cell in record["choices"] if not cell["exponent"]]
    return all(behind(c) <= LEVEL for c in judged) and all(regret(c) <= MOST_REGRET for c in even)


def kinds(cells: Sequence[Cell]) -> dict[tuple[Any, ...], list[Cell]]:
    """Layers that differ in their seed only."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell["model"], cell["servers"], cell["exponent"]), []).append(cell)
    return found


def popularity(exponent: float) -> str:
    return f"Zipf {exponent:g}" if exponent else "even"


def median(cells: Sequence[Cell], *path: str) -> float:
    values = []
    for cell in cells:
        value: Any = cell
        for name in path:
            value = value[name]
        values.append(value)
    return float(np.median(values))


_TIMES = ("each", "once", "two-tier each", "two-tier once")
_IF = ("once for each device", "in 2 parts", "in 4 parts", "handed on")


def layers(cells: Sequence[Cell]) -> str:
    """Times of each model's layer."""
    header = ["model", "experts are", "servers", "rows a token: each choice", "once", "default"]
    header += ["`auto`, each choice", "`auto`, once", "two-tier, each choice", "two-tier, once"]
    header += ["`auto`, once ÷ each", "`auto` ÷ two-tier, both once"]
    lines = []
    for (model, servers, exponent), group in kinds(cells).items():
        times = {name: median(group, "seconds", name) for name in _TIMES}
        crossing = (median(group, "crossing_per_token", way) for way in ("each", "once"))
        ratios = times["once"] / times["each"], times["once"] / times["two-tier once"]
        lines.append(
            [
                model,
                popularity(exponent),
                f"{servers} x 8",
                *(f"{rows:.2f}" for rows in crossing),
                ", ".join(dict.fromkeys(cell["default"] for cell in group)),
                *(f"{seconds * 1e3:.2f}" for seconds in times.values()),
                *(f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    return records.table(header, lines, texts=3)


def ifs(cells: Sequence[Cell]) -> str:
    """What is lost inside servers: by what the peer takes."""
    header = ["model", "experts are", "servers", "as it is", *_IF]
    lines = []
    for (model, servers, exponent), group in kinds(cells).items():
        peer = median(group, "seconds", "two-tier once")
        shares = (median(group, "seconds", name) / peer for name in ("once", *_IF))
        line = [model, popularity(exponent), f"{servers} x 8"]
        lines.append([*line, *(f"{share:.2f}" for share in shares)])
    return records.table(header, lines, texts=3)


def _span(cells: Sequence[Cell], name: str) -> str:
    """From the least to the most of the deduplicated peer's time."""
    peer = [cell["seconds"]["two-tier once"] for cell in cells]
    shares = [cell["seconds"][name] / by for cell, by in zip(cells, peer, strict=True)]
    return f"{min(shares):.2f} to {max(shares):.2f}"


def choices(cells: Sequence[Cell]) -> str:
    """The worst regret by number of choices, for each popularity."""
    header = ["experts are", "k", "problems", f"above {MOST_REGRET:.0%}", "worst", "there"]
    groups: dict[tuple[float, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell["exponent"], cell["top_k"]), []).append(cell)
    lines = []
    for (exponent, top_k), group in sorted(groups.items()):
        worst = max(group, key=regret)
        lines.append(
            [
                popularity(exponent),
                str(top_k),
                str(len(group)),
                str(sum(regret(cell) > MOST_REGRET for cell in group)),
                f"{regret(worst):.1%}",
                place(worst) if regret(worst) else "-",
            ]
        )
    return records.table(header, lines, texts=1)


def worst(cells: Sequence[Cell]) -> str:
    """The problems with the largest regret."""
    ordered = sorted(cells, key=regret, reverse=True)
    rows = [
        [
            popularity(cell["exponent"]),
            str(cell["top_k"]),
            place(cell),
            cell["default"],
            *(f"{cell['seconds'][way] * 1e6:.0f}" for way in ("each", "once")),
            f"{regret(cell):.1%}",
        ]
        for cell in ordered[:_SHOWN]
        if regret(cell) > MOST_REGRET
    ]
    header = ["experts are", "k", "where", "default", "each choice, µs", "once, µs", "regret"]
    return records.table(header, rows, texts=1) if rows else ""


def place(cell: Cell) -> str:
    size = cell["row_bytes"]
    return f"{cell['servers']} x 8, {f'{size // 1024} KiB' if size >= 1024 else f'{size} B'}"


def page(record: dict[str, Any], title: str) -> str:
    preset = PRESETS[record["preset"]]
    seeds = len({cell["seed"] for cell in record["layers"]})
    missed = [cell for cell in record["layers"] if behind(cell) > LEVEL]
    least = min(cell["device_bytes"] for cell in record["layers"])
    about = (
        f"Dispatch and combine of a layer of experts, {record['tokens']:,} tokens a device in bf16 "
        f"out and back, simulated flow by flow at the rates of {preset.source}, incast "
        f"{INCAST[preset.incast]}. Nothing here is a time of this machine or of any cluster. "
        "Experts are as many, and limited to groups, as in the models (`fastjax.traffic.ROUTINGS`),"
        " and equally popular or by Zipf's law in random order; the models' own routing is not "
        f"public. Times are ms, both ways and one planning, medians over {seeds} seeds."
    )
    who = (
        "*each choice*: a row for each choice of a token. *once*: one row to each server that the "
        "token goes to, copied there, and summed there on the way back. `auto`, once, is what "
        "`fastjax.moe` does: rows land where NICs are balanced, and one exchange inside servers "
        "follows when all have landed. *two-tier* is in DeepEP's manner: over each device's own "
        "NIC to the same place in the target's server, which hands on as rows come, in "
        "16 pieces; once, with a copy for each device and not for each choice. Copies "
        "but the first need not wait for the row that they are of, which favours it a little. "
        "*default*: what `deduplicate=None` does."
    )
    result = (
        f"`auto` takes more than {LEVEL:.0%} longer than two-tier, both once, in {len(missed)} of "
        f"{len(record['layers'])} layers; a device has {least / 1e6:.0f} MB of tokens or more."
    )
    why = (
        "Times of ours, once, by the peer's. *as it is*: the exchange inside servers begins when "
        "all that crosses has landed. *once for each device*: the same, but a row that several "
        "experts of a device want is copied to that device once. *in 2 parts*, *in 4 parts*: as it "
        "is, but one part of the tokens crosses while the one before is exchanged inside servers; "
        "each is planned. *handed on*: once for each device, with NICs balanced, copied as rows "
        "land and summed as they come, in 16 pieces; nothing is planned. Then ours takes "
        f"{_span(record['layers'], 'handed on')} of the peer's time, as it is "
        f"{_span(record['layers'], 'once')}: what is lost is that nothing crosses while rows are "
        "exchanged inside servers, and with popular experts that takes long, since a server's "
        "copies meet at one device."
    )
    default = (
        f"Whether `deduplicate=None` takes the better way: {record['experts']} experts, k choices, "
        f"1 to 8 servers of 8 devices, rows of 256 B to 16 KiB, {record['tokens']:,} tokens a "
        "device, both ways as `auto` plans them. *regret*: how much longer the default takes. It "
        "supposes that experts are equally popular; the lines by Zipf's law show what that costs."
    )
    parts = [f"# {title}", about, who, "## Layers of known models", result]
    parts += [layers(record["layers"]), "## What it is that costs", why, ifs(record["layers"])]
    parts += ["## The default", default, choices(record["choices"])]
    parts += [text for text in [worst(record["choices"])] if text]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"
