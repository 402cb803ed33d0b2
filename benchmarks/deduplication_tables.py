"""Tables of what deduplication.py found."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import records

from fastjax.simulation import INCAST, PRESETS

SCHEMA = "fastjax-deduplication-3"
LEVEL = 0.01  # how far behind still counts as level
MOST_REGRET = 0.03
_ROUNDED = 1e-9  # of sums of the same numbers
_SHOWN = 12  # choices that are listed

Cell = dict[str, Any]


def behind(cell: Cell, seconds: float | None = None) -> float:
    """How much longer ours takes, deduplicated, than the deduplicated peer; by default at once."""
    ours = cell["seconds"]["once"] if seconds is None else seconds
    return ours / cell["seconds"]["two-tier once"] - 1


def best(cell: Cell) -> str:
    """The number of chunks in which ours is fastest."""
    return min(cell["chunks"], key=cell["chunks"].__getitem__)


def in_best_chunks(cell: Cell) -> float:
    """Seconds then."""
    return cell["chunks"][best(cell)]


def by_default(cell: Cell) -> float:
    """Seconds in the number of chunks that the cost model takes."""
    return cell["chunks"][str(cell["default_chunks"])]


def regret(cell: Cell) -> float:
    """How much longer the default takes than the better way."""
    return cell["seconds"][cell["default"]] / min(cell["seconds"].values()) - 1


def impossible(cells: Sequence[Cell]) -> list[str]:
    """Times of layers that are shorter than NICs need, as text."""
    found = []
    for cell in cells:
        times = cell["seconds"] | {f"in {n} chunks": s for n, s in cell["chunks"].items()}
        for name, seconds in times.items():
            bound = cell["bound"]["each" if name.endswith("each") else "once"]
            if not bound * (1 - _ROUNDED) <= seconds < np.inf:
                where = f"{cell['model']}, {cell['servers']} x 8, seed {cell['seed']}"
                found.append(f"{where}: {name} takes {seconds!r} s, and NICs need {bound!r} s")
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
    """Ours in chunks, by what the peer takes."""
    header = ["model", "experts are", "servers", "1 chunk", *_CHUNKS, "best", "chunks then"]
    header += ["by default", "chunks by default"]
    lines = []
    for kind, group in kinds(cells).items():
        peer = median(group, "seconds", "two-tier once")
        times = [median(group, "seconds", "once")]
        times += [median(group, "chunks", n) for n in _CHUNKS]
        times.append(float(np.median([in_best_chunks(cell) for cell in group])))
        default = float(np.median([by_default(cell) for cell in group]))
        lines.append(
            [
                *_name(kind),
                *(f"{seconds / peer:.2f}" for seconds in times),
                ", ".join(sorted({best(cell) for cell in group}, key=int)),
                f"{default / peer:.2f}",
                ", ".join(sorted({str(cell["default_chunks"]) for cell in group}, key=int)),
            ]
        )
    return records.table(header, lines, texts=3)


def outcome(cells: Sequence[Cell]) -> str:
    """In how many layers ours is level or ahead in chunks."""
    gaps = [behind(cell, in_best_chunks(cell)) for cell in cells]
    ahead, late = sum(gap < -LEVEL for gap in gaps), sum(gap > LEVEL for gap in gaps)
    default = sum(behind(cell, by_default(cell)) <= LEVEL for cell in cells)
    return (
        f"In the best number of chunks, `auto` is ahead of two-tier by more than {LEVEL:.0%} in "
        f"{ahead} of {len(cells)} layers, level in {len(cells) - ahead - late}, and behind in "
        f"{late}, by {max(gaps):.1%} at most. In the number of chunks that the cost model takes, "
        f"{default} are level or ahead."
    )


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
        f"{len(missed)} of {len(record['layers'])} layers. {outcome(record['layers'])}"
    )
    chunked = (
        "A device's tokens are split into equal chunks; each is planned, crosses, is copied, "
        "summed and crosses back, while other chunks are in other stages. NICs and links inside "
        "servers work at once, each on one chunk at a time ([how](../../docs/design/simulator.md#"
        "a-layer-in-chunks)); every chunk's exchanges are simulated by themselves, flow by flow. "
        "No experts work here. Times of ours, once, by the peer's, which is not split: its pieces "
        "overlap on each way, and its way back begins when all has arrived, which favours ours. "
        "*best*: of 1, 2, 3, 4, 6 and 8 chunks, as simulated. *by default*: in the number that the "
        "cost model takes, which knows nothing of popularity."
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
    parts += ["## The default", default, choices(record["choices"])]
    parts += [text for text in [worst(record["choices"])] if text]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"
