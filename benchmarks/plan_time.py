"""Tables of what cpp/plan_time.cc measured."""

from collections.abc import Sequence
from typing import Any

import plan_limits
import records
from plan_limits import number

SCHEMA = "fastjax-plan-time-2"


def as_table(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "traffic", "runs", "median µs", "lower quartile µs", "min µs", "max µs"]
    header += ["processor µs", "stages only µs", "matchings", "stages", "length ÷ bound"]
    header += ["predicted ÷ bound", "memory KiB", "table KiB"]
    lines = []
    for result in results:
        planner, plan_us = result["planner"], result["planner"]["plan_us"]
        length = planner["length_by_bound"]
        lines.append(
            [
                f"{result['devices']:,}",
                result["skew"],
                f"{plan_us['runs']:,}",
                *(number(plan_us[k], 1) for k in ("median", "p25", "min", "max")),
                number(planner["processor_us"]["median"], 1),
                number(planner["stages_only_us"]["median"], 1),
                number(planner["matchings"]["mean"], 1),
                number(planner["stages"]["mean"], 1),
                number(None if length is None else length["mean"], 6),
                number(planner["predicted_by_bound"], 3),
                number(planner["memory_bytes"] / 1024, 0),
                number(planner["table_bytes"] / 1024, 1),
            ]
        )
    return records.table(header, lines)


def against_textbooks(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "traffic", "textbook", "runs", "median µs", "lower quartile µs", "max µs"]
    header += ["processor µs", "stages only µs", "matchings", "memory KiB"]
    header += [f"÷ planner: {what}" for what in ("processor", "median", "min", "matchings")]
    lines = [
        [
            f"{result['devices']:,}",
            result["skew"],
            book["name"],
            f"{book['plan_us']['runs']:,}",
            *(number(book["plan_us"][k], 1) for k in ("median", "p25", "max")),
            number(book["processor_us"]["median"], 1),
            number(book["stages_only_us"]["median"], 1),
            number(book["stages"], 1),
            number(book["memory_bytes"] / 1024, 0),
            *(number(ratio, 1) for ratio in plan_limits.ratios(result)[book["name"]].values()),
        ]
        for result in results
        for book in result["textbooks"]
    ]
    return records.table(header, lines, texts=3)


def page(record: dict[str, Any], title: str) -> str:
    about = (
        f"From a traffic matrix to the stage table of one device: `{record['scheduler']}`, "
        f"{record['devices_per_server']} devices a server, {record['row_bytes']} bytes a row, "
        "4,096 rows a pair of devices on average, a warm planner, another matrix every time, one "
        "thread."
    )
    columns = (
        "Counts are means over the matrices. *processor*: without the time that other programs "
        "had the processor, the median of means over rounds. *stages only*: until the stages are "
        "known, before anything is listed. *length ÷ bound*: rows of every stage's busiest NIC by "
        "the busiest server's share of a NIC. *predicted ÷ bound*: times, by the cost model, "
        "start-ups included. *memory*: what the planner keeps beside the matrix and the table."
    )
    textbook = (
        "In the same rounds, on the same matrices: Birkhoff's decomposition as textbooks have it, "
        "with a perfect matching found from nothing for every stage, greedy balance and no chunks, "
        "up to the list of one device's transfers; it writes no table. *textbook*: augmenting "
        "paths (Kuhn), depth first over the rows of the dense matrix. *textbook, Hopcroft-Karp*: "
        "their algorithm, on lists of the entries that are left, which are kept from stage to "
        "stage. Compiled with the same flags."
    )
    paper = (
        "The paper (arXiv 2505.09764) reports, on its own machine and without per-device tables, "
        "3.1 µs at 16 GPUs, 25 µs at 32, 221 µs at 64, 805 µs at 96 and 77 ms at 320."
    )
    results = record["results"]
    parts = [f"# {title}", about, "## Limits", plan_limits.section(results)]
    parts += ["## All figures", columns, as_table(results)]
    parts += ["## Beside the textbook", textbook, against_textbooks(results), paper]
    return "\n\n".join([*parts, records.program_conditions(record)]) + "\n"
