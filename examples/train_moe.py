"""Trains a small mixture-of-experts language model on bytes, with expert parallelism.

    pip install 'fastjax[examples]'
    python examples/train_moe.py
    python examples/train_moe.py --processes 4
    python examples/train_moe.py --help

The text is what every machine has: the sources of Python's standard library. Each of the devices
has its own part of a step's sequences and its own experts; `fastjax.moe.layer` takes tokens to
their experts and back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

sys.path.append(str(Path(__file__).parent))  # Python leaves it out where PYTHONSAFEPATH is set

import optax
from moe_lm import launch, layers, model, report, text
from moe_lm.training import Checkpoints, State, Trainer

import fastjax
from fastjax import scheduling

EVALUATION_SEED = 1_000_000


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Trains a byte-level mixture-of-experts language model on CPU devices."""

    layer: Literal["fastjax", "dense"] = "fastjax"
    """How tokens reach their experts: fastjax.moe.layer, or padded all_to_alls, to compare with."""
    scheduler: str | None = None
    """fastjax's scheduler; by default FASTJAX_SCHEDULER's, or auto."""
    servers: int | None = None
    """Servers that the planner is told of; by default the processes."""
    processes: int = 1
    """Processes. Starts them all, unless --coordinator says that this is one of them."""
    devices: int = 8
    """CPU devices of all processes together."""
    coordinator: str = ""
    """HOST:PORT of process 0, to start each process by hand."""
    process: int = 0
    """Number of this process, with --coordinator."""
    text: Path | None = None
    """Folder of .py files; by default this Python's standard library."""
    steps: int = 300
    """Steps of training, in all."""
    sequences: int = 4
    """Sequences of a device in a step."""
    length: int = 64
    """Bytes of a sequence."""
    width: int = 64
    """Width of a token."""
    depth: int = 3
    """Layers of attention and experts."""
    heads: int = 4
    """Heads of attention."""
    experts: int = 8
    """Experts of a layer, a multiple of the devices."""
    top_k: int = 2
    """Experts of a token."""
    inner: int = 256
    """Width inside an expert."""
    rate: float = 3e-3
    """Learning rate at its highest."""
    balance: float = 0.0
    """Weight of Switch Transformer's auxiliary loss, which keeps experts equally busy, too."""
    bias_rate: float = 0.001
    """What an expert's bias rises by in a step that gives it few rows, and falls by otherwise."""
    seed: int = 0
    """Of parameters and batches."""
    folder: Path = Path("build/train_moe")
    """Where checkpoints, losses.json and losses.png go; one that all processes see."""
    save_every: int = 100
    """Steps from checkpoint to checkpoint; there is one at the end too."""
    evaluate_every: int = 50
    """Steps from one look at held-out text to the next."""
    resume: bool = False
    """Go on from the newest checkpoint of the folder."""
    trace: Path | None = None
    """Write the routing of the last steps to this file, as Megatron-Core does; .gz compresses."""
    trace_steps: int = 1
    """How many of the last steps."""
    compare: bool = False
    """At the end, time steps of every scheduler and of the dense layer side by side."""
    compared: tuple[str, ...] = ()
    """Schedulers to compare; by default all that programs can have."""
    compared_ways: tuple[str, ...] = ()
    """Other ways to compare: once:4 is tokens that cross once to each server, in 4 chunks; each:1,
    once for each choice, in one chunk."""
    rounds: int = 20
    """Times that each of them runs."""

    def __post_init__(self) -> None:
        positive = ("processes", "devices", "steps", "sequences", "length", "width", "depth")
        positive += ("heads", "experts", "top_k", "inner", "save_every", "evaluate_every")
        for name in (*positive, "trace_steps", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be 1 or more.")
        _check_schedulers(self.compared)
        for way in self.compared_ways:
            _way(way)
        for whole, part in (
            ("devices", "processes"),
            ("experts", "devices"),
            ("width", "heads"),
            ("devices", "servers"),
        ):
            count = getattr(self, part)
            if count is not None and (count < 1 or getattr(self, whole) % count):
                raise ValueError(
                    f"--{whole} {getattr(self, whole)} must be a multiple of --{part}, {count}."
                )
        if self.top_k > self.experts:
            raise ValueError(f"--top-k {self.top_k} is more than there are experts.")
        if not 0 <= self.process < self.processes:
            raise ValueError(f"--process must be from 0 to {self.processes - 1}.")
        if self.coordinator and self.processes == 1:
            raise ValueError("--coordinator is for several processes; say how many by --processes.")
        if self.process and not self.coordinator:
            raise ValueError("--process says which of several this is, which needs --coordinator.")

    @property
    def shape(self) -> model.Shape:
        """Sizes of the model."""
        return model.Shape(
            self.width,
            self.depth,
            self.heads,
            self.experts,
            self.top_k,
            self.inner,
            self.length,
        )

    @property
    def topology(self) -> fastjax.Topology | None:
        """What the planner is told of."""
        if self.servers is None:
            return None
        return fastjax.Topology(self.servers, self.devices // self.servers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, in this process or in several; returns the exit status."""
    import tyro

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options = tyro.cli(TrainOptions, prog="train_moe.py", args=arguments)
        if options.processes > 1 and not options.coordinator:
            return launch.run(__file__, arguments, options.processes)
        launch.start_backend(
            options.devices // options.processes,
            options.coordinator,
            options.processes,
            options.process,
        )
        run(options)
    except (fastjax.errors.FastjaxError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def run(options: TrainOptions) -> dict[str, Any]:
    """Trains on the devices that JAX has; returns the losses of all steps.

    Returns:
      losses: nats a byte, of each step. slowest: of each step, rows of the slowest device by the
      mean, on average of layers. held_out_steps, held_out: the same of held-out text, and
      after how many steps. compared, if asked for: seconds of steps, by layer.

    Raises:
      ValueError: the folder has checkpoints already, has none to go on from, or those of another
        model; or the text is too short.
    """
    trained_on, held_out = text.read(options.text or text.standard_library())
    sequences = options.sequences * options.devices
    batches = text.Batches(trained_on, sequences, options.length, options.seed)
    others = text.Batches(held_out, sequences, options.length, EVALUATION_SEED)
    warm_up = max(1, min(options.steps // 10, 50))
    decay = max(options.steps, warm_up + 1)
    rate = optax.warmup_cosine_decay_schedule(0, options.rate, warm_up, decay)
    trainer = Trainer(options.shape, optax.adamw(rate), options.balance, options.bias_rate)
    state = trainer.start(options.seed)
    layer = _layer(options, options.layer, options.scheduler)
    step, evaluate = trainer.step(layer), trainer.evaluation(layer)
    held_out_batch = trainer.batch(others[0])
    chosen: dict[int, np.ndarray] = {}
    seconds = []
    with contextlib.closing(Checkpoints(options.folder)) as checkpoints:
        done, state, history = _begin(options, checkpoints, state)
        with _progress(options, done) as show:
            for number in range(done, options.steps):
                start = time.perf_counter()
                state, result = step(state, trainer.batch(batches[number]))
                history["losses"].append(float(result["loss"]))
                history["slowest"].append(float(result["slowest"].mean()))
                seconds.append(time.perf_counter() - start)
                if number >= options.steps - options.trace_steps and options.trace:
                    chosen[number] = trainer.everywhere(result["ids"])
                last = number + 1 == options.steps
                if last or (number + 1) % options.evaluate_every == 0:
                    history["held_out_steps"].append(number + 1)
                    history["held_out"].append(float(evaluate(state, held_out_batch)))
                if last or (number + 1) % options.save_every == 0:
                    checkpoints.save(number + 1, state, history)
                show(history)
    if jax.process_index() == 0:
        _write(options, history, chosen)
        _say(_summary(options, history, seconds))
    if options.compare:
        history["compared"] = compare(options, trainer, state, batches)
        if jax.process_index() == 0:
            _say(report.time_table(history["compared"]))
    return history


def _begin(
    options: TrainOptions, checkpoints: Checkpoints, state: State
) -> tuple[int, State, dict[str, Any]]:
    """Steps done, the state then, and losses so far."""
    newest = checkpoints.newest
    if not options.resume:
        if newest is not None:
            raise ValueError(
                f"{options.folder} has checkpoints, the newest after {newest} steps: go on from it "
                "with --resume, or give another --folder."
            )
        return 0, state, {"losses": [], "slowest": [], "held_out_steps": [], "held_out": []}
    if newest is None:
        raise ValueError(f"{options.folder} has no checkpoint to go on from.")
    if newest > options.steps or (newest == options.steps and not options.compare):
        raise ValueError(
            f"{options.folder} is at step {newest} already; --steps must be more to go on."
        )
    return newest, *checkpoints.restore(newest, state)


def _check_schedulers(names: Sequence[str]) -> None:
    known = scheduling.schedulers_in_programs()
    for name in names:
        if name not in known:
            raise ValueError(f"--compared {name}: there are {', '.join(known)}.")


def _way(name: str) -> dict[str, Any]:
    """What `layers.fast` is told of a way."""
    found = re.fullmatch(r"(once|each):([1-9]\d*)", name)
    if not found:
        raise ValueError(f"--compared-ways {name}: want once:CHUNKS or each:CHUNKS.")
    return {"deduplicate": found[1] == "once", "chunks": int(found[2])}


def _layer(options: TrainOptions, name: str, scheduler: str | None) -> layers.Layer:
    return layers.dense if name == "dense" else layers.fast(scheduler, options.topology)


def compare(
    options: TrainOptions, trainer: Trainer, state: State, batches: text.Batches
) -> dict[str, list[float]]:
    """Seconds of steps by scheduler, and with the dense layer; they change the state."""
    batch = trainer.batch(batches[options.steps])
    latest = {"state": state}

    def once(step: Callable[..., Any]) -> Callable[[], None]:
        def go() -> None:
            latest["state"], result = step(latest["state"], batch)
            result["loss"].block_until_ready()

        return go

    runs = {
        f"fastjax {name}": once(trainer.step(_layer(options, "fastjax", name)))
        for name in options.compared or scheduling.schedulers_in_programs()
    }
    for name in options.compared_ways:
        layer = layers.fast(options.scheduler, options.topology, **_way(name))
        runs[f"fastjax {name}"] = once(trainer.step(layer))
    runs["dense, padded"] = once(trainer.step(layers.dense))
    for go in runs.values():  # compiles it
        go()
    return report.by_turns(runs, options.rounds)


def _write(options: TrainOptions, history: dict[str, Any], chosen: dict[int, np.ndarray]) -> None:
    (options.folder / "losses.json").write_text(json.dumps(history) + "\n")
    report.draw_losses(options.folder / "losses.png", history)
    if options.trace and chosen:
        report.write_trace(options.trace, chosen, options.devices)


def _summary(options: TrainOptions, history: dict[str, Any], seconds: list[float]) -> str:
    said = f"{len(history['losses'])} steps, {options.devices} devices, "
    said += f"{options.processes} process{'es' * (options.processes > 1)}, {options.layer}: "
    said += f"loss {history['losses'][-1]:.3f} nats a byte"
    if history["held_out"]:
        said += f", {history['held_out'][-1]:.3f} on held-out text"
    tenth = -(-len(history["slowest"]) // 10)
    first, last = (np.mean(history["slowest"][at]) for at in (slice(tenth), slice(-tenth, None)))
    said += f"; rows of the slowest device ÷ mean: {first:.2f} in the first tenth of the steps, "
    said += f"{last:.2f} in the last"
    if seconds:
        low, middle, high = np.percentile(seconds, [25, 50, 75]) * 1e3
        said += f"; a step took {middle:.0f} ms (quartiles {low:.0f} to {high:.0f})"
    return f"{said}. Curve and checkpoints are in {options.folder}."


def _say(what: Any) -> None:
    from rich.console import Console

    Console(soft_wrap=True, highlight=False).print(what)


@contextlib.contextmanager
def _progress(options: TrainOptions, done: int) -> Generator[Callable[[dict[str, Any]], object]]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = jax.process_index() > 0 or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("training", total=options.steps, completed=done)

        def show(history: dict[str, Any]) -> None:
            bar.update(task, advance=1, description=f"loss {history['losses'][-1]:.3f}")

        yield show


if __name__ == "__main__":
    sys.exit(main())
