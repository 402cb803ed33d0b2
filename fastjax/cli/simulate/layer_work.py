"""A layer of experts for the command: the options that say which, and loading it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

import fastjax
from fastjax import traffic
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.chunking import deduplication, levelling
from fastjax.chunking.times import CANDIDATES
from fastjax.cli.shared import rates, sources
from fastjax.cli.shared.commands import number
from fastjax.cli.simulate import layers
from fastjax.errors import OptionError
from fastjax.simulation import Fabric

PLATFORM = "gpu"
_ELEMENT_BYTES = 2  # bf16, what models' rows mostly are
_MATRICES = 3  # of an expert: gate, up and down
_DEFAULT_COPIES = 4  # as `moe.layer`'s
# Options that are for a layer only: those that say how tokens choose, and all others.
_OF_ROUTING = ("top_k", "groups", "top_groups")
_OF_LEVELLING = ("copies", "expert_bytes")
_OF_LAYERS = (*_OF_ROUTING, "seconds_per_row", "chunks", "balance", *_OF_LEVELLING, "layers")


@dataclasses.dataclass(frozen=True)
class Work:
    """A layer, and the fabric that it is simulated on.

    Attributes:
      choices: experts of each device's tokens, shape (devices, tokens, k).
      num_experts: of the layer.
      name: where it is from.
      topology: the fabric's rates.
      fabric: how it behaves.
      row_bytes: bytes of a token's row, and of one that crosses once.
      seconds_per_row: that an expert works on a row; None if nobody says.
      chunks: numbers of chunks that are tried, rising.
      copies: of experts on a device, at most; 0 without levelling.
      expert_bytes: of an expert's parameters; 0 if nobody says.
      history: choices of each expert in earlier steps of a trace; None if there are none.
    """

    choices: np.ndarray
    num_experts: int
    name: str
    topology: fastjax.Topology
    fabric: Fabric
    row_bytes: layers.RowBytes
    seconds_per_row: float | None = None
    chunks: tuple[int, ...] = (1,)
    copies: int = 0
    expert_bytes: int = 0
    history: np.ndarray | None = None

    @functools.cached_property
    def traffic(self) -> traffic.LayerTraffic:
        """Of all tokens, deduplicated and not."""
        return self.traffic_of(self.choices)

    def traffic_of(self, choices: np.ndarray) -> traffic.LayerTraffic:
        """Of some of the tokens."""
        return traffic.layer_traffic(
            choices,
            servers=self.topology.servers,
            num_experts=self.num_experts,
            nic_bandwidths=self.topology.nic_bandwidths,
        )

    @property
    def counts(self) -> np.ndarray:
        """Choices of each expert."""
        return np.bincount(self.choices[self.choices >= 0], minlength=self.num_experts)

    def deduplicates(self) -> bool:
        """Whether `moe.dispatch` does by default."""
        _, tokens, top_k = self.choices.shape
        shape = deduplication.Tokens(tokens, top_k, self.row_bytes.row, self.row_bytes.crossing)
        return deduplication.crosses_once(self.topology, self.num_experts, shape, "auto")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of layers."""
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
    add(
        "--layers",
        type=number(1, 2**20),
        metavar="N",
        help="of a model: shows what they take in a step, too",
    )
    add = parser.add_argument_group(
        "a layer in chunks, of which some cross while experts work on others"
    ).add_argument
    row_seconds = number(0, 3600, float)
    text = "seconds that an expert works on a row"
    add("--seconds-per-row", type=row_seconds, metavar="X", help=text)
    text = f"to compare with 1; default: {' '.join(map(str, CANDIDATES))}"
    add("--chunks", type=number(1, 256), nargs="+", metavar="N", help=text)
    add = parser.add_argument_group(
        "a layer whose popular experts are computed by several devices of their server"
    ).add_argument
    add("--balance", action="store_true", help="compare that with experts that stay at home")
    text = f"of experts on a device, at most; default: {_DEFAULT_COPIES}"
    add("--copies", type=number(1, 256), metavar="N", help=text)
    text = "of an expert's parameters; a --model says it"
    add("--expert-bytes", type=number(1, 2**40), metavar="N", help=text)


def asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for a layer.

    Raises:
      OptionError: they do not, and one is of a layer.
    """
    if options.layer or options.model is not None:
        return True
    if (first := _first_given(options, _OF_LAYERS)) is not None:
        raise OptionError(f"{first} is of a layer; want --layer too.")
    return False


def _first_given(options: argparse.Namespace, names: tuple[str, ...]) -> str | None:
    """The first of these options that is given, as it is written."""
    values = ((name, getattr(options, name)) for name in names)
    given = (name for name, value in values if value is not None and value is not False)
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def load(options: argparse.Namespace, fabric: Fabric) -> Work:
    """The layer that options, of `add_options`, of `sources` and of `rates`, ask for.

    Raises:
      ArgumentError: what the trace says is wrong.
      OptionError: so is what the options say, or how they fit together.
      OSError: the trace cannot be read.
    """
    if options.generate is not None:
        raise OptionError("--generate is of one exchange, not of a --layer.")
    if options.devices is None:
        raise OptionError("a layer needs --devices, as in --devices 32.")
    servers = sources.number_of_servers(options, options.devices)
    row_bytes, expert_bytes, history = DEFAULT_ROW_BYTES, options.expert_bytes or 0, None
    if options.file is not None:
        choices, name, history = _from_trace(options)
        num_experts = options.num_experts
    else:
        routing = _routing(options)
        num_experts = routing.num_experts
        sources.check_experts(num_experts, options.devices, servers)
        choices = routing.choices(
            options.devices, options.tokens, exponent=options.exponent, seed=options.seed
        )
        used = sources.as_given(options, "devices", "tokens", "exponent", "seed")
        name = f"made up{f' as {options.model} routes' if options.model else ''}, {used}"
        if routing.width is not None and routing.hidden is not None:
            row_bytes = routing.width * _ELEMENT_BYTES
            expert_bytes = expert_bytes or _MATRICES * routing.hidden * row_bytes
    row_bytes = row_bytes if options.row_bytes is None else options.row_bytes
    copies = _copies(options, expert_bytes)
    seconds = options.seconds_per_row
    if copies and seconds is None:
        seconds = levelling.row_seconds(expert_bytes, PLATFORM)
    if seconds is None and options.chunks is not None:
        raise OptionError("--chunks needs the experts' work: --seconds-per-row.")
    return Work(
        choices,
        num_experts,
        name,
        rates.topology(options, options.devices, servers),
        fabric,
        layers.row_bytes(row_bytes, choices.shape[2], num_experts // servers),
        seconds,
        tuple(sorted({1, *(options.chunks or CANDIDATES)})),
        copies,
        expert_bytes,
        history,
    )


def _copies(options: argparse.Namespace, expert_bytes: int) -> int:
    """How many copies of experts a device may have; 0 where nobody asks for levelling."""
    if not options.balance:
        if (first := _first_given(options, _OF_LEVELLING)) is not None:
            raise OptionError(f"{first} is of levelled experts; want --balance too.")
        return 0
    if not expert_bytes:
        raise OptionError("--balance needs the bytes of an expert: --expert-bytes, or a --model.")
    return options.copies or _DEFAULT_COPIES


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


def _from_trace(options: argparse.Namespace) -> tuple[np.ndarray, str, np.ndarray | None]:
    """Choices, where they are from, and those of each expert before."""
    if _first_given(options, ("model", *_OF_ROUTING)) is not None:
        raise OptionError(f"{options.file}: a trace says itself what --model would.")
    sources.check_trace(options)
    experts = options.num_experts
    found = traffic.choices_from_routing(
        sources.trace_records(options), devices=options.devices, num_experts=experts
    )
    rows = {each: _busiest(choices, experts) for each, choices in found.items()}
    exchange, name = sources.busiest(options, rows)
    return found[exchange], name, _earlier(found, exchange, experts)


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
