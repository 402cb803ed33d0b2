"""`fastjax.options(gpu_stream=True)`: GPUs exchange on another stream than the one that computes.

As far as that is known without GPUs: XLA's compiler for GPUs starts a call of a function with these
attributes on the stream of collectives, and waits for it where its result is needed.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from exchanges import exchange, planned
from spmd import mesh_of

import fastjax
from fastjax import moe

P = jax.P
GPUS = ("cuda", "rocm")
ROWS = jax.ShapeDtypeStruct((64, 4), jnp.float32)
SIZES = jax.ShapeDtypeStruct((64,), jnp.int32)
TOKENS, TOP_K, EXPERTS = 48, 2, 8
MARK = '_xla_stream_annotation = "collective", inlineable = "false"'


def lowered(f, args, *platforms, **options):
    """The text of a program, traced under options, as if fastjax were installed for GPUs."""
    mapped = jax.shard_map(f, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    with fastjax.options(fallback="never", **options):
        return jax.jit(mapped).trace(*args).lower(lowering_platforms=platforms).as_text()


def exchanges(text):
    """How many exchanges have a stream of their own, and how many have not.

    The former are alone in a function, and all calls of it say where it runs. They themselves say
    so too, so that the handler leaves XLA's memory exchange.
    """
    apart = together = 0
    for function in re.split(r"\n(?= *func\.func )", text):
        found = function.count("custom_call @fastjax_exchange_v2")
        if re.search(r"func\.func private @fastjax_", function):
            name = re.search(r"@(\w+)", function)[1]
            calls = re.findall(rf"(?<!custom_)call @{name}\(.*", text)
            lines = re.findall(r"^ *(?:%\w+ = )?([\w.]+)", function, re.MULTILINE)
            assert lines == ["func.func", "stablehlo.custom_call", "return"]
            assert found == len(calls) == sum(MARK in call for call in calls) == 1
            assert function.count("gpu_stream = true") == 1
            apart += found
        else:
            assert "gpu_stream = " not in function
            together += found
    assert text.count(MARK) == apart
    return apart, together


def gradient(operand, output, *arrays):
    result, back = jax.vjp(lambda rows: exchange(rows, output, *arrays), operand)
    return back(result)[0]


def batched(operand, output, *arrays):
    every = (jnp.stack([a, 2 * a]) for a in (operand, output))
    return jax.vmap(lambda *rows: exchange(*rows, *arrays))(*every)[0]


def repeated(operand, output, *arrays):
    step = lambda rows, _: (exchange(operand, rows, *arrays), None)  # noqa: E731
    return jax.lax.scan(step, output, length=3)[0]


@pytest.mark.parametrize("platform", GPUS)
@pytest.mark.parametrize(
    ("f", "count"), [(exchange, 1), (planned, 1), (gradient, 2), (batched, 1), (repeated, 1)]
)
def test_every_exchange_of_gpus(platform, f, count):
    args = (ROWS, ROWS, *[SIZES] * 4)
    assert exchanges(lowered(f, args, platform, gpu_stream=True)) == (count, 0)
    assert exchanges(lowered(f, args, platform)) == (0, count)


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize("platform", GPUS)
def test_every_exchange_of_a_layer_in_chunks(platform, deduplicate):
    def value(x, weights, experts, expert_ids):
        return moe.layer(
            jnp.dot,
            x,
            expert_ids,
            weights,
            experts,
            num_experts=EXPERTS,
            axis_name="x",
            chunks=2,
            deduplicate=deduplicate,
            topology=fastjax.Topology(2, 4),
        )

    def gradients(*args):
        result, back = jax.vjp(functools.partial(value, expert_ids=args[-1]), *args[:-1])
        return back(result)

    args = [
        jax.ShapeDtypeStruct((TOKENS, 4), jnp.float32),
        jax.ShapeDtypeStruct((TOKENS, TOP_K), jnp.float32),
        jax.ShapeDtypeStruct((EXPERTS, 4, 4), jnp.float32),
        jax.ShapeDtypeStruct((TOKENS, TOP_K), jnp.int32),
    ]
    # Of a chunk: there and back, and inside servers as well if tokens cross once; weights, too.
    fewest = 2 * 2 * (2 if deduplicate else 1)
    for f, least in ((value, fewest), (gradients, 2 * fewest)):
        apart, together = exchanges(lowered(f, args, platform, gpu_stream=True))
        assert apart >= least
        assert together == 0
        assert exchanges(lowered(f, args, platform)) == (0, apart)


def test_no_effect_on_cpus():
    args = (ROWS, ROWS, *[SIZES] * 4)
    for f in (exchange, planned, gradient):
        text = lowered(f, args, "cpu", gpu_stream=True)
        assert text == lowered(f, args, "cpu")
        assert exchanges(text)[0] == 0


def test_several_platforms_at_once():
    """What is for one platform is not in the function that another one calls."""
    text = lowered(exchange, (ROWS, ROWS, *[SIZES] * 4), "cpu", *GPUS, gpu_stream=True)
    assert exchanges(text) == (2, 1)
    assert sorted(re.findall(r'platform = "(\w+)"', text)) == ["cpu", "cuda", "rocm"]
