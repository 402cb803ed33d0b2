"""Tables of what cpp/drift_time.cc measured."""

from collections.abc import Sequence
from typing import Any

import records
from plan_limits import number

SCHEMA = "fastjax-drift-time-1"
WAYS = ("anew", "begun")


def as_table(results: Sequence[dict[str, Any]]) -> str:
    header = ["devices", "rho"]
    header += [f"{way}: {what} µs" for way in WAYS for what in ("median", "lower quartile")]
    header += [f"anew ÷ begun, {what}" for what in ("median", "lower quartile")]
    header += [f"{what}, {way}" for what in ("matchings", "length ÷ bound") for way in WAYS]
    lines = []
    for result in results:
        spreads = [result[way]["plan_us"] for way in WAYS]
        line = [f"{result['devices']:,}", f"{result['rho']:g}"]
        line += [number(spread[k], 1) for spread in spreads for k in ("median", "p25")]
        line += [number(spreads[0][k] / spreads[1][k], 2) for k in ("median", "p25")]
        line += [number(result[way]["matchings"], 1) for way in WAYS]
        line += [number(result[way]["length_by_bound"], 4) for way in WAYS]
        lines.append(line)
    return records.table(header, lines, texts=0)


def page(record: dict[str, Any], title: str) -> str:
    about = (
        "What a warm start saves: traffic that drifts is planned at every step twice, *anew*, and "
        "*begun* with the matchings of the step before (`previous=`). From the traffic matrix "
        "until the stages are known; no table. `fast`, "
        f"{record['devices_per_server']} devices a server, {record['row_bytes']} bytes a row, "
        f"{record['steps']} steps. Matchings and lengths are means over the steps; *length ÷ "
        "bound*: rows of every stage's busiest NIC by the busiest server's share of a NIC."
    )
    traffic = (
        "One expert a device. The logarithm of its popularity goes its way from step to step as an "
        "AR(1) process, of which *rho* stays; every sender has tastes of its own, which do not "
        "change. Other work is done between two plans, so their memory may have left the caches. "
        "The machine is shared: what takes milliseconds is interrupted more often than what takes "
        "microseconds."
    )
    parts = [f"# {title}", about, traffic, as_table(record["results"])]
    return "\n\n".join([*parts, records.program_conditions(record)]) + "\n"
