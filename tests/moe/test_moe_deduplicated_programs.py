"""Programs of layers whose tokens cross once: what they exchange, hold and count."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moe_layers import EXPERTS, SPREAD, P, dispatched, equations, on_devices, scaled

import fastjax
from fastjax import moe

PLATFORMS = ("cpu", "cuda", "rocm")


@pytest.mark.parametrize("indexed_as", ["as CPU"], indirect=True)
@pytest.mark.parametrize("chunks", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_no_array_has_a_row_for_each_choice(rng, indexed_as, chunks):
    """Inside servers, forward and backward, on every platform that has a backend of ours."""
    width, top_k, tokens, servers = 10, 3, 12, 2
    x = rng.normal(size=(8 * tokens, width)).astype(np.float32)
    ids = rng.integers(0, EXPERTS, (8 * tokens, top_k)).astype(np.int32)
    weights = rng.random((8 * tokens, top_k)).astype(np.float32)

    def local(x, weights, ids):
        def layer(x, weights):
            return moe.layer(
                x,
                ids,
                weights,
                jnp.ones((EXPERTS // 8, 1)),
                expert_fn=scaled,
                num_experts=EXPERTS,
                axis_name="x",
                chunks=chunks,
                deduplicate=True,
                topology=fastjax.Topology(servers, 4),
            )

        result, back = jax.vjp(layer, x, weights)
        return result, *back(result)

    def traced(fallback):
        with fastjax.options(fallback=fallback):
            return jax.jit(on_devices(local)).trace(x, weights, ids)

    ours = traced("never")  # whether or not there is a library for GPUs
    each = f"tensor<{servers * tokens // chunks * top_k}x{width}x"
    for platform in PLATFORMS:
        text = ours.lower(lowering_platforms=(platform,)).as_text()
        assert each not in text
        by_entries = "table,indices,factors,starts" in text
        assert by_entries == (platform != "cpu")
        assert ("table,indices,factors," in text) == (by_entries or platform == "cpu")
    assert each in traced("jax").lower(lowering_platforms=("tpu",)).as_text()
    together = ours.lower(lowering_platforms=PLATFORMS).as_text()
    assert "table,indices,factors,starts" in together
    assert "table,indices,factors,partition" in together


@pytest.mark.parametrize("once", [True, False])
def test_no_row_is_added_up_by_scattering(rng, once):
    """So sums come out the same, on any platform, every time."""
    x = rng.normal(size=(32, 3)).astype(np.float32)
    ids = rng.integers(0, 8, (32, 2)).astype(np.int32)

    def local(x, ids, weights):
        def loss(x, weights):
            options = {"num_experts": 8, "weights": weights, "deduplicate": once}
            rows, _, handle = dispatched(x, ids, **options)
            return (moe.combine(jnp.sin(rows), handle) ** 2).sum()

        return jax.grad(loss, (0, 1))(x, weights)

    mapped = on_devices(local)
    arrays = (x, ids, np.ones(ids.shape, np.float32))
    for equation in equations(jax.make_jaxpr(mapped)(*arrays).jaxpr):
        floating = jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)
        if equation.primitive.name.startswith("scatter") and floating:
            assert equation.params["unique_indices"]
    step = jax.jit(mapped)
    jax.tree.map(np.testing.assert_array_equal, step(*arrays), step(*arrays))


def exchanges(text):
    """How many there are in a compiled program, by kind."""
    operands = re.findall(r'custom_call_target="fastjax_exchange_v2".*?operands = "([\w,]+)"', text)
    indexed = sum("indices" in names.split(",") for names in operands)
    return {"plain": len(operands) - indexed, "indexed": indexed}


@pytest.mark.usefixtures("indexed_as")
@pytest.mark.parametrize(
    ("indexed_as", "at"), [("as CPU", "dispatch"), ("as GPU", "combine")], indirect=["indexed_as"]
)
def test_only_wanted_cotangents_are_exchanged(rng, at):
    """The way there, the sum and the way back; backward what the gradients need, and no more."""
    x = rng.normal(size=(8 * 6, 4)).astype(np.float32)
    ids = rng.integers(0, EXPERTS, (8 * 6, 3)).astype(np.int32)
    weights = rng.random((8 * 6, 3)).astype(np.float32)

    def loss(x, weights, scale, ids):
        def local(x, weights, scale, ids):
            given = {"weights": weights} if at == "dispatch" else {}
            rows, _, handle = dispatched(x, ids, **given)
            late = {} if at == "dispatch" else {"weights": weights}
            return moe.combine(jnp.sin(rows * scale), handle, **late)

        mapped = on_devices(local, specs=(SPREAD, SPREAD, P(), SPREAD))
        return jnp.sum(mapped(x, weights, scale, ids) ** 2)

    args = (x, weights, np.float32(0.7), ids)
    count = {}
    for name, wanted in {"nothing": None, "x": 0, "weights": 1, "scale": 2, "both": (0, 1)}.items():
        program = loss if wanted is None else jax.grad(loss, wanted)
        count[name] = exchanges(jax.jit(program).lower(*args).compile().as_text())
    late = 1 if at == "combine" else 0  # weights that cross after the tokens
    # Forward: tokens, sums, and weights inside servers; rows to experts, and their sums.
    assert count["nothing"] == {"plain": 3 + late, "indexed": 2}
    # Sums' cotangents cross, and go to the experts.
    assert count["scale"] == {"plain": 4 + late, "indexed": 3}
    # Of rows: they are added up inside servers, and cross.
    assert count["x"] == {"plain": 5 + late, "indexed": 4}
    # Of weights: they go back inside servers, and cross.
    assert count["weights"] == {"plain": 6 + late, "indexed": 3}
    # In one message, unless weights crossed after the tokens.
    assert count["both"] == {"plain": 6 + 2 * late, "indexed": 4}


@pytest.mark.usefixtures("indexed_as")
def test_no_wide_array_has_the_room_of_the_experts(rng):
    """Forward and backward, rows of 16 bits are multiplied and summed as they are."""
    width, tokens = 128, 64
    x = rng.normal(size=(8 * tokens, width)).astype(jnp.bfloat16)
    ids = np.argsort(rng.random((8 * tokens, EXPERTS)), 1)[:, :2].astype(np.int32)
    weights = rng.random((8 * tokens, 2)).astype(np.float32)

    def local(x, weights, ids):
        def layer(x, weights):
            rows, _, handle = dispatched(x, ids, weights=weights)
            return moe.combine(rows, handle)

        result, back = jax.vjp(layer, x, weights)
        return result, *back(result)

    mapped = on_devices(local)
    compiled = jax.jit(mapped).lower(x, weights, ids).compile()
    room = 2 * 8 * tokens
    made = re.findall(rf"= (\w+)\[{room},{width}\]\S* (fusion|custom-call)\(", compiled.as_text())
    assert {dtype for dtype, _ in made} == {"bf16"}


@pytest.mark.parametrize("once", [True, False])
def test_a_batch_is_counted_as_one(rng, once):
    x = rng.normal(size=(8 * 6, 2, 3)).astype(np.float32)
    ids = rng.integers(0, EXPERTS, (8 * 6, 2, 3)).astype(np.int32)

    def counted_batch(x, ids):
        return jax.vmap(lambda x, ids: dispatched(x, ids, deduplicate=once)[0], 1)(x, ids)

    with fastjax.collect_stats():
        fastjax.reset_stats()
        jax.block_until_ready(jax.jit(on_devices(counted_batch))(x, ids))
        sites = [s for s in fastjax.stats() if s.program == "jit_counted_batch" and s.launches]
    told = {(s.tokens, s.choices) for s in sites if s.tokens}
    assert told == {(ids[..., 0].size, ids.size)}
    (way,) = [s for s in sites if s.tokens and s.rows]
    for counted in (s for s in sites if s.operation == "gather_counts"):
        at_home = [np.bincount(own.ravel() // 2, minlength=8) for own in np.split(ids, 8)]
        np.testing.assert_array_equal(counted.traffic, at_home)
    own = np.arange(8 * 6)[:, None, None, None] // 12 == np.arange(4)
    servers = (ids[..., None] // 4 == np.arange(4)) & ~own
    assert way.rows == (servers.any(2).sum() if once else ids.size)


@pytest.mark.parametrize("once", [True, False])
def test_rows_and_choices_are_counted(rng, once):
    """By the statistics of the exchanges of a dispatch, against numpy."""
    x = rng.normal(size=(8 * 6, 3)).astype(np.float32)
    ids = rng.integers(-1, EXPERTS, (8 * 6, 3)).astype(np.int32)

    def counted_dispatch(x, ids):
        rows, _, handle = dispatched(x, ids, deduplicate=once)
        assert handle.deduplicated == once
        return rows

    mapped = on_devices(counted_dispatch)
    with fastjax.collect_stats():
        fastjax.reset_stats()
        jax.block_until_ready(jax.jit(mapped)(x, ids))
        sites = [s for s in fastjax.stats() if s.program == "jit_counted_dispatch" and s.launches]
    moving = [s for s in sites if s.operation == "fast_ragged_all_to_all"]
    server = np.arange(8 * 6) // 12
    apart = (ids >= 0) & (ids // 4 != server[:, None])
    if not once:
        (site,) = moving
        assert site.name.startswith("moe_dispatch/")
        assert "moe_cross" not in site.name
        assert (site.tokens, site.choices) == (len(ids), ids.size)
        assert (site.rows, site.crossing_rows) == ((ids >= 0).sum(), apart.sum())
        return
    between, inside = sorted(moving, key=lambda s: -s.group_size)
    assert between.name.startswith("moe_dispatch/moe_cross/")
    assert "/moe_to_experts/" in inside.name
    servers = (ids[:, :, None] // 4 == np.arange(4)) & apart[:, :, None]
    assert between.rows == between.crossing_rows == servers.any(1).sum()
    assert (between.tokens, between.choices, inside.tokens) == (len(ids), ids.size, 0)
    assert (inside.total_rows, inside.crossing_rows) == ((ids >= 0).sum(), 0)
