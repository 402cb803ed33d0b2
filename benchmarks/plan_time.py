"""Tables of what cpp/plan_time.cc measured."""

from collections.abc import Sequence
from typing import Any

import records

SCHEMA = "fastjax-plan-time-3"


def as_table(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "traffic", "runs", "median µs", "lower quartile µs", "min µs", "max µs"]
    header += ["matchings", "at most", "stages"]
    lines = []
    for result in results:
        planner, plan_us = result["planner"], result["planner"]["plan_us"]
        lines.append(
            [
                f"{result['devices']:,}",
                result["skew"],
                f"{plan_us['runs']:,}",
                *(f"{plan_us[k]:,.1f}" for k in ("median", "p25", "min", "max")),
                f"{planner['matchings']['mean']:,.1f}",
                f"{planner['matchings']['max']:,.0f}",
                f"{planner['stages']['mean']:,.1f}",
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
        "Counts are means over the matrices, *at most* the largest of them; matchings are cut into "
        "stages. The machine is shared: the median has the time in it that other programs had the "
        "processor, the lower quartile less of it. How long stages are: [schedules "
        "compared](schedules.md)."
    )
    paper = (
        "The paper (arXiv 2505.09764) reports, on its own machine and without per-device tables, "
        "3.1 µs at 16 GPUs, 25 µs at 32, 221 µs at 64, 805 µs at 96 and 77 ms at 320."
    )
    machine, versions = record["machine"], record["versions"]
    conditions = (
        f"{machine['cpu']}, {machine['usable_cores']} cores shared with other programs, load "
        f"average {machine['load_average']:.2f} at the start. fastjax {versions['fastjax']}, "
        f"{versions['compiler']}."
    )
    parts = [f"# {title}", about, columns, as_table(record["results"]), paper, conditions]
    return "\n\n".join(parts) + "\n"
