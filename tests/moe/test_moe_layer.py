"""`moe.layer`: what dispatch, experts and combine do one by one, in any number of chunks."""

import functools
import itertools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from data_flow import parts_of
from deduplicated import DEVICES, EXPERTS, flat, layer_on_devices, one_expert
from moe_reference import equations
from spmd import mesh_of

import fastjax
from fastjax import handlers, moe
from fastjax.errors import ArgumentError
from fastjax.moe import whole_layer
from fastjax.traced import contract
from fastjax.traced.after import after

P = jax.P
TOP_K = 3
TOPOLOGY = fastjax.Topology(4, 2, scale_out_bandwidth=1e8)
CALLS = contract.PLAN, contract.EXCHANGE, contract.START, contract.DONE
PLAN, EXCHANGE, START, DONE = (call.target for call in CALLS)


def all_experts(rows, group_sizes, params):
    hidden = jnp.tanh(jax.lax.ragged_dot(rows, params[0], group_sizes))
    return jax.lax.ragged_dot(hidden, params[1], group_sizes)


def with_gradients(local):
    """A program: a layer's result, and the gradients of tokens, router and experts."""
    spread = P("x")
    mapped = jax.shard_map(
        lambda x, router, experts: local(x, *reference.route(x, router, TOP_K), experts),
        mesh=mesh_of(),
        in_specs=(spread, P(), spread),
        out_specs=spread,
    )
    return reference.with_gradients(mapped)


def run(problem, local):
    """A layer's result, and the gradients of tokens, router and experts."""
    (_, result), grads = jax.jit(with_gradients(local))(*flat(problem))
    return jax.tree.map(np.asarray, (result, grads))


def spread_out(local):
    return jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x")))


def close(got, wanted, tolerance=2e-5):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, wanted
    )


def in_three_steps(options, x, weights, ids, experts):
    rows, sizes, handle = moe.dispatch(
        x, ids, num_experts=EXPERTS, axis_name="x", weights=weights, topology=TOPOLOGY, **options
    )
    rows = moe.grouped_map(one_expert, rows, experts, sizes)
    return moe.combine(rows, handle, payload_dtype=options.get("payload_dtype"))


def in_chunks(options, chunks, expert_fn, x, weights, ids, experts):
    return moe.layer(
        x,
        ids,
        weights,
        experts,
        expert_fn=expert_fn,
        num_experts=EXPERTS,
        axis_name="x",
        chunks=chunks,
        **{"topology": TOPOLOGY, "buffer_factor": None, "drop": True} | options,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"deduplicate": True},
        {"deduplicate": False},
        {"deduplicate": True, "buffer_factor": 0.8, "alignment": 4},
        pytest.param({"deduplicate": False, "buffer_factor": 0.8}, marks=pytest.mark.nightly),
        pytest.param(
            {"deduplicate": True, "payload_dtype": jnp.bfloat16}, marks=pytest.mark.nightly
        ),
        {"deduplicate": False, "payload_dtype": jnp.float8_e4m3fn},
    ],
    ids=lambda options: ",".join(map(str, options.values())),
)
def test_values_do_not_depend_on_chunks(rng, options):
    problem = reference.problem(rng, DEVICES, 11, EXPERTS)
    result, grads = run(problem, functools.partial(in_three_steps, options))
    for chunks in (1, 3) if len(options) == 1 else (3,):
        got, got_grads = run(problem, functools.partial(in_chunks, options, chunks, one_expert))
        close(got, result, 1e-6)
        close(got_grads, grads)


@pytest.mark.sanitize
def test_a_function_of_all_experts(rng):
    problem = reference.problem(rng, DEVICES, 6, EXPERTS)
    options = {"deduplicate": True}
    result, grads = run(problem, functools.partial(in_three_steps, options))
    got, got_grads = run(
        problem, functools.partial(in_chunks, options | {"grouped_fn": all_experts}, 2, None)
    )
    close((got, got_grads), (result, grads), 1e-4)


def lowered(local, tokens, *, width=6, gradients=False, power=2):
    """The program of a layer, or of its gradients by tokens; its choices are operands."""
    shapes = [
        jax.ShapeDtypeStruct((DEVICES * tokens, width), jnp.float32),
        jax.ShapeDtypeStruct((DEVICES * tokens, TOP_K), jnp.float32),
        jax.ShapeDtypeStruct((DEVICES * tokens, TOP_K), jnp.int32),
        tuple(jax.ShapeDtypeStruct((EXPERTS, *s), jnp.float32) for s in ((6, 10), (10, 6))),
    ]
    mapped = spread_out(local)
    loss = jax.grad(
        lambda x, weights, *others: (mapped(x, weights, *others) ** power).sum(), (0, 1)
    )
    return jax.jit(loss if gradients else mapped).lower(*shapes)


def compiled(local):
    return lowered(local, 6).compile().as_text()


def test_chunks_have_starts_and_one_is_as_before():
    text = compiled(functools.partial(in_chunks, {"deduplicate": True}, 2, one_expert))
    assert text.count(f'"{START}"') == text.count(f'"{DONE}"') == text.count(f'"{EXCHANGE}"') > 0
    whole = compiled(functools.partial(in_chunks, {"deduplicate": True}, 1, one_expert))
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
    for chunk, expert in enumerate(experts, 1):
        assert len(parts[expert].needs & {*exchanges}) == chunk
        assert len(parts[expert].needs & {*there}) == chunk


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
        for chunk, expert in enumerate(passed):
            assert len((starts & parts[expert].needs) - of_first) == chunk


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
    problem = reference.problem(rng, DEVICES, 6, EXPERTS)
    whole = functools.partial(in_chunks, {"deduplicate": True}, 2, one_expert)
    again = jax.checkpoint(whole, policy=moe.save_plans, prevent_cse=False)
    (result, grads), (got, got_grads) = run(problem, whole), run(problem, again)
    np.testing.assert_array_equal(got, result)
    close(got_grads, grads)


@pytest.mark.parametrize(
    ("unneeded", "deduplicate"),
    [("tokens made again", True), ("tokens", False), ("tokens of a chunk", True)],
)
def test_each_start_has_its_done(deduplicate, unneeded):
    """Also where nobody needs the rows."""
    local = functools.partial(in_chunks, {"deduplicate": deduplicate}, 2, one_expert)

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
    arrays = x, np.ones((len(x), TOP_K), np.float32), ids.reshape(-1, TOP_K), experts
    results = [
        spread_out(functools.partial(in_chunks, options, chunks, one_expert))(*arrays)
        for chunks in (1, 2)
    ]
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_one_chunk_where_axes_are_left_to_xla():
    """There is no order of several."""
    mapped = jax.shard_map(
        functools.partial(in_chunks, {"topology": fastjax.Topology(2, 2)}, 2, one_expert),
        mesh=mesh_of((4, 2), ("x", "d")),
        axis_names={"x"},
        in_specs=P("x"),
        out_specs=P("x"),
    )
    choices = jnp.ones((24, TOP_K)), jnp.zeros((24, TOP_K), jnp.int32)
    experts = jnp.ones((EXPERTS, 6, 10)), jnp.ones((EXPERTS, 10, 6))
    text = str(jax.make_jaxpr(mapped)(jnp.ones((24, 6)), *choices, experts))
    assert " plan_" in text or "ragged" in text
    assert "start_ragged" not in text


def takes_one(rows):
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": 0}, "chunks must be a positive integer, got 0"),
        ({"chunks": 7}, "at most the 6 tokens of a device, got 7"),
        ({"chunks": True}, "chunks must be a positive integer, got True"),
        ({"seconds_per_row": -1.0}, "seconds_per_row must be"),
        ({"seconds_per_row": float("inf")}, "seconds_per_row must be"),
        ({"seconds_per_row": "1"}, "seconds_per_row must be"),
        ({"expert_fn": takes_one}, "expert_fn=takes_one takes other arguments: too many"),
        ({"expert_fn": all_experts}, "expert_fn=all_experts takes other .*: missing .* 'params'"),
        ({"expert_fn": jnp.zeros(3)}, r"expert_fn is (ArrayImpl|Array), no function\."),
        ({"expert_fn": None}, r"needs expert_fn, .* or grouped_fn, .*; got neither\."),
        ({"grouped_fn": all_experts}, "got both"),
        ({"expert_fn": None, "grouped_fn": one_expert}, "grouped_fn=one_expert takes other"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_refusals(change, message):
    given = {"expert_fn": one_expert, "chunks": None} | change
    function = given.pop("expert_fn")
    chunks = given.pop("chunks")
    with pytest.raises(ArgumentError, match=message):
        compiled(functools.partial(in_chunks, given, chunks, function))


def test_the_rule(monkeypatch):
    asked = []
    rule = whole_layer.chunks_of

    def spy(*arguments):
        asked.append(rule(*arguments))
        return 1

    monkeypatch.setattr(whole_layer, "chunks_of", spy)
    options = {"deduplicate": True, "seconds_per_row": 1e-6}
    program = functools.partial(in_chunks, options, None, one_expert)
    lowered(program, 512)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    lowered(program, 512)
    lowered(functools.partial(program.func, {"deduplicate": True}, None, one_expert), 512)
    alone, several, unknown = asked
    assert alone == unknown == 1
    assert several > 1


@pytest.mark.parametrize(("deduplicate", "wanted"), [(True, 4), (False, 2)])
def test_saved_plans_of_chunks_are_not_made_again(rng, deduplicate, wanted):
    """A plan for each chunk, and one inside its server where tokens cross once."""
    problem = reference.problem(rng, DEVICES, 6, EXPERTS)
    whole = functools.partial(in_chunks, {"deduplicate": deduplicate}, 2, one_expert)
    step = with_gradients(jax.checkpoint(whole, policy=moe.save_plans))
    made = [
        equation
        for equation in equations(jax.make_jaxpr(step)(*flat(problem)).jaxpr)
        if equation.primitive.name == "plan_ragged_all_to_all" and equation.params["plans"]
    ]
    assert len(made) == wanted


@pytest.mark.parametrize(
    ("chunks", "deduplicate", "gradients"),
    [
        (1, False, False),
        pytest.param(1, True, False, marks=pytest.mark.nightly),
        pytest.param(2, False, False, marks=pytest.mark.nightly),
        pytest.param(1, True, True, marks=pytest.mark.nightly),
        pytest.param(2, False, True, marks=pytest.mark.nightly),
        pytest.param(2, True, False, marks=pytest.mark.nightly),
    ],
)
def test_outside_of_jit(rng, chunks, deduplicate, gradients):
    """Each operation is compiled alone."""
    problem = flat(reference.problem(rng, DEVICES, 4, EXPERTS))
    options = {"deduplicate": deduplicate, "chunks": chunks}
    step = layer_on_devices(topology=TOPOLOGY, **options)
    if gradients:
        step = reference.with_gradients(step)
    close(step(*problem), jax.jit(step)(*problem), 1e-5)


@pytest.mark.parametrize("deduplicate", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_experts_that_use_traced_values(rng, deduplicate):
    """Of any type, made in a loop around the layer."""
    x, router, experts = flat(reference.problem(rng, DEVICES, 4, EXPERTS))
    weights, ids = reference.route(x, router, TOP_K)

    def gradients(chunks):
        def local(x, weights, ids, experts, scale):
            def body(rows, key):
                mask = jax.random.bernoulli(key, 0.5, rows.shape[1:])
                shift = jax.random.randint(key, (), 0, 3)

                def function(rows, group_sizes, params):
                    return all_experts(rows, group_sizes, params) * mask * scale + shift

                options = {"deduplicate": deduplicate, "grouped_fn": function}
                return in_chunks(options, chunks, None, rows, weights, ids, experts), None

            return jax.lax.scan(body, x, jax.random.split(jax.random.key(0), 2))[0]

        spread = P("x")
        specs = (spread, spread, spread, spread, P())
        mapped = jax.shard_map(
            local, mesh=mesh_of(), in_specs=specs, out_specs=spread, check_vma=False
        )
        loss = jax.jit(jax.grad(lambda *given: (mapped(*given) ** 2).sum(), (0, 1, 3, 4)))
        return loss(x, weights, ids, experts, np.float32(1.5))

    close(gradients(2), gradients(1), 1e-4)
