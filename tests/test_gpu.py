"""The GPU path on one GPU: all ranks of an exchange played on it, and one rank's exchange.

Each test also runs on a CPU: loopback then emulates a GPU, and so does the rest where the variable
FASTJAX_EMULATE_GPU is set, as test_emulated_gpu.py does.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import reference
from gpu_support import PLATFORMS, device_of, mesh_of_one
from plan_problems import SCHEDULERS
from spmd import spmd

import fastjax
from fastjax.loopback import loopback_plan, loopback_ragged_all_to_all

TESTS = Path(__file__).parent
SECONDS = 130  # for a process of its own, which starts JAX beside others that do
DTYPES = (
    *("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", "float8_e4m3fn"),
)


@pytest.fixture(params=PLATFORMS)
def device(request):
    found = device_of(request.param)
    with jax.default_device(found):
        yield found


def play(operand, output, meta, **options):
    return loopback_ragged_all_to_all(operand, output, *meta.arrays(), **options)


def of_dtype(rows, dtype):
    return np.asarray(8 * rows).astype(getattr(ml_dtypes, dtype, dtype))


def same(got, expected):
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(got).astype("c16"), np.asarray(expected).astype("c16"))


# ---- all ranks on one device


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("shape", [(2, 4), (4, 8)])
@pytest.mark.parametrize("updates", [1, 3])
def test_every_scheduler(rng, device, shape, scheduler, updates):
    ranks = shape[0] * shape[1]
    run = jax.jit(
        lambda *args: loopback_ragged_all_to_all(
            *args, topology=fastjax.Topology(*shape), scheduler=scheduler
        )
    )
    for most in (3, 30):
        sizes = reference.random_sizes(rng, ranks, ranks * updates, most)
        meta = reference.packed(sizes, gap=1)
        operand, output = reference.data(rng, meta, (7,))
        same(run(operand, output, *meta.arrays()), reference.exchange(operand, output, meta))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_data_type(rng, device, dtype):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    with jax.enable_x64(True):
        operand, output = (of_dtype(rows, dtype) for rows in reference.data(rng, meta, (5,)))
        got = play(operand, output, meta, topology=fastjax.Topology(2, 4), scheduler="fast")
        same(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize("elements", [1, 3, 64, 4099])
def test_rows_of_any_size(rng, device, elements):
    """From rows of a byte to such that a warp takes several steps for; none of them aligned."""
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 40))
    operand, output = (of_dtype(rows, "int8") for rows in reference.data(rng, meta, (elements,)))
    got = play(operand, output, meta, topology=fastjax.Topology(4, 2), scheduler="fast")
    same(got, reference.exchange(operand, output, meta))


def test_values_change_and_the_program_stays(rng, device):
    run = jax.jit(lambda *args: loopback_ragged_all_to_all(*args, topology=fastjax.Topology(2, 4)))
    for _ in range(20):
        meta = reference.packed(rng.integers(0, 8, (8, 8)))
        operand, output = rng.normal(size=(2, 8, 64, 3)).astype(np.float32)
        same(run(operand, output, *meta.arrays()), reference.exchange(operand, output, meta))


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


# ---- one rank


def exchange_of_one(device, **options):
    return spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name="x"),
        mesh_of_one(device),
        **options,
    )


def shuffled(rng, updates, most=9, zeros=0.3):
    """Slices that land in another order than they are sent in."""
    meta = reference.packed(reference.random_sizes(rng, 1, updates, most, zeros))
    order = rng.permutation(updates)
    sizes = meta.send_sizes[0, order]
    meta.output_offsets[0, order] = np.cumsum(sizes) - sizes
    return meta


@pytest.mark.parametrize("updates", [1, 8, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_one_rank(rng, device, updates, dtype):
    run = exchange_of_one(device)
    for _ in range(3):
        meta = shuffled(rng, updates)
        operand, output = (of_dtype(rows, dtype) for rows in reference.data(rng, meta, (9,)))
        same(run(operand, output, *meta.arrays()), reference.exchange(operand, output, meta))


def value_and_gradients(exchange, mesh, operand, output, cotangent, meta):
    def local(operand, output, cotangent, *arrays):
        result, back = jax.vjp(lambda *data: exchange(*data, *arrays), operand, output)
        return result, *back(cotangent)

    return spmd(local, mesh, check_vma=False)(operand, output, cotangent, *meta.arrays())


def multicast(rng):
    """Every slice sends the same rows: their gradients are summed."""
    meta = shuffled(rng, 8, zeros=0)
    meta.send_sizes[:] = meta.recv_sizes[:] = 5
    meta.input_offsets[:] = 1
    meta.output_offsets[:] = 5 * np.arange(8)
    return meta


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("traffic", [lambda rng: shuffled(rng, 8), multicast])
def test_gradients_of_one_rank(rng, device, traffic, dtype):
    meta = traffic(rng)
    operand, output = (np.round(rows) for rows in reference.data(rng, meta, (6,)))
    cotangent = rng.integers(-4, 5, output.shape)  # whose sums are exact in every type
    operand, output, cotangent = (
        np.asarray(x).astype(getattr(ml_dtypes, dtype, dtype)) for x in (operand, output, cotangent)
    )
    got = value_and_gradients(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name="x"),
        mesh_of_one(device),
        *(operand, output, cotangent, meta),
    )
    value, back = jax.vjp(lambda *a: reference.exchange_in_jax(*a, meta), operand, output)
    for one, wanted in zip(got, (value, *back(jnp.asarray(cotangent))), strict=True):
        same(one, wanted)


def test_planned_reused_and_transposed(rng, device):
    meta = shuffled(rng, 8)
    operand, output = reference.data(rng, meta)

    def there_and_back(operand, output, *arrays):
        inputs, sends, outputs, receives = arrays
        plan = fastjax.plan_ragged_all_to_all(sends, axis_name="x")
        there = fastjax.fast_ragged_all_to_all(operand, output, *arrays, axis_name="x", plan=plan)
        back = (outputs, receives, inputs, sends)
        home = fastjax.fast_ragged_all_to_all(
            there, jnp.zeros_like(operand), *back, axis_name="x", plan=plan.transpose()
        )
        return there, home

    there, home = spmd(there_and_back, mesh_of_one(device))(operand, output, *meta.arrays())
    expected = reference.exchange(operand, output, meta)
    same(there, expected)
    sent = np.zeros(operand.shape[1], bool)
    for _, start, _, _, rows in reference.moves(meta):
        sent[start : start + rows] = True
    same(home, np.where(sent[None, :, None], operand, 0))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("send_sizes", -3), r"send_sizes\[2\] = -3"),
        (("input_offsets", 10**6), "input_offsets"),
        (("output_offsets", -1), "output_offsets"),
        (("recv_sizes", 7), "recv_sizes"),
    ],
)
def test_bad_values_are_errors_and_the_next_exchange_works(rng, device, change, text):
    meta = shuffled(rng, 4, zeros=0)
    operand, output = reference.data(rng, meta)
    run = exchange_of_one(device)
    expected = reference.exchange(operand, output, meta)
    bad = dict(vars(meta))
    name, value = change
    bad[name] = bad[name].copy()
    bad[name][0, 2] = value if name != "recv_sizes" else bad[name][0, 2] + value
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(run(operand, output, *reference.Metadata(**bad).arrays()))
    same(run(operand, output, *meta.arrays()), expected)


def test_a_loopback_after_one_that_failed(rng, device):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    topology = fastjax.Topology(2, 4)
    bad = reference.Metadata(**vars(meta))
    bad.recv_sizes = meta.recv_sizes + 1
    with pytest.raises(jax.errors.JaxRuntimeError, match="recv_sizes"):
        jax.block_until_ready(play(operand, output, bad, topology=topology))
    got = play(operand, output, meta, topology=topology)
    same(got, reference.exchange(operand, output, meta))


# ---- beside XLA's own


@pytest.mark.timeout(SECONDS + 20)  # the process ends first, and says how
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("commands", ["", "FUSION,CUBLAS,CUSTOM_CALL,WHILE"])
def test_in_a_scan_with_and_without_command_buffers(platform, commands):
    device_of(platform)
    flags = f"--xla_gpu_enable_command_buffer={commands} --xla_gpu_graph_min_graph_size=1"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process has some of the GPU's memory
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, TESTS / "gpu_programs.py", platform],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as numpy does" in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_as_xla_does(rng, dtype):
    """Values and gradients, against jax.lax.ragged_all_to_all on the same GPU.

    Without empty slices: those make its gradient of `output` wrong.
    """
    mesh = mesh_of_one(device_of("gpu"))
    sizes = rng.integers(1, 9, (1, 8))
    meta = reference.packed(sizes)
    meta.output_offsets = np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1] - sizes
    operand, output = (of_dtype(rows, dtype) for rows in reference.data(rng, meta, (16,)))
    cotangent = of_dtype(rng.normal(size=output.shape), dtype)
    data = (operand, output, cotangent, meta)

    def outcome(way):
        return value_and_gradients(lambda *args: way(*args, axis_name="x"), mesh, *data)

    try:
        theirs = jax.block_until_ready(outcome(jax.lax.ragged_all_to_all))
    except jax.errors.JaxRuntimeError as error:
        pytest.skip(f"XLA does not carry out its own: {str(error).splitlines()[0]}")
    for one, other in zip(outcome(fastjax.fast_ragged_all_to_all), theirs, strict=True):
        same(one, other)
