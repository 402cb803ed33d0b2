"""Tables of what cpp/plan_time.cc measured."""

from collections.abc import Sequence
from typing import Any

import records

SCHEMA = "fastjax-plan-time-3"


def number(value: float | None, digits: int) -> str:
    """With commas; a dash for what is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def as_table(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "traffic", "runs", "median µs", "lower quartile µs", "min µs", "max µs"]
    header += ["processor µs", "stages only µs", "matchings", "at most", "stages"]
    header += ["length ÷ bound", "predicted ÷ bound", "memory KiB", "table KiB"]
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
                number(planner["matchings"]["max"], 0),
                number(planner["stages"]["mean"], 1),
                number(None if length is None else length["mean"], 6),
                number(planner["predicted_by_bound"], 3),
                number(planner["memory_bytes"] / 1024, 0),
                number(planner["table_bytes"] / 1024, 1),
            ]
        )
    return records.table(header, lines)


def page(record: dict[str, Any], title: str) -> str:
    about = (
        f"From a traffic matrix to the stage table of one device: `{record['scheduler']}`, "
        f"{record['devices_per_server']} devices a server, {record['row_bytes']} bytes a row, "
        "4,096 rows a pair of devices on average, a warm planner, another matrix every time, one "
        "thread."
    )
    columns = (
        "Counts are means over the matrices, *at most* the largest of them. The machine is shared: "
        "the median has the time in it that other programs had the processor, the lower quartile "
        "less of it, *processor* none: it is the median of means over rounds. *stages only*: until "
        "the stages are known, before anything is listed. *length ÷ bound*: rows of every stage's "
        "busiest NIC by the busiest server's share of a NIC. *predicted ÷ bound*: times, by the "
        "cost model, start-ups included. *memory*: what the planner keeps beside the matrix and "
        "the table."
    )
    paper = (
        "The paper (arXiv 2505.09764) reports, on its own machine and without per-device tables, "
        "3.1 µs at 16 GPUs, 25 µs at 32, 221 µs at 64, 805 µs at 96 and 77 ms at 320."
    )
    parts = [f"# {title}", about, columns, as_table(record["results"]), paper]
    return "\n\n".join([*parts, records.program_conditions(record)]) + "\n"
