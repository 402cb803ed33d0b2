"""Tables of what deduplication.py found."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import records

from fastjax.simulation import INCAST, PRESETS

SCHEMA = "fastjax-deduplication-2"
LEVEL = 0.01  # how far behind still counts as level
MOST_REGRET = 0.03
_POSITIVE = 1e-9  # seconds
_ROUNDED = 1e-9  # of sums of the same numbers
_SHOWN = 12  # choices that are listed

Cell = dict[str, Any]


def behind(cell: Cell, seconds: float | None = None) -> float:
    """How much longer ours takes, deduplicated, than the deduplicated peer; by default at once."""
    ours = cell["seconds"]["once"] if seconds is None else seconds
    return ours / cell["seconds"]["two-tier once"] - 1


def best(cell: Cell) -> str:
    """The number of chunks in which ours is fastest."""
    return min(cell["chunks"], key=lambda chunks: cell["chunks"][chunks]["total"])


def in_best_chunks(cell: Cell) -> float:
    """Seconds then."""
    return cell["chunks"][best(cell)]["total"]


def regret(cell: Cell) -> float:
    """How much longer the default takes than the better way."""
    return cell["seconds"][cell["default"]] / min(cell["seconds"].values()) - 1


def wrong(record: dict[str, Any]) -> list[str]:
    """Results that are impossible, as text."""
    found = []
    for cell in [*record["layers"], *record["choices"]]:
        name = " ".join(f"{key}={value}" for key, value in cell.items() if not _is_figure(value))
        times = cell["seconds"] | _of_chunks(cell)
        found += [
            f"{name}: {what} takes {seconds!r} s"
            for what, seconds in times.items()
            if not _POSITIVE <= seconds < np.inf
        ]
        found += [f"{name}: {what}" for what in _impossible(cell, times)]
    return found


def _is_figure(value: Any) -> bool:
    return isinstance(value, dict)


def _of_chunks(cell: Cell) -> dict[str, float]:
    return {f"in {n} chunks": found["total"] for n, found in cell.get("chunks", {}).items()}


def _impossible(cell: Cell, times: dict[str, float]) -> list[str]:
    """What contradicts something else in a layer's results."""
    if cell["kind"] == "choice":
        return []
    found = []
    crossing = cell["crossing_per_token"]
    if crossing["once"] > crossing["each"]:
        found.append("more rows cross once than for each choice")
    for name, seconds in times.items():
        bound = cell["bound"]["each" if name.endswith("each") else "once"]
        if seconds < bound * (1 - _ROUNDED):
            found.append(f"{name} takes {seconds!r} s, and NICs need {bound!r} s")
    for chunks, of in cell["chunks"].items():
        if of["total"] < max(of["network"], of["inside"]) * (1 - _ROUNDED):
            found.append(f"{chunks} chunks take {of['total']!r} s, less than a lane is busy")
    one = cell["chunks"]["1"]["total"]
    if abs(one - times["once"]) > _ROUNDED * one:
        found.append(f"one chunk takes {one!r} s, and all at once {times['once']!r} s")
    return found


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
_CHUNKS = ("2", "3", "4")


def layers(cells: Sequence[Cell]) -> str:
    """Times of each model's layer."""
    header = ["model", "experts are", "servers", "rows a token: each choice", "once", "default"]
    header += ["`auto`, each choice", "`auto`, once", "two-tier, each choice", "two-tier, once"]
    header += ["`auto`, once ÷ each", "`auto` ÷ two-tier, both once", "in best chunks"]
    lines = []
    for kind, group in kinds(cells).items():
        times = {name: median(group, "seconds", name) for name in _TIMES}
        crossing = (median(group, "crossing_per_token", way) for way in ("each", "once"))
        chunked = float(np.median([in_best_chunks(cell) for cell in group]))
        ratios = [times["once"] / times["each"], times["once"] / times["two-tier once"]]
        ratios.append(chunked / times["two-tier once"])
        lines.append(
            [
                *_name(kind),
                *(f"{rows:.2f}" for rows in crossing),
                ", ".join(dict.fromkeys(cell["default"] for cell in group)),
                *(f"{seconds * 1e3:.2f}" for seconds in times.values()),
                *(f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    return records.table(header, lines, texts=3)


def _name(kind: tuple[Any, ...]) -> list[str]:
    model, servers, exponent = kind
    return [model, popularity(exponent), f"{servers} x 8"]


def chunks(cells: Sequence[Cell]) -> str:
    """Ours in chunks, by what the peer takes, and what keeps lanes busy then."""
    header = ["model", "experts are", "servers", "1 chunk", *_CHUNKS, "best", "chunks then"]
    header += ["NICs busy", "inside servers busy", "by default", "chunks by default"]
    lines = []
    for kind, group in kinds(cells).items():
        peer = median(group, "seconds", "two-tier once")
        shares = [median(group, "seconds", "once") / peer]
        shares += [median(group, "chunks", n, "total") / peer for n in _CHUNKS]
        shares.append(float(np.median([in_best_chunks(cell) for cell in group])) / peer)
        fastest = [cell["chunks"][best(cell)] for cell in group]
        busy = [float(np.median([of[lane] for of in fastest])) for lane in ("network", "inside")]
        chosen = [cell["chunks"][str(cell["default_chunks"])]["total"] for cell in group]
        default = float(np.median(chosen)) / peer
        lines.append(
            [
                *_name(kind),
                *(f"{share:.2f}" for share in shares),
                ", ".join(sorted({best(cell) for cell in group}, key=int)),
                *(f"{seconds / peer:.2f}" for seconds in busy),
                f"{default:.2f}",
                ", ".join(sorted({str(cell["default_chunks"]) for cell in group}, key=int)),
            ]
        )
    return records.table(header, lines, texts=3)


def outcome(cells: Sequence[Cell]) -> str:
    """In how many layers ours is level or ahead in chunks; and where it is not, why."""
    late = [cell for cell in cells if behind(cell, in_best_chunks(cell)) > LEVEL]
    ahead = sum(behind(cell, in_best_chunks(cell)) < -LEVEL for cell in cells)
    level = len(cells) - len(late) - ahead
    words = (
        f"In the best number of chunks, `auto` is ahead of two-tier by more than {LEVEL:.0%} in "
        f"{ahead} of {len(cells)} layers, level in {level}, and behind in {len(late)}"
    )
    inside = [cell for cell in late if _lane(cell, "inside") > _lane(cell, "network")]
    rest = [cell for cell in late if _lane(cell, "inside") <= _lane(cell, "network")]
    reasons = []
    if inside:
        reasons.append(
            f"in {len(inside)}, copies and sums inside servers take longer than what crosses: "
            f"{_most(inside)}"
        )
    if rest:
        reasons.append(
            f"in {len(rest)}, NICs are busiest, and what is lost is start-ups, of which every "
            f"chunk has its own, and the copies and sums that nothing hides at both ends: "
            f"{_most(rest)}"
        )
    default = _up_to_level(
        cells, [cell["chunks"][str(cell["default_chunks"])]["total"] for cell in cells]
    )
    apart = _up_to_level(cells, [cell["seconds"]["in 4 parts"] for cell in cells])
    return (
        f"{words}{'. Of these: ' if reasons else ''}{'; '.join(reasons)}. In the number of chunks "
        f"that the cost model takes, {default} are level or ahead. All of it is due to chunks that "
        "are on the way back while others cross: if the way back begins when all has arrived, "
        f"{apart} are in 4 chunks."
    )


def _up_to_level(cells: Sequence[Cell], seconds: Sequence[float]) -> int:
    """In how many ours is level or ahead with these times."""
    return sum(behind(cell, ours) <= LEVEL for cell, ours in zip(cells, seconds, strict=True))


def _lane(cell: Cell, lane: str) -> float:
    return cell["chunks"][best(cell)][lane]


def _most(cells: Sequence[Cell]) -> str:
    """Where they are, and up to how far behind."""
    most = max(behind(cell, in_best_chunks(cell)) for cell in cells)
    places = dict.fromkeys(
        f"{cell['model']}, {cell['servers']} x 8, {popularity(cell['exponent'])}" for cell in cells
    )
    return f"up to {most:.1%} ({'; '.join(places)})"


def ifs(cells: Sequence[Cell]) -> str:
    """What is lost inside servers: by what the peer takes."""
    header = ["model", "experts are", "servers", "as it is", *_IF]
    lines = []
    for kind, group in kinds(cells).items():
        peer = median(group, "seconds", "two-tier once")
        shares = (median(group, "seconds", name) / peer for name in ("once", *_IF))
        lines.append([*_name(kind), *(f"{share:.2f}" for share in shares)])
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
        "*default*: what `deduplicate=None` does. *in best chunks*: ours, by the deduplicated peer."
    )
    result = (
        f"All at once, `auto` takes more than {LEVEL:.0%} longer than two-tier, both once, in "
        f"{len(missed)} of {len(record['layers'])} layers; a device has {least / 1e6:.0f} MB of "
        f"tokens or more. {outcome(record['layers'])}"
    )
    chunked = (
        "A device's tokens are split into equal chunks; each is planned, crosses, is copied, "
        "summed and crosses back, while other chunks are in other stages. NICs and links inside "
        "servers work at once, each on one chunk at a time ([how](../../docs/design/simulator.md#"
        "a-layer-in-chunks)); every chunk's exchanges are simulated by themselves, flow by flow. "
        "No experts work here. Times of ours, once, by the peer's, which is not split: its pieces "
        "overlap on each way, and its way back begins when all has arrived. That favours ours, of "
        "which early chunks are on the way back then; with the way back after the last arrival, 2 "
        "and 4 chunks are *in 2 parts* and *in 4 parts* below. *best*: of 1, 2, 3, 4, 6 and 8 "
        "chunks, as simulated. *busy*: how long NICs and links inside servers work then, also by "
        "the peer's time. *by default*: in the number of chunks that the cost model takes for the "
        "best, which knows nothing of popularity."
    )
    why = (
        "Times of ours, once, by the peer's. *as it is*: the exchange inside servers begins when "
        "all that crosses has landed. *once for each device*: the same, but a row that several "
        "experts of a device want is copied to that device once. *in 2 parts*, *in 4 parts*: as it "
        "is, but one part of the tokens crosses while the one before is exchanged inside servers, "
        "there, and then back. *handed on*: once for each device, with NICs balanced, copied as "
        "rows land and summed as they come, in 16 pieces; nothing is planned. Then ours takes "
        f"{_span(record['layers'], 'handed on')} of the peer's time, as it is "
        f"{_span(record['layers'], 'once')}: what is lost is that nothing crosses while rows are "
        "exchanged inside servers, and with popular experts that takes long, since a server's "
        "copies meet at one device."
    )
    default = (
        f"Whether `deduplicate=None` takes the better way: {record['experts']} experts, k choices, "
        f"1 to 8 servers of 8 devices, rows of 256 B to 16 KiB, {record['tokens']:,} tokens a "
        "device, both ways as `auto` plans them. *regret*: how much longer the default takes. It "
        "does not know how popular experts will be, and deduplicates where that is predicted to be "
        "faster both for equally popular ones and for such as are popular by Zipf's law. Where the "
        "better way depends on it, no default is right for both."
    )
    parts = [f"# {title}", about, who, "## Layers of known models", result]
    parts += [layers(record["layers"]), "## In chunks", chunked, chunks(record["layers"])]
    parts += ["## What it is that costs", why, ifs(record["layers"])]
    parts += ["## The default", default, choices(record["choices"])]
    parts += [text for text in [worst(record["choices"])] if text]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"
