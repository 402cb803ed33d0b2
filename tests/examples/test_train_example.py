"""examples/train_moe.py: both layers, interrupted, in several processes; what it writes."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import train_moe
from moe_lm import launch, layers, training
from pythons import printed

import fastjax
from fastjax import scheduling
from fastjax.cli import main as fastjax_command
from fastjax.traffic import read_routing_trace

SIZES = {"width": 16, "depth": 2, "heads": 2, "inner": 16, "length": 16, "sequences": 2}
STEPS = {"steps": 6, "save_every": 2, "evaluate_every": 4, "trace_steps": 2, "bias_rate": 0.02}
DEVICES, TOKENS, TOP_K = 8, 32, 2


class Shared(training.Trainer):
    """Compiles a layer's step for all runs of these tests, which are of one model."""

    made: dict[tuple[str, bool], object] = {}  # noqa: RUF012

    def step(self, layer):
        return self.made.setdefault(("step", layer is layers.dense), super().step(layer))

    def evaluation(self, layer):
        return self.made.setdefault(
            ("evaluation", layer is layers.dense), super().evaluation(layer)
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text of as many files as it takes."""
    folder = tmp_path_factory.mktemp("text")
    source = Path(train_moe.__file__).read_text()
    for number in range(20):
        (folder / f"{number:02}.py").write_text(source[200 * number :][:600])
    return folder


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    monkeypatch.setattr(train_moe, "Trainer", Shared)


def options(files, folder, **more):
    return train_moe.TrainOptions(text=files, folder=folder, **(SIZES | STEPS | more))


@pytest.fixture(scope="module")
def uninterrupted(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_moe, "Trainer", Shared)
        history = train_moe.run(options(files, folder, trace=folder / "new/trace.jsonl.gz"))
    return folder, history


def close(got, wanted, tolerance=1e-5):
    assert got["held_out_steps"] == wanted["held_out_steps"]
    for name in ("losses", "held_out"):
        np.testing.assert_allclose(got[name], wanted[name], rtol=tolerance)


def test_it_learns_and_writes(uninterrupted):
    folder, history = uninterrupted
    assert len(history["losses"]) == 6
    assert history["losses"][0] == pytest.approx(np.log(256), abs=1)
    assert history["losses"][-1] < history["losses"][0] - 0.1
    assert len(history["slowest"]) == 6
    assert history["slowest"][-1] < 0.9 * history["slowest"][0]
    assert history["held_out_steps"] == [4, 6]
    assert json.loads((folder / "losses.json").read_text()) == history
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in folder.iterdir() if p.name.isdigit()) == ["4", "6"]


def test_trace(uninterrupted, capsys):
    """It is what Megatron-Core writes, and fastjax's planner takes it."""
    path = uninterrupted[0] / "new/trace.jsonl.gz"
    found = list(read_routing_trace(path))
    assert [(r.step, r.layer, r.rank) for r in found] == [
        (step, layer, rank) for step in (4, 5) for layer in (0, 1) for rank in range(DEVICES)
    ]
    for record in found:
        assert record.top_indices.shape == (TOKENS, TOP_K)
        assert (record.top_indices[:, 0] != record.top_indices[:, 1]).all()
        assert record.top_indices.max() < 8
    arguments = ["plan", str(path), "--devices", "8", "--num-experts", "8", "--servers", "2"]
    assert fastjax_command(arguments) == 0
    assert re.search(rf"rows +{DEVICES * TOKENS * TOP_K} of", capsys.readouterr().out)


def test_the_dense_layer_has_the_same_losses(uninterrupted, files, tmp_path):
    close(train_moe.run(options(files, tmp_path, layer="dense")), uninterrupted[1])


def test_resumed(uninterrupted, files, tmp_path, monkeypatch, capsys):
    """Where an uninterrupted run would be, bit by bit; and times of steps."""

    class Interrupted(training.Checkpoints):
        def save(self, steps, state, history):
            super().save(steps, state, history)
            if steps == 4:
                self.close()
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_moe, "Checkpoints", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_moe.run(options(files, tmp_path))
    ways = ("once:1", "each:2")
    again = options(files, tmp_path, resume=True, compare=True, compared_ways=ways, rounds=2)
    history = train_moe.run(again)
    compared = history.pop("compared")
    assert history == uninterrupted[1]
    assert {len(seconds) for seconds in compared.values()} == {2}
    said = capsys.readouterr().out
    for name in (*scheduling.schedulers_in_programs(), *ways):
        assert f"fastjax {name} " in said
    assert "dense, padded" in said


@pytest.mark.nightly
def test_four_processes_of_two_devices(uninterrupted, files, tmp_path):
    """They go on where one process left off, as that one did."""
    before, wanted = uninterrupted
    shutil.copytree(before / "4", tmp_path / "4")
    words = [f"--{k.replace('_', '-')}={v}" for k, v in (SIZES | STEPS).items()]
    words += [f"--text={files}", f"--folder={tmp_path}", f"--trace={tmp_path / 'trace.jsonl'}"]
    command = "-W", "error", train_moe.__file__, "--processes=4", "--resume", *words
    alone = {"JAX_COMPILATION_CACHE_DIR": ""}  # no warnings of what others write
    said = printed(*command, environment=alone)
    assert "6 steps, 8 devices, 4 processes, fastjax: loss" in said
    history = json.loads((tmp_path / "losses.json").read_text())
    assert history["losses"][:4] == wanted["losses"][:4]
    close(history, wanted)
    found = list(read_routing_trace(tmp_path / "trace.jsonl"))
    one = read_routing_trace(before / "new/trace.jsonl.gz")
    same = [np.mean(a.top_indices == b.top_indices) for a, b in zip(found, one, strict=True)]
    assert np.mean(same) > 0.99  # what is nearly a tie may go either way


def test_folders_that_do_not_fit(uninterrupted, files, tmp_path):
    folder, _ = uninterrupted
    with pytest.raises(ValueError, match=r"the newest after 6 steps: go on from it with --resume"):
        train_moe.run(options(files, folder))
    with pytest.raises(ValueError, match="has no checkpoint to go on from"):
        train_moe.run(options(files, tmp_path, resume=True))
    for steps in (5, 6):
        with pytest.raises(ValueError, match="is at step 6 already; --steps must be more"):
            train_moe.run(options(files, folder, resume=True, steps=steps))
    with pytest.raises(ValueError, match="is of another model"):
        train_moe.run(options(files, folder, resume=True, steps=7, width=32))


def test_how_to_plan(files, tmp_path, monkeypatch):
    """Scheduler and servers reach the layer."""
    asked = []
    fast = layers.fast
    monkeypatch.setattr(layers, "fast", lambda *plan: asked.append(plan) or fast())
    train_moe.run(options(files, tmp_path, steps=1, scheduler="rails", servers=2))
    assert asked == [("rails", fastjax.Topology(2, 4))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--steps 0", "--steps must be 1 or more."),
        ("--processes 3", "--devices 8 must be a multiple of --processes, 3."),
        ("--servers 3", "--devices 8 must be a multiple of --servers, 3."),
        ("--top-k 9", "--top-k 9 is more than there are experts."),
        ("--process 1", "--process must be from 0 to 0."),
        ("--process 1 --processes 2", "which needs --coordinator."),
        ("--coordinator here:1", "--coordinator is for several processes"),
        ("--compared auto fastest", "--compared fastest: there are auto, "),
        ("--compared-ways once:4 each:0", "--compared-ways each:0: want once:CHUNKS"),
    ],
)
def test_options_refused(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        train_moe.main(arguments.split())
    words = re.sub(r"[\s│]+", " ", capsys.readouterr().err)
    assert said in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--devices 4", "this needs 4 CPU devices in each process, but JAX has started with 8."),
        ("--text nowhere", "nowhere has 0 .py files; training wants 10 or more."),
    ],
)
def test_refused(arguments, said, capsys, monkeypatch):
    assert jax.device_count() == 8  # it has started
    monkeypatch.setenv("NPROC", "264")  # would be set for one that starts
    assert train_moe.main(arguments.split()) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_process_that_fails(tmp_path, monkeypatch, capsys):
    """The others do not go on for ever, and its last words are shown."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "if sys.argv[-1] == '2':\n"
        "    sys.exit('it hurts, ' + sys.argv[1])\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0)
    assert launch.run(str(script), ["here"], 3) == 1
    said = capsys.readouterr().err
    assert said.startswith("Process 2 failed.\n")
    assert "--- process 2:\nit hurts, here\n" in said
