"""Programs of `moe.layer` in chunks: what waits for what, and what is refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_flow import parts_of
from moe_layers import (
    DEVICES,
    EXPERTS,
    TOP_K,
    all_experts,
    expert,
    layer,
    on_devices,
    problem,
    same,
    with_gradients,
)
from refusals import refusals
from spmd import mesh_of

import fastjax
from fastjax import handlers, moe
from fastjax.errors import ArgumentError
from fastjax.moe import whole_layer
from fastjax.traced import contract
from fastjax.traced.after import after

CALLS = contract.PLAN, contract.EXCHANGE, contract.START, contract.DONE
PLAN, EXCHANGE, START, DONE = (call.target for call in CALLS)


def in_chunks(options, chunks, expert_fn, *arrays):
    usual = {"topology": fastjax.Topology(4, 2, scale_out_bandwidth=1e8)}
    usual |= {"buffer_factor": None, "drop": True, "chunks": chunks}
    return layer(*arrays, expert_fn=expert_fn, **usual | options)


def lowered(local, tokens, *, width=6, gradients=False, power=2):
    """The program of a layer, or of its gradients by tokens; its choices are operands."""
    shapes = [
        jax.ShapeDtypeStruct((DEVICES * tokens, width), jnp.float32),
        jax.ShapeDtypeStruct((DEVICES * tokens, TOP_K), jnp.float32),
        tuple(jax.ShapeDtypeStruct((EXPERTS, *s), jnp.float32) for s in ((6, 10), (10, 6))),
        jax.ShapeDtypeStruct((DEVICES * tokens, TOP_K), jnp.int32),
    ]
    mapped = on_devices(local)
    loss = jax.grad(
        lambda x, weights, *others: (mapped(x, weights, *others) ** power).sum(), (0, 1)
    )
    return jax.jit(loss if gradients else mapped).lower(*shapes)


def compiled(local):
    return lowered(local, 6).compile().as_text()


def test_chunks_have_starts_and_one_is_as_before():
    text = compiled(functools.partial(in_chunks, {"deduplicate": True}, 2, expert))
    assert text.count(f'"{START}"') == text.count(f'"{DONE}"') == text.count(f'"{EXCHANGE}"') > 0
    whole = compiled(functools.partial(in_chunks, {"deduplicate": True}, 1, expert))
    assert EXCHANGE in whole
    assert START not in whole
    assert DONE not in whole


@jax.custom_vjp
def marked(rows, _group_sizes, _params):
    """Experts that a program shows: a callback, forward and backward."""
    done = jax.pure_callback(lambda _: np.float32(0), jax.ShapeDtypeStruct((), jnp.float32), rows)
    return after(rows, done)


marked.defvjp(
    lambda *operands: (marked(*operands), None),
    lambda _, ct: (marked(ct, None, None), None, None),
)


@functools.cache
def parts_of_four_chunks(deduplicate, *, gradients=False):
    options = {"deduplicate": deduplicate, "buffer_factor": 1.5, "grouped_fn": marked}
    local = functools.partial(in_chunks, options, 4, None)
    parts = parts_of(lowered(local, 16, gradients=gradients).compile().as_text())

    def calls_of(target, *scopes):
        return [
            name
            for name, part in parts.items()
            if part.target == target and any(scope in part.scope for scope in scopes or ("",))
        ]

    return parts, calls_of


def between_servers(deduplicate):
    """Names that programs have for exchanges between servers."""
    return ("moe_cross", "moe_return") if deduplicate else ("start_ragged",)


def experts_in(parts):
    """The callbacks in the experts of a program."""
    return [name for name, part in parts.items() if "callback" in part.target]


@pytest.mark.parametrize("deduplicate", [True, False])
def test_experts_need_the_rows_of_their_chunk_alone(deduplicate):
    """All exchanges need all plans, and plans the first."""
    parts, calls_of = parts_of_four_chunks(deduplicate)
    gathers = calls_of(PLAN, "gather_counts")
    plans = [name for name in calls_of(PLAN) if name not in gathers]
    plans = [name for name in plans if not parts[name].needs & {*calls_of(START)}]
    assert len(plans) == 4
    for plan in plans[1:]:
        assert parts[plan].needs & {*plans} == {plans[0]}
    exchanges = calls_of(EXCHANGE, *between_servers(deduplicate))
    assert len(exchanges) == 8
    assert all(parts[exchange].needs.issuperset(plans) for exchange in exchanges)
    there = [name for name in exchanges if parts[name].needs.isdisjoint(exchanges)]
    assert len(there) == 4
    experts = experts_in(parts)
    assert len(experts) == 4
    for chunk, name in enumerate(experts, 1):
        assert len(parts[name].needs & {*exchanges}) == chunk
        assert len(parts[name].needs & {*there}) == chunk


@pytest.mark.parametrize("deduplicate", [True, False])
def test_exchanges_between_servers_begin_one_after_the_other(deduplicate):
    """On all devices, forward and backward."""
    parts, calls_of = parts_of_four_chunks(deduplicate, gradients=True)
    starts = calls_of(START, *between_servers(deduplicate))
    assert len(starts) == 16  # there and back, and both gradients, of four chunks
    in_order = sorted(starts, key=lambda name: len(parts[name].needs & {*starts}))
    for earlier, later in itertools.pairwise(in_order):
        # The backward pass needs the results of the forward pass, but not their order.
        assert earlier in parts[later].needs or later == in_order[8]


@pytest.mark.parametrize("deduplicate", [True, False])
def test_experts_wait_for_the_start_of_earlier_ways_back(deduplicate):
    """Threads of XLA would run experts first, and NICs would idle meanwhile."""
    parts, calls_of = parts_of_four_chunks(deduplicate, gradients=True)
    experts = experts_in(parts)
    assert len(experts) == 8
    starts = {*calls_of(START, *between_servers(deduplicate))}
    for passed in (experts[:4], experts[4:]):
        of_first = starts & parts[passed[0]].needs
        for chunk, name in enumerate(passed):
            assert len((starts & parts[name].needs) - of_first) == chunk


@pytest.mark.parametrize("deduplicate", [True, False])
def test_first_experts_share_no_memory_with_later_rows(deduplicate):
    """Rows of later chunks come after the first experts, which would wait for their memory."""
    parts, calls_of = parts_of_four_chunks(deduplicate, gradients=True)
    dones, experts = calls_of(DONE), experts_in(parts)
    for first in (experts[0], experts[4]):
        exchanges = {*calls_of(EXCHANGE, *between_servers(deduplicate))}
        others = [name for name in dones if parts[name].needs & exchanges - parts[first].needs]
        assert others
        assert all(first in parts[name].needs for name in others)


def test_gradients_gather_counts_alone():
    """Those of all chunks once, and those of experts with little room; in servers plans bring them.

    Without deduplication they bring all but those of experts with little room.
    """
    for deduplicate in (True, False):
        options = {"deduplicate": deduplicate, "buffer_factor": 1.5, "grouped_fn": marked}
        local = functools.partial(in_chunks, options, 2, None)
        text = lowered(local, 6, gradients=True).as_text()
        plans = 2 * (1 + deduplicate)
        gathers = 0 if handlers.emulates_gpus() else 1 + deduplicate
        assert text.count(f"@{PLAN}") == plans + gathers
        if handlers.emulates_gpus():
            assert text.count('all_gather"') == 3 + deduplicate


def test_exchanges_that_are_made_again(rng):
    """XLA takes calls of the same operands for one, unless they have numbers of their own."""
    arrays = problem(rng, 6)
    whole = functools.partial(in_chunks, {"deduplicate": True}, 2, expert)
    again = jax.checkpoint(whole, policy=moe.save_plans, prevent_cse=False)
    (result, slopes), (got, got_slopes) = (
        with_gradients(on_devices(each))(*arrays) for each in (whole, again)
    )
    np.testing.assert_array_equal(got, result)
    same(got_slopes, slopes)


@pytest.mark.parametrize(
    ("unneeded", "deduplicate"),
    [("tokens made again", True), ("tokens", False), ("tokens of a chunk", True)],
)
def test_each_start_has_its_done(deduplicate, unneeded):
    """Also where nobody needs the rows."""
    local = functools.partial(in_chunks, {"deduplicate": deduplicate}, 2, expert)

    def part(*operands):
        tokens = local(*operands)
        return tokens[:1] if unneeded == "tokens of a chunk" else tokens

    remade = jax.checkpoint(part, prevent_cse=False)
    of = remade if unneeded == "tokens made again" else part
    text = lowered(of, 6, gradients=unneeded != "tokens of a chunk", power=1).compile().as_text()
    assert text.count(f'"{START}"') == text.count(f'"{DONE}"') == text.count(f'"{EXCHANGE}"') > 0


@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_chunk_whose_tokens_choose_an_expert_twice(deduplicate):
    """All rows of a chunk may go to one device, more than of tokens whose experts differ."""
    options = {"deduplicate": deduplicate, "buffer_factor": float(DEVICES)}
    ids = np.full((DEVICES, 6, TOP_K), -1, np.int32)
    ids[:, 3:] = 0
    x = np.arange(DEVICES * 6 * 6, dtype=np.float32).reshape(-1, 6) / 100
    experts = np.ones((EXPERTS, 6, 10), np.float32), np.ones((EXPERTS, 10, 6), np.float32)
    arrays = x, np.ones((len(x), TOP_K), np.float32), experts, ids.reshape(-1, TOP_K)
    results = [
        jax.jit(on_devices(functools.partial(in_chunks, options, chunks, expert)))(*arrays)
        for chunks in (1, 2)
    ]
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_one_chunk_where_axes_are_left_to_xla():
    """There is no order of several."""
    local = functools.partial(in_chunks, {"topology": fastjax.Topology(2, 2)}, 2, expert)
    mapped = on_devices(local, mesh_of((4, 2), ("x", "d")), axis_names={"x"})
    text = str(jax.make_jaxpr(mapped)(*problem(np.random.default_rng(0), 3)))
    assert " plan_" in text or "ragged" in text
    assert "start_ragged" not in text


def takes_one(rows):
    return rows


def refused(expert_fn=expert, **options):
    return lambda: compiled(functools.partial(in_chunks, options, None, expert_fn))


TIME = "seconds_per_row, the time of one row, must be a finite number, 0 or more; got"
NEEDS = "needs expert_fn, a function of (rows, params) for the rows of one expert, or grouped_fn"
test_refusals = refusals(
    ArgumentError,
    (refused(chunks=0), "chunks must be an integer, 1 or more; got 0"),
    (refused(chunks=7), "chunks must be at most the 6 tokens of a device, got 7"),
    (refused(chunks=True), "chunks must be an integer, 1 or more; got True"),
    *(
        (refused(seconds_per_row=s), TIME)
        for s in (-1.0, float("inf"), float("nan"), "1", True, 10**400)
    ),
    (refused(takes_one), "expert_fn=takes_one takes other arguments: too many"),
    (refused(all_experts), "expert_fn=all_experts takes other", "missing", "'params'"),
    (refused(jnp.zeros(3)), "expert_fn is ", "Array", ", no function."),
    (refused(None), NEEDS, "got neither."),
    (refused(grouped_fn=all_experts), NEEDS, "got both"),
    (refused(None, grouped_fn=expert), "grouped_fn=expert takes other"),
)


def test_the_rule(monkeypatch):
    asked = []
    rule = whole_layer.chunks_of

    def spy(*arguments):
        asked.append(rule(*arguments))
        return 1

    monkeypatch.setattr(whole_layer, "chunks_of", spy)
    options = {"deduplicate": True, "seconds_per_row": 1e-6}
    program = functools.partial(in_chunks, options, None, expert)
    lowered(program, 512)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    lowered(program, 512)
    lowered(functools.partial(program.func, {"deduplicate": True}, None, expert), 512)
    alone, several, unknown = asked
    assert alone == unknown == 1
    assert several > 1
