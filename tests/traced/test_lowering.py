"""What the primitives become: custom calls, their attributes, effects and types."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange, planned
from jax.sharding import PartitionSpec as P
from spmd import mesh_of, spmd

import fastjax

SIZES = jax.ShapeDtypeStruct((64,), jnp.int32)
ARGS = (
    jax.ShapeDtypeStruct((32, 4), jnp.float32),
    jax.ShapeDtypeStruct((64, 4), jnp.float32),
    *([SIZES] * 4),
)


def mapped(f=None, **options):
    f = f or (lambda *a: fastjax.fast_ragged_all_to_all(*a, axis_name="x", **options))
    return jax.shard_map(f, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))


def text_of(f, platform, args=ARGS):
    with fastjax.options(fallback="never"):  # whatever this installation was built for
        return jax.jit(f).trace(*args).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm"])
def test_custom_calls_on_every_platform(platform):
    calls = lambda text: re.findall(r"custom_call @(fastjax\w+)", text)  # noqa: E731
    text = text_of(mapped(topology=fastjax.Topology(2, 4)), platform)
    assert calls(text) == ["fastjax_exchange_v2"]
    assert f'platform = "{platform}"' in text
    assert re.search(
        r"topology = dense<\[2, 4, 450000000000, 50000000000, 2000, 10000, 1000, 500000\]>", text
    )
    assert "rank_of = dense<[0, 1, 2, 3, 4, 5, 6, 7]>" in text
    assert "timeout_ms = 60000" in text
    assert calls(text_of(mapped(planned), platform)) == ["fastjax_plan_v2", "fastjax_exchange_v2"]
    alone = mapped(lambda s: fastjax.plan_ragged_all_to_all(s, axis_name="x").table)
    assert calls(text_of(alone, platform, (SIZES,))) == ["fastjax_plan_v2"]


def test_no_collective_of_xla_sneaks_in():
    """Neither the exchange nor its gradient sends counts or offsets by other means."""

    def loss(operand, output, *arrays):
        f = lambda a: exchange(a, output, *arrays)  # noqa: E731
        return jax.vjp(f, operand)[1](output)[0]

    for f in (mapped(), mapped(loss)):
        text = text_of(f, "cpu")
        assert not re.search(
            r"all_to_all|all_gather|all_reduce|collective", text.replace("ragged_all_to_all", "")
        )


def test_channels_differ_between_call_sites_and_agree_between_lowerings():
    def two(operand, output, *arrays):
        return exchange(operand, exchange(operand, output, *arrays), *arrays)

    texts = [text_of(mapped(two), "cpu") for _ in range(2)]
    channels = [re.findall(r"channel = (\d+)", text) for text in texts]
    assert channels[0] == channels[1]
    assert len(set(channels[0])) == len(channels[0]) == 2


def test_type_of_the_result():
    seen = {}

    def local(operand, output, *arrays):
        result = exchange(operand, jnp.zeros(output.shape, operand.dtype), *arrays)
        seen["type"] = jax.typeof(result)
        plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
        seen["plan"] = jax.typeof(plan.table)
        return result

    jax.make_jaxpr(mapped(local))(*ARGS)
    assert seen["type"].shape == (8, 4)
    assert seen["type"].dtype == jnp.float32
    assert not seen["type"].weak_type
    assert fastjax.jax_compat.vma(seen["type"]) == {"x"}
    assert fastjax.jax_compat.vma(seen["plan"]) == {"x"}
    assert seen["plan"].dtype == jnp.int32


def test_unused_results_are_removed():
    """No side effect is claimed: the compiler may drop calls, alike on all devices."""

    def local(operand, output, *arrays):
        fastjax.plan_ragged_all_to_all(arrays[1] + 1, axis_name="x")
        return exchange(operand, output, *arrays), exchange(operand, output, *arrays)

    text = jax.jit(mapped(local)).lower(*ARGS).compile().as_text()
    # Two exchanges remain, since their channels differ; the plan that nobody uses is gone.
    assert text.count('custom_call_target="fastjax_exchange_v2"') == 2
    assert 'custom_call_target="fastjax_plan_v2"' not in text


def test_a_donated_output_is_written_in_place(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    run = spmd(exchange, donate=(1,))
    args = jax.device_put((operand, output, *meta.arrays()), run.sharding)
    # An array that shares memory with numpy cannot be given away.
    args = (args[0], args[1] + 0.0, *args[2:])
    where = [s.data.unsafe_buffer_pointer() for s in args[1].addressable_shards]
    got = run.mapped(*args)
    assert [s.data.unsafe_buffer_pointer() for s in got.addressable_shards] == where
    assert args[1].is_deleted()
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
