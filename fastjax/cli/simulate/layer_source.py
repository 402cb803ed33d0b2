"""A layer of experts for the command: the options that say which, and loading it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping

import numpy as np

from fastjax import traffic
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.cli.shared import sources
from fastjax.errors import OptionError

_ELEMENT_BYTES = 2  # bf16, what models' rows mostly are
_MATRICES = 3  # of an expert: gate, up and down
_OF_ROUTING = ("top_k", "groups", "top_groups")


@dataclasses.dataclass(frozen=True)
class LayerSource:
    """A layer that the command works on.

    Attributes:
      choices: experts of each device's tokens, shape (devices, tokens, k).
      num_experts: of the layer.
      row_bytes: bytes of a token's row.
      servers: that the devices are split into.
      name: where it is from.
      expert_bytes: bytes of an expert's parameters; None if nobody says.
      history: choices of each expert in earlier steps of a trace; None if there are none.
    """

    choices: np.ndarray
    num_experts: int
    row_bytes: int
    servers: int
    name: str
    expert_bytes: int | None = None
    history: np.ndarray | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which layer."""
    add = parser.add_argument_group(
        "a layer of experts: dispatch and combine, deduplicated and not"
    ).add_argument
    add(
        "--layer",
        action="store_true",
        help="of a trace, with --num-experts; or of routing that is made up, by --model or by "
        "--num-experts and --top-k, with --exponent, popularity by Zipf's law, and --seed",
    )
    known = "; ".join(f"{name}: {r.source}" for name, r in traffic.ROUTINGS.items())
    add("--model", choices=list(traffic.ROUTINGS), help=f"route as it does. {known}")
    add("--tokens", type=int, metavar="N", default=4096, help="of a device; default: 4096")
    add("--top-k", type=int, metavar="K", help="experts of a token")
    add("--groups", type=int, metavar="G", help="equal runs of experts, default: 1")
    add("--top-groups", type=int, metavar="N", help="groups that a token may choose from")


def asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for a layer."""
    given = [name for name in ("model", *_OF_ROUTING) if getattr(options, name) is not None]
    if given and not (options.layer or options.model):
        raise OptionError(f"--{given[0].replace('_', '-')} is of a layer; want --layer too.")
    return options.layer or options.model is not None


def load(options: argparse.Namespace, devices_per_server: int | None) -> LayerSource:
    """The layer that options, of `add_options` and of `sources`, ask for.

    Raises:
      ArgumentError: what the trace says is wrong.
      OptionError: so is what the options say, or how they fit together.
      OSError: the trace cannot be read.
    """
    if options.generate is not None or options.deduplicate:
        name = "generate" if options.generate is not None else "deduplicate"
        raise OptionError(f"--{name} is of one exchange, not of a --layer.")
    if options.devices is None:
        raise OptionError("a layer needs --devices, as in --devices 32.")
    if options.seed < 0:
        raise OptionError(f"--seed must be 0 or more, got {options.seed}.")
    servers = sources.number_of_servers(options.servers, options.devices, devices_per_server)
    if options.file is not None:
        return _from_trace(options, servers)
    routing = _routing(options)
    sources.check_experts(routing.num_experts, options.devices, servers)
    used = " ".join(
        f"--{name} {getattr(options, name)}" for name in ("devices", "tokens", "exponent", "seed")
    )
    choices = routing.choices(
        options.devices, options.tokens, exponent=options.exponent, seed=options.seed
    )
    row_bytes = DEFAULT_ROW_BYTES if routing.width is None else routing.width * _ELEMENT_BYTES
    row_bytes = row_bytes if options.row_bytes is None else options.row_bytes
    name = f"made up{f' as {options.model} routes' if options.model else ''}, {used}"
    weights = None
    if routing.width is not None and routing.hidden is not None:
        weights = _MATRICES * routing.width * routing.hidden * _ELEMENT_BYTES
    return LayerSource(choices, routing.num_experts, row_bytes, servers, name, weights)


def _routing(options: argparse.Namespace) -> traffic.Routing:
    """The model's, or the one that options describe."""
    given = {name: getattr(options, name) for name in ("num_experts", *_OF_ROUTING)}
    given = {name: value for name, value in given.items() if value is not None}
    if options.model is not None:
        if given:
            raise OptionError(
                f"--model says it itself: no --{next(iter(given)).replace('_', '-')}."
            )
        return traffic.ROUTINGS[options.model]
    if not {"num_experts", "top_k"} <= set(given):
        raise OptionError("a layer needs a trace, --model, or --num-experts and --top-k.")
    given.setdefault("top_groups", given.get("groups", 1))
    return traffic.Routing(**given)


def _from_trace(options: argparse.Namespace, servers: int) -> LayerSource:
    for name in ("model", *_OF_ROUTING):
        if getattr(options, name) is not None:
            raise OptionError(f"{options.file}: a trace says itself what --model would.")
    if options.num_experts is None:
        raise OptionError(f"{options.file}: a trace needs --num-experts.")
    sources.check_experts(options.num_experts, options.devices, servers)
    found = traffic.choices_from_routing(
        sources.trace_records(options), devices=options.devices, num_experts=options.num_experts
    )
    if not found:
        raise OptionError(sources.NO_RECORD.format(options.file))
    exchange = max(found, key=lambda e: _busiest(found[e], options.num_experts))
    of = f", the busiest of {len(found)}" if len(found) > 1 else ""
    row_bytes = DEFAULT_ROW_BYTES if options.row_bytes is None else options.row_bytes
    name = f"{options.file}, {exchange}{of}"
    history = _earlier(found, exchange, options.num_experts)
    return LayerSource(
        found[exchange], options.num_experts, row_bytes, servers, name, history=history
    )


def _earlier(
    found: Mapping[traffic.Exchange, np.ndarray], exchange: traffic.Exchange, num_experts: int
) -> np.ndarray | None:
    """Choices of each expert in what came before of the same layer, if there is any."""
    before = [
        np.bincount(found[other][found[other] >= 0], minlength=num_experts)
        for other in found
        if other.order < exchange.order
        and other._replace(step=0, repeat=0) == exchange._replace(step=0, repeat=0)
    ]
    return np.sum(before, axis=0) if before else None


def _busiest(choices: np.ndarray, num_experts: int) -> int:
    """Rows of the busiest device, sent or received."""
    chosen = choices >= 0
    owners = choices[chosen] // (num_experts // len(choices))
    return max(int(chosen.sum((1, 2)).max()), int(np.bincount(owners, minlength=1).max()))


__all__ = ["LayerSource", "add_options", "asked", "load"]
