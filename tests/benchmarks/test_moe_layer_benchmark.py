"""benchmarks/moe_layer.py, small: what is compared is the same, and what is not is noticed."""

import json

import moe_layer
import moe_reference as reference
import numpy as np
import pytest
from moe_lm import layers
from spmd import mesh_of, spmd

from fastjax import scheduling

SMALL = ["--tokens", "16", "--width", "8", "--inner", "8", "--rounds", "2", "--experts", "8"]


@pytest.fixture
def one_scheduler(monkeypatch):
    monkeypatch.setattr(scheduling, "schedulers_in_programs", lambda: ("auto",))


def test_command(one_scheduler, tmp_path, capsys, monkeypatch):
    path = tmp_path / "layer.json"
    assert moe_layer.main([*SMALL, "--least", "0", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert [cell["layer"] for cell in record["cells"]] == [moe_layer.DENSE, "auto"]
    dense, auto = record["cells"]
    assert dense["differs"] == 0
    assert auto["differs"] < 1e-5
    assert auto["faster"] == pytest.approx(dense["ms"]["median"] / auto["ms"]["median"])
    assert "exchange" not in dense
    share = auto["exchange"]["median"] / auto["ms"]["median"]
    (line,) = [line for line in shown.splitlines() if line.startswith("| auto |")]
    assert f" {share:.1%} |" in line
    assert "4 times the rows" in shown
    assert moe_layer.page(record, "A layer of experts") == shown.rstrip("\n") + "\n"
    monkeypatch.setattr(moe_layer, "measure", lambda *_: record["cells"])
    assert moe_layer.main([*SMALL, "--least", "1e9"]) == 1


def test_wrong(one_scheduler, monkeypatch):
    dense = layers.dense
    monkeypatch.setattr(layers, "dense", lambda *arguments: 1.001 * dense(*arguments))
    with pytest.raises(AssertionError, match=r"results differ from the dense layer's, by \{'auto'"):
        moe_layer.main(SMALL)


def test_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        moe_layer.main(["--rounds", "0"])
    assert "--rounds, --width, --inner and --tokens must be 1 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        moe_layer.main(["--tokens", "1025"])
    assert "--tokens must be 1024 at most" in capsys.readouterr().err


@pytest.mark.parametrize("experts", moe_layer.TRACES)
def test_traces(experts):
    """Eight devices, four steps of 256 tokens, two experts each, some more popular."""
    ids = moe_layer.routing(experts)
    assert ids.shape == (8, 4 * 256, 2)
    assert (ids[..., 0] != ids[..., 1]).all()
    rows = np.bincount(ids.ravel(), minlength=experts)
    assert len(rows) == experts
    assert rows.max() > 1.5 * rows.mean()


@pytest.mark.parametrize("layer", [layers.dense, layers.fast("fast")], ids=["dense", "fastjax"])
def test_layers_by_hand(rng, layer):
    """Token by token, in numpy."""
    devices, tokens, width, inner, experts = 8, 5, 6, 4, 16
    x = rng.normal(size=(devices, tokens, width)).astype(np.float32)
    up = rng.normal(size=(devices, 2, width, inner)).astype(np.float32)
    down = rng.normal(size=(devices, 2, inner, width)).astype(np.float32)
    ids = np.array([rng.permutation(experts)[:2] for _ in range(devices * tokens)], np.int32)
    ids = ids.reshape(devices, tokens, 2)
    weights = rng.uniform(size=ids.shape).astype(np.float32)
    got = spmd(lambda x, i, w, up, down: layer(x, i, w, (up, down)), _mesh())(
        x, ids, weights, up, down
    )
    every_up, every_down = up.reshape(experts, width, inner), down.reshape(experts, inner, width)
    for at in np.ndindex(devices, tokens):
        made = [
            w * (np.maximum(x[at] @ every_up[e], 0) @ every_down[e])
            for e, w in zip(ids[at], weights[at], strict=True)
        ]
        np.testing.assert_allclose(got[at], sum(made), rtol=1e-4, atol=1e-5)


def _mesh():
    return mesh_of(names=(layers.AXIS,))


def test_routes(rng):
    """Weights add up to 1; balance is over all devices."""
    x = rng.normal(size=(8, 4, 3)).astype(np.float32)
    router = np.broadcast_to(rng.normal(size=(3, 6)).astype(np.float32), (8, 3, 6))
    run = spmd(lambda x, r: layers.route(x, r, 2), _mesh())
    ids, weights, uneven = run(x, router)
    wanted, wanted_ids = reference.route(x[3], router[0], 2)
    np.testing.assert_array_equal(ids[3], wanted_ids)
    np.testing.assert_allclose(weights[3], wanted / wanted.sum(-1, keepdims=True), rtol=1e-5)
    chances = np.exp(x @ router[0]) / np.exp(x @ router[0]).sum(-1, keepdims=True)
    shares = np.bincount(np.asarray(ids).ravel(), minlength=6) / ids.size
    np.testing.assert_allclose(uneven, 6 * shares @ chances.mean((0, 1)), rtol=1e-5)
