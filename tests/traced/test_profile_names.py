"""What profiles call exchanges, and what statistics call them."""

import re

import jax
import jax.numpy as jnp
import reference
from exchanges import exchange
from spmd import spmd

import fastjax

EXCHANGE, PLAN = "fast_ragged_all_to_all", "plan_ragged_all_to_all"


def arguments(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    return *reference.data(rng, meta), *meta.arrays()


def op_names(fn, *args):
    """Of fastjax's custom calls, as the compiled program has them, by target."""
    run = spmd(fn)
    args = jax.device_put(args, run.sharding)
    text = run.mapped.lower(*args).compile().as_text()
    found = re.findall(r'custom_call_target="(fastjax\w+)".*op_name="([^"]*)"', text)
    return sorted(found)


def test_names_in_compiled_programs(rng, collecting):
    """Profiles show these: which exchange, and whether it is planning, the way there or back."""
    operand, output, *metadata = arguments(rng)

    def local(x, output, *arrays):
        with jax.named_scope("my_layer"):
            value, gradient = jax.value_and_grad(lambda x: jnp.sum(exchange(x, output, *arrays)))(x)
            return value, gradient, exchange(x, output, *arrays)

    names = op_names(local, operand, output, *metadata)
    scope = "jit(local)/shard_map/my_layer/"
    back = f"{scope}transpose(jvp(fast_ragged_all_to_all_gradient))/{EXCHANGE}"
    assert names == [
        ("fastjax_exchange_v2", scope + EXCHANGE),
        ("fastjax_exchange_v2", f"{scope}jvp()/{EXCHANGE}"),
        ("fastjax_exchange_v2", back),
        ("fastjax_plan_v2", f"{scope}jvp()/{PLAN}"),
    ]
    jax.block_until_ready(spmd(local)(operand, output, *metadata))
    sites = fastjax.stats()
    assert len(sites) == 4
    for site in sites:
        assert site.name.startswith("my_layer/")
        assert any(name.endswith("/" + site.name) for _, name in names)
    assert len({site.name for site in sites}) == 4


def test_names_in_loops_are_the_ends_of_those_in_profiles(rng, collecting):
    operand, output, *metadata = arguments(rng)

    def local(operand, output, *arrays):
        def body(held, _):
            with jax.named_scope("step"):
                return exchange(operand, held, *arrays), None

        with jax.named_scope("layers"):
            return jax.lax.scan(body, output, length=2)[0]

    jax.block_until_ready(spmd(local)(operand, output, *metadata))
    (site,) = fastjax.stats()
    ((_, name),) = op_names(local, operand, output, *metadata)
    assert site.name == f"step/{EXCHANGE}"
    assert re.fullmatch(rf"jit\(local\)/shard_map/layers/while/body/.*step/{EXCHANGE}", name)


def test_planning_on_the_host_is_in_profiles(rng, tmp_path):
    with jax.profiler.trace(tmp_path):
        fastjax.make_plan(rng.integers(0, 9, (8, 8)), fastjax.Topology(2, 4))
    (profile,) = tmp_path.rglob("*.xplane.pb")
    assert b"fastjax.make_plan" in profile.read_bytes()


def test_names_of_a_layer_of_experts(rng):
    x = rng.normal(size=(8, 4, 3)).astype("float32")
    ids = rng.integers(0, 8, (8, 4, 2)).astype("int32")

    def local(x, ids):
        def loss(x):
            rows, _, handle = fastjax.moe.dispatch(x, ids, num_experts=8, axis_name="x")
            return (fastjax.moe.combine(rows, handle) ** 2).sum()

        return jax.grad(loss)(x)

    named = [name.removeprefix("jit(local)/shard_map/") for _, name in op_names(local, x, ids)]
    calls = [name for name in named if not name.endswith("/after")]
    assert len(calls) == 6
    # Counts, since some may find no room; the plan, and both ways.
    assert sum("moe_dispatch" in name for name in calls) == 4
    assert sum("moe_combine" in name for name in calls) == 2
    assert sum("transpose" in name for name in calls) == 2
