"""Tables of what cpp/plan_time.cc measured."""

from collections.abc import Sequence
from typing import Any

import records

SCHEMA = "fastjax-plan-time-1"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def as_table(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "traffic", "runs", "min µs", "median µs", "max µs", "processor µs"]
    header += ["stages only µs", "matchings", "stages", "length ÷ bound", "predicted ÷ bound"]
    header += ["memory KiB", "table KiB"]
    lines = []
    for result in results:
        planner, plan_us = result["planner"], result["planner"]["plan_us"]
        lines.append(
            [
                f"{result['devices']:,}",
                result["skew"],
                f"{plan_us['runs']:,}",
                *(number(plan_us[k], 1) for k in ("min", "median", "max")),
                number(planner["processor_us"]["median"], 1),
                number(planner["stages_only_us"]["median"], 1),
                number(planner["matchings"], 1),
                number(planner["stages"], 1),
                number(planner["length_by_bound"], 6),
                number(planner["predicted_by_bound"], 3),
                number(planner["memory_bytes"] / 1024, 0),
                number(planner["table_bytes"] / 1024, 1),
            ]
        )
    return records.table(header, lines)


def against_textbook(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "traffic", "textbook runs", "min µs", "median µs", "max µs"]
    header += ["processor µs", "stages only µs", "matchings", "memory KiB"]
    header += [f"textbook ÷ planner: {what}" for what in ("processor", "median", "min")]
    header += ["matchings"]
    lines = []
    for result in results:
        book, planner = result["textbook"], result["planner"]
        if book is None:
            continue
        matchings = planner["matchings"]
        lines.append(
            [
                f"{result['devices']:,}",
                result["skew"],
                f"{book['plan_us']['runs']:,}",
                *(number(book["plan_us"][k], 1) for k in ("min", "median", "max")),
                number(book["processor_us"]["median"], 1),
                number(book["stages_only_us"]["median"], 1),
                number(book["stages"], 1),
                number(book["memory_bytes"] / 1024, 0),
                *(
                    number(book[what][k] / planner[what][k], 1)
                    for what, k in (
                        ("processor_us", "median"),
                        ("plan_us", "median"),
                        ("plan_us", "min"),
                    )
                ),
                "-" if matchings is None else number(book["stages"] / matchings, 1),
            ]
        )
    return records.table(header, lines)


def page(record: dict[str, Any], title: str) -> str:
    machine, versions = record["machine"], record["versions"]
    about = (
        f"From a traffic matrix to the stage table of one device: `{record['scheduler']}`, "
        f"{record['devices_per_server']} devices a server, {record['row_bytes']} bytes a row, "
        "4,096 rows a pair of devices on average, a warm planner, another matrix every time, one "
        "thread. Counts are means over the matrices. *processor*: without the time that other "
        "programs had the processor, the median of means over rounds. *stages only*: until the "
        "stages are known, before anything is listed. *length ÷ bound*: rows of every stage's "
        "busiest NIC by the busiest server's share of a NIC. *predicted ÷ bound*: times, by the "
        "cost model, start-ups included. *memory*: what the planner keeps beside the matrix and "
        "the table."
    )
    textbook = (
        "In the same rounds, on the same matrices: Birkhoff's decomposition as textbooks have it, "
        "with a perfect matching found from nothing for every stage (Hopcroft and Karp), greedy "
        "balance and no chunks, up to the list of one device's transfers; it writes no table. "
        "Compiled with the same flags. Where other programs run, they hit a plan that takes "
        "milliseconds more often than one that takes microseconds: *processor* is the fair ratio."
    )
    paper = (
        "The paper (arXiv 2505.09764) reports, on its own machine and without per-device tables, "
        "3.1 µs at 16 GPUs, 25 µs at 32, 221 µs at 64, 805 µs at 96 and 77 ms at 320."
    )
    where = (
        f"{machine['cpu']}, {machine['usable_cores']} cores, load average "
        f"{machine['load_average']:.2f} at the start. fastjax {versions['fastjax']}, "
        f"{versions['compiler']}."
    )
    results = record["results"]
    parts = [f"# {title}", about, as_table(results), "## Beside the textbook", textbook]
    return "\n\n".join([*parts, against_textbook(results), paper, where]) + "\n"
