"""What a layer of experts costs, simulated: as people have it, planned, deduplicated, in chunks."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

import fastjax
from fastjax import scheduling, traffic
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.chunking import deduplication, levelling, prices
from fastjax.chunking.prices import Tokens
from fastjax.chunking.resources import LayerTimes, Parts
from fastjax.chunking.times import CANDIDATES, expert_seconds, fewest_of, in_passes, layer_time
from fastjax.cli.shared import options, statistics, text
from fastjax.cli.shared.options import number
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import balance
from fastjax.errors import OptionError
from fastjax.simulation import Fabric, layers

PLATFORM = "gpu"
_ELEMENT_BYTES = 2  # bf16, what models' rows mostly are
_MATRICES = 3  # of an expert: gate, up and down
_DEFAULT_TOKENS = 4096
_DEFAULT_COPIES = 4  # as `moe.layer`'s
_ALIKE = 0.03  # how far behind still counts as level
_TODAY = "today: all at once"
_PREDICTED = ", predicted best"
# What there is without fastjax, in the table and in a sentence.
_PEERS = {
    _TODAY: "Sent all at once, as today, it takes",
    "two-tier, as DeepEP: at least": "DeepEP's way takes at least",
}
# Options that are for a layer only: those that say how tokens choose, and all others.
_OF_ROUTING = ("top_k", "groups", "top_groups")
_OF_LAYERS = ("layer", "model", "tokens", *_OF_ROUTING, "seconds_per_row", "chunks", "layers")
_OF_LEVELLING = ("balance", "copies", "expert_bytes")


Ways = dict[str, LayerTimes]
"""What ways to run a layer take, by what they are called: forward, or for a step backward, too."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A layer, and the fabric that it is simulated on.

    Attributes:
      choices: experts of each device's tokens, shape (devices, tokens, k).
      num_experts: of the layer.
      name: where it is from.
      topology: the fabric's rates.
      fabric: how it behaves.
      tokens: of a device.
      seconds_per_row: that an expert works on a row; None if nobody says.
      chunks: numbers of chunks that are tried, rising from 1.
      layers: of a step, which go forward and backward; 0 for one layer forward.
      model: how experts are levelled; None where they are not.
      more: what the first chunk takes beyond its rows.
    """

    choices: np.ndarray
    num_experts: int
    name: str
    topology: fastjax.Topology
    fabric: Fabric
    tokens: Tokens
    seconds_per_row: float | None = None
    chunks: tuple[int, ...] = (1,)
    layers: int = 0
    model: levelling.Levelling | None = None
    more: Parts = dataclasses.field(default_factory=Parts)

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

    @property
    def slowest(self) -> float:
        """The most rows that a device computes, by the mean."""
        rows = self.traffic.each.sum(0)
        return float(rows.max() / max(rows.mean(), 1))

    def parts_of(self, choices: np.ndarray, scheduler: str, *, once: bool) -> Parts:
        """What a chunk of the tokens takes; experts are those of the busiest device."""
        rows = self.traffic_of(choices)
        how = self.topology, self.tokens, scheduler, layers.by_simulation(self.fabric)
        found = prices.exchanges(rows.exchanges(deduplicate=once), *how)
        return dataclasses.replace(found, experts=self.expert_seconds(rows))

    def expert_seconds(self, rows: traffic.LayerTraffic) -> float:
        """How long the experts of the busiest device work on a chunk; 0 if nobody says."""
        most = int(rows.each.sum(0).max())
        return 0.0 if self.seconds_per_row is None else expert_seconds(most, self.seconds_per_row)

    @functools.cached_property
    def levelled(self) -> tuple[Work, str] | None:
        """The same with experts levelled, if they are to be; and the copies in words."""
        if self.model is None:
            return None
        quotas, more, copies = balance.level(self.counts, self.model)
        return self.dealt(quotas, more), copies

    def dealt(self, quotas: np.ndarray, more: Parts) -> Work:
        """The same as if each device had one expert, of all rows of experts that it computes."""
        owners, devices = balance.devices_of(self.choices, quotas), self.topology.num_devices
        return dataclasses.replace(self, choices=owners, num_experts=devices, more=more, model=None)


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
    tokens = f"of a device; default: {_DEFAULT_TOKENS}"
    add("--tokens", type=number(0), metavar="N", help=tokens)
    add("--top-k", type=int, metavar="K", help="experts of a token")
    add("--groups", type=int, metavar="G", help="equal runs of experts, default: 1")
    add("--top-groups", type=int, metavar="N", help="groups that a token may choose from")
    step = "show what so many take in a step, forward and backward"
    add("--layers", type=number(1, 2**20), metavar="N", help=step)
    add = parser.add_argument_group(
        "a layer in chunks, of which some cross while experts work on others"
    ).add_argument
    seconds = "seconds that an expert works on a row"
    add("--seconds-per-row", type=number(0, 3600, float), metavar="X", help=seconds)
    counts = f"to compare with 1; default: {' '.join(map(str, CANDIDATES))}"
    add("--chunks", type=number(1, 256), nargs="+", metavar="N", help=counts)
    add = parser.add_argument_group(
        "a layer whose popular experts are computed by several devices of their server"
    ).add_argument
    add("--balance", action="store_true", help="compare that with experts that stay at home")
    copies = f"of experts on a device, at most; default: {_DEFAULT_COPIES}"
    add("--copies", type=number(1, 256), metavar="N", help=copies)
    size = "of an expert's parameters; a --model says it"
    add("--expert-bytes", type=number(1, 2**40), metavar="N", help=size)


def is_asked_for(given: argparse.Namespace) -> bool:
    """Whether the options are those of a layer."""
    return _first(given, *_OF_LAYERS, *_OF_LEVELLING) is not None


def _first(given: argparse.Namespace, *names: str) -> str | None:
    """The first of these options that was given."""
    values = ((name, getattr(given, name)) for name in names)
    found = (name for name, value in values if value is not None and value is not False)
    return next((f"--{name.replace('_', '-')}" for name in found), None)


def load(given: argparse.Namespace, fabric: Fabric) -> Work:
    """The layer that options, of `add_options` and of `options`, ask for.

    Raises:
      ArgumentError: what the trace says is wrong.
      OptionError: so is what the options say, or how they fit together.
      OSError: the trace cannot be read.
    """
    _check(given)
    topology = options.topology(given, given.devices)
    row_bytes, expert_bytes = DEFAULT_ROW_BYTES, given.expert_bytes or 0
    if given.file is not None:
        choices, name = _from_trace(given)
        num_experts = given.num_experts
    else:
        routing = _routing(given)
        num_experts = routing.num_experts
        given.tokens = _DEFAULT_TOKENS if given.tokens is None else given.tokens
        choices = routing.choices(
            given.devices, given.tokens, exponent=given.exponent, seed=given.seed
        )
        used = options.as_given(given, "devices", "tokens", "exponent", "seed")
        name = f"made up{f' as {given.model} routes' if given.model else ''}, {used}"
        if routing.width is not None and routing.hidden is not None:
            row_bytes = routing.width * _ELEMENT_BYTES
            expert_bytes = expert_bytes or _MATRICES * routing.hidden * row_bytes
    row_bytes = row_bytes if given.row_bytes is None else given.row_bytes
    _, count, top_k = choices.shape
    crossing = prices.crossing_row_bytes(row_bytes, top_k, num_experts // topology.servers)
    seconds, model = given.seconds_per_row, None
    if _first(given, *_OF_LEVELLING) is not None:
        if not expert_bytes:
            raise OptionError("--balance needs an expert's bytes: --expert-bytes, or a --model.")
        if seconds is None:
            seconds = levelling.row_seconds(expert_bytes, PLATFORM)
        copies = given.copies or _DEFAULT_COPIES
        model = levelling.Levelling(topology, copies, expert_bytes, seconds, PLATFORM)
    for option in ("chunks", "draw"):
        if seconds is None and getattr(given, option) is not None:
            raise OptionError(
                f"--{option} of a layer needs the experts' work: --seconds-per-row, say."
            )
    return Work(
        choices,
        num_experts,
        name,
        topology,
        fabric,
        Tokens(count, top_k, row_bytes, crossing),
        seconds,
        (1,) if seconds is None else tuple(sorted({1, *(given.chunks or CANDIDATES)})),
        given.layers or 0,
        model,
    )


def _check(given: argparse.Namespace) -> None:
    """Refuses options of an exchange beside those of a layer."""
    asked = _first(given, *_OF_LAYERS, *_OF_LEVELLING)
    if given.generate is not None:
        raise OptionError(f"--generate is of one exchange, {asked} of a layer.")
    if given.file is not None and not options.is_trace(given.file):
        raise OptionError(f"{asked} is of a layer, which a trace has; {given.file} is a matrix.")
    if given.devices is None:
        raise OptionError(f"{asked} is of a layer, which needs --devices, as in --devices 32.")


def _routing(given: argparse.Namespace) -> traffic.Routing:
    """The model's, or the one that options describe."""
    names = ("num_experts", *_OF_ROUTING)
    said = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    if given.model is not None:
        if said:
            raise OptionError(f"--model says it itself: no --{next(iter(said)).replace('_', '-')}.")
        return traffic.ROUTINGS[given.model]
    if not {"num_experts", "top_k"} <= set(said):
        raise OptionError("a layer needs a trace, --model, or --num-experts and --top-k.")
    said.setdefault("top_groups", said.get("groups", 1))
    return traffic.Routing(**said)


def _from_trace(given: argparse.Namespace) -> tuple[np.ndarray, str]:
    """Choices, and where they are from."""
    if (said := _first(given, "model", "tokens", *_OF_ROUTING)) is not None:
        raise OptionError(f"{given.file}: a trace says itself what {said} would.")
    records, experts = options.trace_records(given), given.num_experts
    found = traffic.choices_from_routing(records, devices=given.devices, num_experts=experts)
    rows = {each: _busiest(choices, experts) for each, choices in found.items()}
    exchange, name = options.busiest(given, rows)
    return found[exchange], name


def _busiest(choices: np.ndarray, num_experts: int) -> int:
    """Rows of the busiest device, sent or received."""
    chosen = choices >= 0
    owners = choices[chosen] // (num_experts // len(choices))
    return max(int(chosen.sum((1, 2)).max()), int(np.bincount(owners, minlength=1).max()))


def peers(work: Work) -> Ways:
    """As people have it, without planning; none where NICs have failed, which it cannot avoid."""
    if work.topology.failed_nics:
        return {}
    found = [work.parts_of(work.choices, scheduling.FALLBACK, once=False)]
    if work.topology.servers > 1:
        where = work.topology, work.fabric, work.tokens
        found.append(layers.forwarded(work.choices, work.num_experts, *where))
    experts = work.expert_seconds(work.traffic)
    parts = [dataclasses.replace(each, planning=0.0, experts=experts) for each in found]
    return {
        name: in_passes([each], deduplicated=False, backward=work.layers > 0)
        for name, each in zip(_PEERS, parts, strict=False)
    }


def as_eplb(work: Work, schedulers: Sequence[str]) -> Ways:
    """The best way where whole experts have been placed by their known popularity, as EPLB does."""
    placed = work.dealt(balance.by_popularity(work.counts, work.topology.num_devices), Parts())
    ways = simulate(placed, schedulers)
    return {"popularity known, as EPLB": ways[best_of(ways)]}


def simulate(work: Work, schedulers: Sequence[str]) -> Ways:
    """By each scheduler in one chunk, and by the fastest in each other number of chunks.

    Both with a row for each choice and deduplicated.
    """
    ways: Ways = {}
    kinds = (False, True) if work.topology.servers > 1 else (False,)
    counts = [count for count in work.chunks if 1 < count <= work.tokens.count]
    with Progress(len(kinds) * (len(schedulers) + len(counts))) as progress:

        def add(scheduler: str, count: int, *, once: bool) -> LayerTimes:
            name = scheduler + ", deduplicated" * once + f", {count} chunks" * (count > 1)
            progress.begin(name)
            ways[name] = _in_chunks(work, scheduler, count, once=once)
            return ways[name]

        for once in kinds:
            whole = {name: add(name, 1, once=once).total for name in schedulers}
            for count in counts:
                add(min(whole, key=whole.__getitem__), count, once=once)
    return ways


def _in_chunks(work: Work, scheduler: str, count: int, *, once: bool) -> LayerTimes:
    chunks = np.array_split(work.choices, count, axis=1)
    parts = [work.parts_of(choices, scheduler, once=once) for choices in chunks]
    copies, experts = parts[0].copies + work.more.copies, parts[0].experts + work.more.experts
    parts[0] = dataclasses.replace(parts[0], copies=copies, experts=experts)
    return in_passes(parts, deduplicated=once, backward=work.layers > 0)


def best_of(ways: Ways) -> str:
    """The faster of both kinds, each in the fewest chunks that are as good as any."""
    kinds: dict[bool, list[LayerTimes]] = {}
    for times in fastest(ways).values():
        kinds.setdefault(times.deduplicated, []).append(times)
    best = min(map(fewest_of, kinds.values()), key=lambda times: times.total)
    return next(name for name, times in ways.items() if times is best)


def fastest(ways: Ways) -> Ways:
    """Of each number of chunks, deduplicated or not, the fastest."""
    found: dict[tuple[bool, int], LayerTimes] = {}
    for times in sorted(ways.values(), key=lambda times: times.total):
        found.setdefault((times.deduplicated, times.chunks), times)
    kept = {id(times) for times in found.values()}
    return {name: times for name, times in ways.items() if id(times) in kept}


def compared(work: Work, ways: Ways) -> Ways:
    """Those in one chunk, the best of all, and the one that the cost model predicts to be best."""
    best, predicted = best_of(ways), predicted_best(work)
    return {
        name + _PREDICTED * is_predicted: times
        for name, times in fastest(ways).items()
        if (is_predicted := (times.deduplicated, times.chunks) == predicted)
        or times.chunks == 1
        or name == best
    }


def predicted_best(work: Work) -> tuple[bool, int]:
    """Whether the cost model would deduplicate, and in which of these numbers of chunks.

    `moe.layer` goes by it where it chooses, for a forward and a backward pass. It does not know how
    popular experts are.
    """
    tokens = work.tokens
    if work.seconds_per_row is None:
        return deduplication.crosses_once(work.topology, work.num_experts, tokens, "auto"), 1
    best = layer_time(
        work.topology,
        tokens.count,
        tokens.top_k,
        tokens.row_bytes,
        work.num_experts,
        seconds_per_row=work.seconds_per_row,
        candidates=work.chunks,
        crossing_bytes=tokens.crossing_bytes,
        backward=True,
    )
    return best.deduplicated, best.chunks


def section(work: Work) -> text.Section:
    """The layer, for people."""
    tokens, rows = work.tokens, work.traffic
    each, once = (rows.crossing_per_token(deduplicate=way) for way in (False, True))
    levelled, copies = work.levelled or (None, "")
    slowest = f", levelled {levelled.slowest:.3f} x" if levelled else ""
    experts = {}
    if work.seconds_per_row is not None:
        size = f", of {text.size(work.model.expert_bytes)}" if work.model else ""
        experts["experts"] = f"{text.seconds(work.seconds_per_row)} a row{size}"
    return {
        "source": work.name,
        "devices": statistics.devices_in_words(work.topology),
        "tokens": f"{rows.tokens} in all, of {text.size(tokens.row_bytes)}; each chooses "
        f"{tokens.top_k} of {work.num_experts} experts",
        "rows that cross": f"{each:.2f} for a token, or deduplicated {once:.2f}, of "
        f"{text.size(tokens.crossing_bytes)} out and {text.size(tokens.row_bytes)} back",
        "Gini coefficient": f"{traffic.gini(work.counts):.3f} of experts",
        **experts,
        "busiest device": f"{work.slowest:.3f} x the mean rows at experts{slowest}",
        **({"copies": copies} if levelled else {}),
    }


def table(work: Work, ways: Ways, *, verbose: bool) -> str:
    """A line for each way, that of today first if it is there."""
    today = ways[_TODAY].total if _TODAY in ways else None
    columns: text.Columns = {
        "way": lambda way: way[0],
        "x today": lambda way: text.number(way[1].total / today if today else None),
        f"{work.layers} layers, a step": lambda way: text.seconds(work.layers * way[1].total),
        "a layer": lambda way: text.seconds(way[1].total),
    }
    if not work.layers:
        del columns["0 layers, a step"]
    parts = (
        "dispatch and combine" if work.seconds_per_row is None else "dispatch, experts and combine"
    )
    passes = "forward and backward, without recomputation" if work.layers else "forward"
    caption = (
        f"today: a row for each choice, as NCCL and jax.lax send it.\na layer: {parts}, {passes}."
    )
    if verbose:
        columns |= {
            "planning": lambda way: text.seconds(way[1].planning),
            "NICs busy": lambda way: text.seconds(way[1].network),
            "inside servers busy": lambda way: text.seconds(way[1].inside),
            "experts busy": lambda way: text.seconds(way[1].experts),
        }
        caption += (
            "\nbusy: of a resource, which does one chunk at a time; what is not deduplicated has "
            "its whole exchange on the NICs."
        )
    return text.table("what it gains", columns, ways.items(), caption)


def verdict(work: Work, theirs: Ways, ours: Ways) -> list[str]:
    """What the best of ours gains over what there is today: sentences."""
    best = min(ours, key=lambda name: ours[name].total)
    least, times_n = ours[best].total, work.layers or 1
    of = f"a step of {work.layers} layers" if work.layers else "a layer"
    words = [f"Best of fastjax: {best}, {text.seconds(times_n * least)} {of}."]
    for name, times in theirs.items():
        said = f"{_PEERS[name]} {text.seconds(times_n * times.total)}"
        ratio = times.total / least if least else 1.0
        gains = ratio > 1 + _ALIKE
        words.append(f"{said}{f', {ratio:.2f} x as long' if gains else ': fastjax gains nothing'}.")
    return words
