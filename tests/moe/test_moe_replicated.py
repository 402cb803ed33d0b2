"""Layers of tokens that all devices have: by parts of them, or by sums of what experts make."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_layers import (
    EXPERTS,
    TOP_K,
    WIDTH,
    P,
    all_experts,
    dense,
    layer,
    on_devices,
    problem,
    same,
    scaled,
    scales,
    with_gradients,
)
from refusals import refused
from spmd import mesh_of

import fastjax
from fastjax import errors, moe
from fastjax.moe import replication
from fastjax.traced import contract

REPLICATED = P(), P(), P("x"), P()
TILED = functools.partial(all_experts, dot=moe.grouped_dot)


@pytest.fixture(params=[True, False], ids=["summed", "divided"])
def summed(request, monkeypatch):
    monkeypatch.setattr(replication, "is_summed", lambda *_: request.param)
    return request.param


@pytest.mark.parametrize(
    ("check_vma", "options"),
    [
        (False, {"alignment": 4, "expert_fn": None, "grouped_fn": TILED}),
        (True, {"deduplicate": True, "chunks": 2, "buffer_factor": 0.5, "balance": True}),
    ],
    ids=["whole", "lines"],
)
@pytest.mark.usefixtures("summed")
def test_values_and_gradients(rng, check_vma, options):
    """26 tokens on 8 devices, or 13 on either line of 4, whose gradients are taken inside."""
    arrays = x, weights, params, ids = problem(rng, 4, "holes")
    arrays = x[:26], weights[:26], params, ids[:26]
    options = {"replicated": True} | options
    tokens, shape = P(), (8,)
    if check_vma:
        tokens, shape = P("d"), (2, 4)
        options["topology"] = fastjax.Topology(2, 2)
    on_mesh = functools.partial(
        jax.shard_map,
        mesh=mesh_of(shape, ("d", "x")[-len(shape) :]),
        in_specs=(tokens, tokens, P("x"), tokens),
        check_vma=check_vma,
    )
    function = functools.partial(layer, **options)
    if check_vma:
        results = tokens, (tokens, tokens, P("x"))
        program = on_mesh(with_gradients(function), out_specs=results)
    else:
        program = with_gradients(on_mesh(function, out_specs=tokens))
    same(jax.jit(program)(*arrays), with_gradients(dense)(*arrays), 2e-5)


@functools.cache
def counted(tokens, way):
    """Tokens that are multiplied by the sum of the numbers of their experts, and statistics."""
    del tokens, way  # which programs are traced for

    def local(x, weights, params, ids):
        shaped = (a.reshape(1, *a.shape) for a in (x, ids, weights))
        result, stats = moe.layer(
            *(*shaped, params),
            expert_fn=scaled,
            num_experts=EXPERTS,
            axis_name="x",
            buffer_factor=0.5,
            drop=True,
            replicated=True,
            return_stats=True,
        )
        each = stats.rows[None], stats.rounds[None], stats.copies[None]
        return result, stats.expert_rows, stats.dropped, each

    specs = {"in_specs": REPLICATED, "out_specs": (P(), P(), P(), P("x"))}
    return jax.jit(jax.shard_map(local, mesh=mesh_of(), **specs))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_tokens(data):
    """Of any number; those of no expert, and more than there is room for."""
    tokens = data.draw(st.sampled_from([1, 9]))  # programs are compiled for
    way = data.draw(st.booleans())
    ids = data.draw(st.lists(st.integers(-1, EXPERTS - 1), min_size=tokens * TOP_K))
    ids = np.resize(np.array(ids, np.int32), (tokens, TOP_K))
    x = np.arange(1, 1 + tokens * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replication, "is_summed", lambda *_: way)
        made = counted(tokens, way)(x, np.ones(ids.shape, np.float32), scales(), ids)
    result, expert_rows, dropped, (rows, rounds, copies) = made
    number = np.where(ids < 0, 0, ids + 1)
    np.testing.assert_array_equal(expert_rows, np.bincount(ids[ids >= 0], minlength=EXPERTS))
    assert rows.sum() + dropped == (ids >= 0).sum()
    assert (rounds == 1).all()
    assert not copies.any()
    if not dropped:
        np.testing.assert_array_equal(result[0], x * number.sum(1, keepdims=True))
    assert not (way and dropped)
    np.testing.assert_array_less(np.abs(result[0]), np.abs(x * number.sum(1, keepdims=True)) + 0.5)


def test_one_device_exchanges_nothing(rng):
    x, weights, params, ids = problem(rng, 1)
    options = {"replicated": True, "topology": fastjax.Topology(1, 1)}
    program = jax.jit(on_devices(layer, mesh_of((1,)), REPLICATED, **options))
    same(program(x, weights, params, ids), dense(x, weights, params, ids))
    text = program.lower(x, weights, params, ids).compile().as_text()
    assert contract.EXCHANGE.target not in text
    assert "all-gather" not in text  # and a sum of one device is what that has


@pytest.mark.usefixtures("summed")
def test_experts_that_there_are_not(rng):
    x, weights, params, ids = problem(rng, 1)
    ids[2, 1] = -7
    program = jax.jit(on_devices(layer, specs=REPLICATED, replicated=True))
    call = lambda: jax.block_until_ready(program(x, weights, params, ids))  # noqa: E731
    told = "moe.dispatch was given the expert -7 in expert_ids; want 0 to 15"
    refused(jax.errors.JaxRuntimeError, call, "on device ", told)


def traced(rng, *, check_vma=True, **options):
    x, weights, params, ids = problem(rng, 1)
    function = functools.partial(layer, **options)
    specs = {"in_specs": REPLICATED, "out_specs": P("x")}
    mapped = jax.shard_map(function, mesh=mesh_of(), check_vma=check_vma, **specs)
    return jax.eval_shape(mapped, x, weights, params, ids)


def test_same_tokens_on_all_devices_are_told_once(rng, monkeypatch):
    monkeypatch.setattr(replication, "_warned", set())
    traced(rng, check_vma=False)  # it is not known
    with pytest.warns(errors.ReplicatedTokensWarning, match="replicated=True") as caught:
        traced(rng)
    assert caught[0].filename == layer.__code__.co_filename  # where moe.layer is called
    traced(rng)
    with monkeypatch.context() as context:
        context.setattr(replication, "_warned", set())
        traced(rng, replicated=True)


def test_groups_are_refused(rng):
    groups = {"axis_index_groups": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    refused(errors.ArgumentError, lambda: traced(rng, replicated=True, **groups), "each group's")
    refused(errors.ArgumentError, lambda: traced(rng, replicated=1), "True or False, got 1")
