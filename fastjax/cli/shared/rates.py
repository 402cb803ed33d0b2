"""The fabric that commands plan for: options of its rates, and of NICs that have failed."""

from __future__ import annotations

import argparse
from typing import Any

import fastjax
from fastjax.cli.shared.text import Section
from fastjax.errors import OptionError
from fastjax.simulation import PRESETS
from fastjax.topology import doubt

# Options of the fabric: what they are, and the power of ten that they are shown in.
RATES = {
    "scale_up_bandwidth": ("bytes/s of a device inside its server", 9),
    "scale_out_bandwidth": ("bytes/s of a device's NIC", 9),
    "scale_up_latency": ("seconds that starting a transfer inside a server takes", -6),
    "scale_out_latency": ("seconds that starting a scale-out stage takes", -6),
    "transfer_overhead": ("seconds that posting one of several messages takes", -6),
    "incast_loss": ("share of time that senders lose where they meet, from 0 to 1", 0),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --preset, --servers, --failed-nics, and an option for each of `RATES`."""
    known = "; ".join(f"{name}: {preset}" for name, preset in PRESETS.items())
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        help="a cluster: its rates, in place of the defaults below, what senders lose that meet, "
        f"and how many devices a server has. {known}",
    )
    parser.add_argument(
        "--servers",
        type=int,
        metavar="N",
        help="servers that the devices are split into; by default of the preset's size",
    )
    for name, (text, power) in RATES.items():
        default = getattr(fastjax.Topology, name)
        shown = f"{text}; default: {default / 10.0**power:g}" + (f"e{power}" if power else "")
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=shown)
    parser.add_argument(
        "--failed-nics",
        type=int,
        nargs="+",
        default=[],
        metavar="DEVICE",
        help="devices whose NIC has failed; rows go round them",
    )


def preset_section(name: str | None) -> Section:
    """Where a preset's rates are from, and which are guesses, for people."""
    return {"preset": f"{name}: {PRESETS[name]}"} if name else {}


def topology(options: argparse.Namespace, devices: int, servers: int) -> fastjax.Topology:
    """The servers that devices are split into, at the rates of the options.

    Args:
      options: of the command line, with those of `add_options`.
      devices: how many.
      servers: likewise.

    Raises:
      OptionError: --failed-nics names a device that there is not, or a rate is in another unit.
      TopologyError: a rate is impossible.
    """
    given = {name: getattr(options, name) for name in RATES}
    rates: dict[str, Any] = dict(PRESETS[options.preset].rates) if options.preset else {}
    rates |= {name: rate for name, rate in given.items() if rate is not None}
    failed = options.failed_nics
    strange = [device for device in failed if not 0 <= device < devices]
    if strange:
        raise OptionError(f"--failed-nics {strange[0]}: there are devices 0 to {devices - 1}.")
    if failed:
        rate = rates.get("scale_out_bandwidth", fastjax.Topology.scale_out_bandwidth)
        rates["nic_bandwidths"] = tuple(0.0 if d in failed else rate for d in range(devices))
    found = fastjax.Topology(servers, devices // servers, **rates)
    if (doubted := doubt(found)) is not None:
        raise OptionError(doubted)
    return found
