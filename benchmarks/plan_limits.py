"""What planning times are judged by, and tables of who met it.

Every limit is for one plan by a warm planner on one core, with the table of one device.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import records

Result = dict[str, Any]

# By devices, 8 of them a server.
MICROSECONDS = {32: 8, 64: 25, 96: 60, 320: 1_000, 1024: 10_000, 8192: 1_000_000}
MATCHINGS = {32: 8, 64: 20, 96: 36, 320: 140}
LENGTH_BY_BOUND = 1.01
TIMES_FASTER = {320: 50}


def number(value: float | None, digits: int) -> str:
    """With commas; a dash for what is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def yes(met: bool) -> str:
    return "yes" if met else "no"


def limited(
    results: Sequence[Result], limits: dict[int, int]
) -> Iterator[tuple[Result, int, list[str]]]:
    """Those that have a limit, with it and the cells that their line begins with."""
    for result in results:
        limit = limits.get(result["devices"])
        if limit is not None:
            yield result, limit, [f"{result['devices']:,}", result["skew"]]


def met_by(planner: dict[str, Any], limit: float) -> str:
    """The strictest of the figures of a planner's time that keeps the limit."""
    if planner["plan_us"]["median"] <= limit:
        return "yes"
    if planner["plan_us"]["p25"] <= limit:
        return "lower quartile only"
    return "processor time only" if planner["processor_us"]["median"] <= limit else "no"


def times(results: Sequence[Result]) -> str:
    header = ["devices", "traffic", "limit µs", "median µs", "lower quartile µs"]
    lines = []
    for result, limit, line in limited(results, MICROSECONDS):
        planner = result["planner"]
        plan_us, processor_us = planner["plan_us"], planner["processor_us"]
        figures = plan_us["median"], plan_us["p25"], processor_us["median"]
        line += [f"{limit:,}", *(number(value, 1) for value in figures), met_by(planner, limit)]
        lines.append(line)
    return records.table([*header, "processor µs", "met"], lines)


def sizes(results: Sequence[Result]) -> str:
    """How many matchings and how long: for every matrix, so the largest count."""
    header = ["devices", "traffic", "matchings, limit", "mean", "max", "met"]
    header += ["length ÷ bound, limit", "mean", "max", "met"]
    lines = []
    for result, limit, line in limited(results, MATCHINGS):
        matchings, length = result["planner"]["matchings"], result["planner"]["length_by_bound"]
        line += [str(limit), number(matchings["mean"], 1), number(matchings["max"], 0)]
        line += [yes(matchings["max"] <= limit), f"{LENGTH_BY_BOUND:g}"]
        by_bound = ["-"] * 3
        if length is not None:
            by_bound = [number(length["mean"], 6), number(length["max"], 6)]
            by_bound.append(yes(length["max"] <= LENGTH_BY_BOUND))
        lines.append([*line, *by_bound])
    return records.table(header, lines)


def ratios(result: Result) -> dict[str, dict[str, float]]:
    """By textbook: how many times as long as the planner it takes, and as many matchings."""
    planner = result["planner"]
    return {
        book["name"]: {
            "processor": book["processor_us"]["median"] / planner["processor_us"]["median"],
            "median": book["plan_us"]["median"] / planner["plan_us"]["median"],
            "min": book["plan_us"]["min"] / planner["plan_us"]["min"],
            "matchings": book["stages"] / planner["matchings"]["mean"],
        }
        for book in result["textbooks"]
    }


def times_faster(results: Sequence[Result]) -> str:
    """Both textbooks by the planner; the limit is for the plain one, the first."""
    header = ["devices", "traffic", "textbook", "limit", "processor", "median", "min"]
    lines = []
    for result, limit, line in limited(results, TIMES_FASTER):
        for i, (name, ratio) in enumerate(ratios(result).items()):
            figures = [number(ratio[of], 1) for of in ("processor", "median", "min")]
            verdicts = [yes(ratio[of] >= limit) for of in ("processor", "median")]
            aim = str(limit) if i == 0 else "-"
            lines.append([*line, name, aim, *figures, *(verdicts if i == 0 else ["-", "-"])])
    return records.table([*header, "met, processor", "met, median"], lines, texts=3)


def section(results: Sequence[Result]) -> str:
    """The verdicts, with a heading for each kind of limit."""
    timed = {result["devices"] for result in results}
    missing = [f"{devices:,}" for devices in MICROSECONDS if devices not in timed]
    without = f" Not timed in this run: {', '.join(missing)} devices." if missing else ""
    shared = (
        "The machine is shared: while other programs have the processor, the clock on the wall "
        "goes on. The median has that in it, the lower quartile less, the processor time "
        f"nothing of it. *met* says which of them keep the limit.{without}"
    )
    counts = "Over all matrices, before matchings are cut into stages. *met* goes by the largest."
    textbook = (
        "Times of the textbooks below, divided by the planner's. What takes longer than a turn of "
        "the processor is interrupted for certain, what takes less hardly ever: on a shared "
        "machine the ratio of medians flatters the planner, that of processor times does not."
    )
    parts = [shared, times(results)]
    parts += ["### Few matchings, short stages", counts, sizes(results)]
    parts += ["### Faster than the textbook", textbook, times_faster(results)]
    return "\n\n".join(parts)
