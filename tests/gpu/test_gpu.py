"""The GPU path beside XLA's own; what it exchanges, test_exchange_checks.py looks at.

Tests with a platform also run on a CPU: loopback then emulates a GPU, and so does the rest where
the variable FASTJAX_EMULATE_GPU is set.
"""

import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from gpu_support import PLATFORMS, device_of, mesh_of_one
from moe_layers import dispatched
from pythons import printed
from spmd import mesh_of, spmd

import fastjax
from fastjax import handlers, moe
from fastjax.loopback import loopback_plan
from fastjax.traced.after import after

HERE = Path(__file__).parent
SECONDS = 130  # for a process of its own, which starts JAX beside others that do


@pytest.fixture(params=PLATFORMS)
def device(request):
    found = device_of(request.param)
    with jax.default_device(found):
        yield found


@pytest.mark.parametrize("scheduler", ["fast", "auto", "direct"])
@pytest.mark.parametrize("rank", [0, 31])
def test_plan_is_that_of_the_host(rng, device, scheduler, rank):
    topology = fastjax.Topology(4, 8)
    sizes = reference.random_sizes(rng, 32, 32, 2000)
    options = {"topology": topology, "scheduler": scheduler, "row_bytes": 4096}
    table = np.asarray(jax.jit(lambda s: loopback_plan(s, rank=rank, **options))(sizes))
    plan = fastjax.make_plan(sizes, topology, scheduler=scheduler, row_bytes=4096)
    wanted = plan.stage_table(rank)
    used = 16 + 2 * 32 + 10 * wanted[3]
    np.testing.assert_array_equal(table[:used], wanted[:used])


@pytest.mark.timeout(SECONDS + 20)  # the process ends first, and says how
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("commands", ["", "FUSION,CUBLAS,CUSTOM_CALL,WHILE"])
def test_in_a_scan_with_and_without_command_buffers(platform, commands):
    device_of(platform)
    flags = f"--xla_gpu_enable_command_buffer={commands} --xla_gpu_graph_min_graph_size=1"
    environment = {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process has some of the GPU's memory
        "PYTHONPATH": os.pathsep.join(
            [str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    program = HERE / "gpu_programs.py"
    assert "as numpy does" in printed(program, platform, environment=environment, timeout=SECONDS)


@pytest.mark.timeout(SECONDS + 20)
def test_exchanges_in_two_parts_on_emulated_gpus():
    """All tests of these, with CPU devices that emulate GPUs: and there a start itself waits.

    It waits for the other devices, so one test has no end there.
    """
    printed(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(HERE.parent / "traced" / "test_start_done.py", "-k", "not runs_beside"),
        f"{__file__}::{test_a_layer_in_chunks_beside_its_experts.__name__}",
        environment={"FASTJAX_EMULATE_GPU": "1"},
        timeout=SECONDS,
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_layer_in_chunks_beside_its_experts(rng, platform):
    """Values and gradients, as of a layer whose exchanges are not started."""
    if platform == "cpu" and not handlers.emulates_gpus():
        pytest.skip("of GPUs: moe/test_moe_layer.py looks at CPU devices")
    mesh = mesh_of((4,)) if platform == "cpu" else mesh_of_one(device_of(platform))
    x, weights = rng.normal(size=(384, 64)), rng.uniform(size=(384, 2))
    ids, params = rng.integers(0, 8, (384, 2), np.int32), rng.normal(size=(8, 64, 64)) / 8
    operands = [a.astype(np.float32) for a in (x, weights, params)]

    def program(chunks, deduplicate):
        def local(x, weights, params, ids):
            layer = functools.partial(
                fastjax.moe.layer, num_experts=8, axis_name="x", deduplicate=deduplicate
            )
            expert = lambda rows, param: jnp.tanh(rows @ param)  # noqa: E731
            of = lambda x, w, p: layer(x, ids, w, p, expert_fn=expert, chunks=chunks)  # noqa: E731
            value, back = jax.vjp(of, x, weights, params)
            return value, *back(value)

        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), check_vma=False
        )
        return jax.jit(mapped)

    for deduplicate in (False, True):
        wanted = program(1, deduplicate)(*operands, ids)
        in_chunks = program(4, deduplicate)
        for _ in range(5):
            for one, other in zip(in_chunks(*operands, ids), wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_what_comes_after_is_copied_where_xla_slices_it(rng):
    """XLA fuses the slice into the call, whose result is then not in the operand's place."""
    rows = rng.normal(size=(64, 32)).astype(np.float32)

    @jax.jit
    def sliced(rows):
        return jnp.sin(after(rows[32:], jnp.cos(rows).sum()))

    got = sliced(jax.device_put(rows, device_of("gpu")))
    np.testing.assert_allclose(got, np.sin(rows[32:]), rtol=1e-5, atol=1e-6)


def values_and_slopes(x, ids, weights, **options):
    """A layer whose experts square: its result, and the gradients of x and weights."""

    def value(x, weights):
        rows, _, handle = dispatched(x, ids, **options)
        result = moe.combine(rows * rows, handle, weights)
        return (result**2).sum(), result

    (_, result), slopes = jax.value_and_grad(value, (0, 1), has_aux=True)(x, weights)
    return result, *slopes


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("indexed_as", ["as GPU"], indirect=True)
def test_tokens_that_cross_once(rng, platform, indexed_as):
    """A layer and its gradients on all GPUs, of which half are a server, against numpy."""
    device_of(platform)
    size = len(jax.devices(platform))
    servers = 2 if size % 2 == 0 else 1
    tokens, width, top_k = 32, 96, 3
    x = rng.normal(size=(size, tokens, width)).astype(np.float32)
    ids = rng.random((size, tokens, 4 * size)).argsort(2)[..., :top_k].astype(np.int32)
    weights = rng.random((size, tokens, top_k)).astype(np.float32)
    topology = fastjax.Topology(servers, size // servers)
    layer = functools.partial(values_and_slopes, num_experts=4 * size, topology=topology)
    got = spmd(layer, mesh_of((size,), platform=platform))(x, ids, weights)
    exact, each = x.astype(np.float64), weights.astype(np.float64)
    total = each.sum(2, keepdims=True)
    result = total * exact**2
    of_each = (2 * result * exact**2).sum(2, keepdims=True)
    for one, wanted in zip(got, (result, 4 * total**2 * exact**3, of_each), strict=True):
        np.testing.assert_allclose(one, np.broadcast_to(wanted, one.shape), rtol=2e-5, atol=1e-5)
