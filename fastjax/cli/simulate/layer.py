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
from fastjax.chunking.resources import LayerTimes, Parts, schedule
from fastjax.chunking.times import CANDIDATES, CHUNK_OVERHEAD, fewest_of, layer_time, way_back
from fastjax.cli.shared import options, statistics, text
from fastjax.cli.shared.options import number
from fastjax.cli.shared.progress import Progress
from fastjax.errors import OptionError
from fastjax.simulation import Fabric, layers

PLATFORM = "gpu"
_ELEMENT_BYTES = 2  # bf16, what models' rows mostly are
_MATRICES = 3  # of an expert: gate, up and down
_DEFAULT_COPIES = 4  # as `moe.layer`'s
_ALIKE = 0.03  # how far behind still counts as level
_TODAY = "today: all at once"
_FORWARDED = "two-tier, as DeepEP: at least"
# Options that are for a layer only: those that say how tokens choose, and all others.
_OF_ROUTING = ("top_k", "groups", "top_groups")
_OF_LAYERS = ("layer", "model", *_OF_ROUTING, "seconds_per_row", "chunks", "layers")
_OF_LEVELLING = ("balance", "copies", "expert_bytes")


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
      copies: of experts on a device, at most; 0 without levelling.
      expert_bytes: of an expert's parameters; 0 if nobody says.
    """

    choices: np.ndarray
    num_experts: int
    name: str
    topology: fastjax.Topology
    fabric: Fabric
    tokens: Tokens
    seconds_per_row: float | None = None
    chunks: tuple[int, ...] = (1,)
    copies: int = 0
    expert_bytes: int = 0

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

    def expert_seconds(self, traffic: traffic.LayerTraffic) -> float:
        """How long the experts of the busiest device work on a chunk; 0 if nobody says."""
        rows = int(traffic.each.sum(0).max())
        if self.seconds_per_row is None or not rows:
            return 0.0
        return rows * self.seconds_per_row + CHUNK_OVERHEAD


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to run a layer.

    Attributes:
      name: for people.
      scheduler: that was asked for.
      forward: what it takes.
      back: what the way back through it takes.
    """

    name: str
    scheduler: str
    forward: LayerTimes
    back: LayerTimes

    @classmethod
    def of(cls, name: str, scheduler: str, parts: Sequence[Parts], *, once: bool) -> Way:
        """Of what each chunk takes, deduplicated or not."""
        forward, back = (schedule(p, deduplicated=once) for p in (parts, way_back(parts)))
        return cls(name, scheduler, forward, back)

    @property
    def training(self) -> float:
        """Seconds of both."""
        return self.forward.total + self.back.total


@dataclasses.dataclass(frozen=True)
class Ways:
    """The ways that were simulated.

    Attributes:
      peers: as people have it, without planning. None where NICs have failed, which they cannot
        avoid.
      whole: ours in one chunk, by each scheduler.
      split: ours in each number of chunks, by the scheduler that is fastest in one.
    """

    peers: list[Way]
    whole: list[Way]
    split: list[Way]


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
    step = "of a model: shows what they take in a step, too"
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
    asked = _first(given, *_OF_LAYERS, *_OF_LEVELLING)
    if given.generate is not None:
        raise OptionError(f"--generate is of one exchange, {asked} of a layer.")
    if given.file is not None and not options.is_trace(given.file):
        raise OptionError(f"{asked} is of a layer, which a trace has; {given.file} is a matrix.")
    if given.devices is None:
        raise OptionError(f"{asked} is of a layer, which needs --devices, as in --devices 32.")
    topology = options.topology(given, given.devices)
    row_bytes, expert_bytes = DEFAULT_ROW_BYTES, given.expert_bytes or 0
    if given.file is not None:
        choices, name = _from_trace(given)
        num_experts = given.num_experts
    else:
        routing = _routing(given)
        num_experts = routing.num_experts
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
    balance, seconds = _first(given, *_OF_LEVELLING) is not None, given.seconds_per_row
    if balance and not expert_bytes:
        raise OptionError("--balance needs the bytes of an expert: --expert-bytes, or a --model.")
    if balance and seconds is None:
        seconds = levelling.row_seconds(expert_bytes, PLATFORM)
    if seconds is None and given.chunks is not None:
        raise OptionError("--chunks needs the experts' work: --seconds-per-row.")
    return Work(
        choices,
        num_experts,
        name,
        topology,
        fabric,
        Tokens(count, top_k, row_bytes, crossing),
        seconds,
        (1,) if seconds is None else tuple(sorted({1, *(given.chunks or CANDIDATES)})),
        (given.copies or _DEFAULT_COPIES) if balance else 0,
        expert_bytes,
    )


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
    if _first(given, "model", *_OF_ROUTING) is not None:
        raise OptionError(f"{given.file}: a trace says itself what --model would.")
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


def simulate(work: Work, schedulers: Sequence[str]) -> Ways:
    """The layer as people have it, with each scheduler, and in each number of chunks."""
    both = (False, True) if work.topology.servers > 1 else (False,)
    counts = [count for count in work.chunks if count <= max(1, work.tokens.count)]
    with Progress(len(both) * (len(schedulers) + sum(counts[1:]))) as progress:
        whole = [in_chunks(work, s, 1, progress, once=once) for s in schedulers for once in both]
        split = []
        for once in both:
            ours = [way for way in whole if way.forward.deduplicated == once]
            best = min(ours, key=lambda way: way.forward.total)
            rest = [in_chunks(work, best.scheduler, n, progress, once=once) for n in counts[1:]]
            split += [best, *rest]
    return Ways(_peers(work), whole, split)


def in_chunks(
    work: Work,
    scheduler: str,
    count: int,
    progress: Progress,
    *,
    once: bool,
    weights: float = 0.0,
    fixed: float = 0.0,
) -> Way:
    """The layer in so many chunks.

    Args:
      work: the layer.
      scheduler: that plans each chunk's exchange between servers.
      count: of chunks.
      progress: has as many steps for it.
      once: whether a token crosses once to each server.
      weights: seconds that links inside servers need for copied weights, before the first chunk.
      fixed: seconds that the first chunk's experts take more.
    """
    exchange, parts = layers.once if once else layers.each_choice, []
    for part, choices in enumerate(np.array_split(work.choices, count, axis=1), 1):
        with progress.step(f"{scheduler}, chunk {part} of {count}" if count > 1 else scheduler):
            rows = work.traffic_of(choices)
            found = exchange(scheduler, rows, work.topology, work.fabric, work.tokens)
            parts.append(dataclasses.replace(found, experts=work.expert_seconds(rows)))
    first = parts[0]
    copies, experts = first.copies + weights, first.experts + fixed
    parts[0] = dataclasses.replace(first, copies=copies, experts=experts)
    name = scheduler + ", deduplicated" * once + f", {count} chunks" * (count > 1)
    return Way.of(name, scheduler, parts, once=once)


def _peers(work: Work) -> list[Way]:
    if work.topology.failed_nics:
        return []
    direct, where = scheduling.FALLBACK, (work.topology, work.fabric, work.tokens)
    known = {_TODAY: layers.each_choice(direct, work.traffic, *where)}
    if work.topology.servers > 1:
        known[_FORWARDED] = layers.forwarded(work.choices, work.num_experts, *where)
    experts = work.expert_seconds(work.traffic)
    found = {n: dataclasses.replace(p, planning=0.0, experts=experts) for n, p in known.items()}
    return [Way.of(name, direct, [parts], once=False) for name, parts in found.items()]


def best_of(ways: Sequence[Way]) -> Way:
    """The faster of both kinds, each in the fewest chunks that are as good as any."""
    best = _fewest(ways)
    return min(best, key=lambda way: (way.forward.total, way.forward.deduplicated))


def _fewest(ways: Sequence[Way]) -> list[Way]:
    """Of the ways that are deduplicated, and of those that are not, the best number of chunks."""
    found = []
    for once in sorted({way.forward.deduplicated for way in ways}):
        times = {id(w.forward): w for w in ways if w.forward.deduplicated == once}
        found.append(times[id(fewest_of([way.forward for way in times.values()]))])
    return found


def to_draw(ways: Ways) -> list[LayerTimes]:
    """Both kinds, in one chunk and in the best number of them."""
    best = _fewest(ways.split)
    return [way.forward for way in ways.split if way.forward.chunks == 1 or way in best]


def compared(ways: Ways) -> list[Way]:
    """The usual ways, and the best of ours: in one chunk of both kinds, and in several."""
    best = best_of(ways.split)
    ours = [way for way in ways.split if way.forward.chunks == 1]
    return [*ways.peers, *ours, *([best] if best.forward.chunks > 1 else [])]


def section(work: Work) -> text.Section:
    """The layer, for people."""
    tokens, rows = work.tokens, work.traffic
    each, once = (rows.crossing_per_token(deduplicate=way) for way in (False, True))
    return {
        "source": work.name,
        "devices": statistics.devices_in_words(work.topology),
        "tokens": f"{rows.tokens} in all, of {text.size(tokens.row_bytes)}; each chooses "
        f"{tokens.top_k} of {work.num_experts} experts",
        "rows that cross": f"{each:.2f} for a token, or deduplicated {once:.2f}, of "
        f"{text.size(tokens.crossing_bytes)} out and {text.size(tokens.row_bytes)} back",
        "Gini coefficient": f"{traffic.gini(work.counts):.3f} of experts",
    }


def table(work: Work, ways: Sequence[Way], count: int | None, *, verbose: bool) -> str:
    """A line for each way, those of peers first; a step has `count` layers."""
    today = ways[0].forward.total if ways[0].name == _TODAY else None
    columns: text.Columns = {
        "way": lambda way: way.name,
        "x today": lambda way: text.number(way.forward.total / today if today else None),
        f"{count} layers, a step": lambda way: text.seconds((count or 1) * way.training),
        "a layer": lambda way: text.seconds(way.forward.total),
    }
    if not count:
        del columns[f"{count} layers, a step"]
    known = work.seconds_per_row is not None
    caption = (
        "today: a row for each choice, as NCCL and jax.lax send it. a layer: "
        f"{'dispatch, experts and combine' if known else 'dispatch and combine'}, forward."
    )
    if count:
        caption += "\na step: forward and backward, without recomputation."
    if verbose:
        columns |= {
            "planning": lambda way: text.seconds(way.forward.planning),
            "NICs busy": lambda way: text.seconds(way.forward.network),
            "inside servers busy": lambda way: text.seconds(way.forward.inside),
            "experts busy": lambda way: text.seconds(way.forward.experts),
        }
        caption += (
            "\nbusy: of a resource, which does one chunk at a time; what is not deduplicated has "
            "its whole exchange on the NICs."
        )
    return text.table("what it gains", columns, ways, caption)


def gain(ways: Sequence[Way], ours: Sequence[Way], count: int | None) -> list[str]:
    """Whether the best of ours gains anything over what there is today: sentences."""

    def seconds(way: Way) -> float:
        return count * way.training if count else way.forward.total

    best = min(ours, key=seconds)
    of = f"a step of {count} layers" if count else "a layer"
    words = [f"Best of fastjax: {best.name}, {text.seconds(seconds(best))} {of}."]
    said = {
        _TODAY: "sent all at once, as today, it takes",
        _FORWARDED: "DeepEP's way takes at least",
    }
    for way in ways:
        if way.name not in said:
            continue
        theirs = f"{said[way.name]} {text.seconds(seconds(way))}"
        ratio = seconds(way) / seconds(best) if seconds(best) else 1.0
        if ratio <= 1 + _ALIKE:
            words.append(f"That gains nothing: {theirs}.")
        else:
            words.append(f"{theirs[0].upper()}{theirs[1:]}, {ratio:.2f} x as long.")
    return words


def defaults(work: Work, ways: Ways) -> list[str]:
    """Whether the library takes the better way: a sentence for each that it has to choose."""
    words = []
    if work.topology.servers > 1:
        taken = deduplication.crosses_once(work.topology, work.num_experts, work.tokens, "auto")
        # Exchanges and planning alone: all have the same experts.
        seconds = {
            once: min(
                way.forward.total - way.forward.experts
                for way in ways.whole
                if way.forward.deduplicated == once
            )
            for once in (False, True)
        }
        does = "deduplicates" if taken else "does not deduplicate"
        told = _behind(seconds[taken], min(seconds.values()), f": say deduplicate={not taken}")
        words.append(f"By default moe.dispatch {does} here{told}")
    if work.seconds_per_row is not None:
        chosen = predicted(work, ways)
        kind = "deduplicated" if chosen.forward.deduplicated else "a row for each choice"
        count = chosen.forward.chunks
        named = f"{kind}, {count} chunk{'s' * (count > 1)}"
        told = _behind(chosen.forward.total, best_of(ways.split).forward.total)
        words.append(f"For training, moe.layer takes by default: {named}{told}")
    return words


def _behind(seconds: float, least: float, otherwise: str = "") -> str:
    """The end of a sentence about a way that takes `seconds`, where the best takes the least."""
    more = seconds / least - 1 if least else 0.0
    if more <= _ALIKE:
        return f", which is as good, within {_ALIKE:.0%}."
    return f", which takes {more:.0%} more{otherwise}."


def predicted(work: Work, ways: Ways) -> Way:
    """The cost model's best for a forward and a backward pass, which `moe.layer` goes by.

    The model does not know how popular experts are.
    """
    assert work.seconds_per_row is not None
    best = layer_time(
        work.topology,
        work.tokens.count,
        work.tokens.top_k,
        work.tokens.row_bytes,
        work.num_experts,
        seconds_per_row=work.seconds_per_row,
        candidates=work.chunks,
        crossing_bytes=work.tokens.crossing_bytes,
        backward=True,
    )
    asked = (best.chunks, best.deduplicated)
    return next(w for w in ways.split if (w.forward.chunks, w.forward.deduplicated) == asked)
