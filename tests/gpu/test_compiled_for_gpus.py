"""What XLA:GPU makes of exchanges and layers, compiled for H100s by JAX's plugin: no GPU is needed.

h100.txtpb says what XLA asks of such a GPU, as its `hlo-opt` takes it.
"""

from __future__ import annotations

import collections
import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exchange_checks import CHECKS, exchange_jobs
from exchange_checks.backends import Devices, Loopback
from jax.experimental import topologies
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from spmd import spmd

import fastjax
from fastjax.loopback import loopback_ragged_all_to_all

pytest.importorskip("jax_plugins.xla_cuda13", reason="JAX's CUDA plugin is not installed")

ROWS, WIDTH = 64, 32
PROGRAMS_OF_THEIR_OWN = {"topology_that_nobody_gave"}  # for devices that are there


@functools.cache
def gpus(count: int) -> Any:
    config = (Path(__file__).parent / "h100.txtpb").read_text()
    shape = f"1x1x{count}"
    return topologies.get_topology_desc(
        "h100", "cuda", target_config=config, topology=shape
    ).devices


def mesh_of(count: int) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(gpus(count)), ("x",), axis_types=(AxisType.Auto,))


def compiled(function: Any, *args: Any, **options: Any) -> str:
    """The program that XLA has made, as text."""
    return jax.jit(function, **options).lower(*args).compile().as_text()


class NotRunError(Exception):
    """Ends a check, whose program would have run now."""


class CompiledDevices(Devices):
    """Devices of a mesh that are not there."""

    def compiled(self, program: Any, mesh: Any = None, *, check_vma: bool = True) -> Any:
        mesh = mesh or self.mesh()
        there = np.array(gpus(mesh.devices.size)).reshape(mesh.devices.shape)
        there = jax.sharding.Mesh(there, mesh.axis_names, axis_types=mesh.axis_types)
        name = mesh.axis_names if len(mesh.axis_names) > 1 else mesh.axis_names[0]
        exchange = functools.partial(fastjax.fast_ragged_all_to_all, axis_name=name)
        local = functools.partial(program, exchange)
        mapped = spmd(local, there, check_vma=check_vma).mapped  # pyright: ignore[reportFunctionMemberAccess]
        return compile_only(mapped, NamedSharding(there, P(there.axis_names)))


class CompiledLoopback(Loopback):
    """All ranks on one GPU that is not there."""

    def compiled(self, program: Any, mesh: Any = None, *, check_vma: bool = True) -> Any:
        assert mesh is None
        del check_vma
        exchange = functools.partial(loopback_ragged_all_to_all, topology=self.topology)
        one = jax.sharding.SingleDeviceSharding(gpus(1)[0])
        return compile_only(jax.jit(functools.partial(program, exchange)), one)


def compile_only(program: Any, sharding: Any) -> Any:
    def run(*args: Any) -> Any:
        def shaped(x: Any) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)
            return jax.ShapeDtypeStruct(np.shape(x), dtype, sharding=sharding)

        program.lower(*jax.tree.map(shaped, args)).compile()
        raise NotRunError

    return run


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param(backend, name, id=f"{kind}: {name}")
        for kind, backend, names in (
            ("one GPU", CompiledDevices(1, 1), exchange_jobs.ON_GPUS["one GPU"].names),
            ("four GPUs", CompiledDevices(2, 2), CHECKS),
            ("loopback", CompiledLoopback(2, 4), exchange_jobs.ON_GPUS["loopback"].names),
        )
        for name in names or ()
        if CHECKS[name].needs(backend) and name not in PROGRAMS_OF_THEIR_OWN
    ],
)
def test_every_check_compiles(backend, name):
    with pytest.raises(NotRunError):
        CHECKS[name].run(backend)


def arrays_of(mesh: jax.sharding.Mesh) -> tuple[Any, ...]:
    """Operand, output and metadata of an exchange between all devices."""
    size = mesh.devices.size
    sharding = NamedSharding(mesh, P("x"))
    rows = jax.ShapeDtypeStruct((size * ROWS, WIDTH), jnp.bfloat16, sharding=sharding)
    meta = jax.ShapeDtypeStruct((size * size,), jnp.int32, sharding=sharding)
    return (rows, rows, *(meta,) * 4)


def exchange(*args: Any) -> jax.Array:
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x")


def on_all(function: Any, mesh: jax.sharding.Mesh) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)


@pytest.mark.parametrize("count", [1, 4])
def test_rows_are_not_copied(count):
    """Neither those of a donated output, nor those that a loop writes again and again."""
    mesh = mesh_of(count)
    once = on_all(exchange, mesh)

    def loop(operand: Any, output: Any, *meta: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, rows: once(operand, rows, *meta), output)

    for program in (once, loop):
        text = compiled(program, *arrays_of(mesh), donate_argnums=1)
        assert "fastjax_exchange_v2" in text
        assert not re.findall(rf"= bf16\[{ROWS},{WIDTH}\]\S* copy\(", text)


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_a_layer_in_chunks(count, deduplicate):
    """With its gradients: as many exchanges as it has when it is lowered, with work beside them."""
    mesh = mesh_of(count)
    experts, tokens, chosen = 8, 256, 2
    sharding = NamedSharding(mesh, P("x"))

    def shaped(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), dtype, sharding=sharding)

    def step(x: Any, ids: Any, weights: Any, params: Any) -> Any:
        def layer(x: Any, weights: Any, params: Any) -> Any:
            return fastjax.moe.layer(
                x,
                ids,
                weights,
                params,
                expert_fn=lambda row, param: jnp.tanh(row @ param),
                num_experts=experts,
                axis_name="x",
                chunks=4,
                deduplicate=deduplicate,
                topology=fastjax.Topology(count, 1),
            )

        value, back = jax.vjp(layer, x, weights, params)
        return value, *back(value)

    ids = shaped(tokens, chosen, dtype=jnp.int32)
    params = jax.ShapeDtypeStruct((experts, WIDTH, WIDTH), jnp.float32, sharding=sharding)
    lowered = jax.jit(on_all(step, mesh)).lower(
        shaped(tokens, WIDTH), ids, shaped(tokens, chosen), params
    )
    calls = re.compile(r"fastjax_(?:exchange|done)_v2")
    wanted = collections.Counter(calls.findall(lowered.as_text()))
    text = lowered.compile().as_text()
    assert wanted["fastjax_done_v2"] > 0
    assert collections.Counter(calls.findall(text)) == wanted
    begun = started(text)
    assert len(begun) == wanted["fastjax_done_v2"]
    assert any(works(between) for between in begun)


@pytest.mark.parametrize(
    ("groups", "room", "loops"), [(1, 5000, 0), (8, 8 * 300, 2), (32, 32 * 8, 2), (64, 3, 0)]
)
def test_first_tiles_need_no_loop(groups, room, loops):
    """XLA waits for a GPU in every turn of a loop whose length it does not know.

    There is one forward and one backward, for rows beyond the first tile of each group.
    """
    sharding = jax.sharding.SingleDeviceSharding(gpus(1)[0])
    shaped = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)

    def step(rows: Any, params: Any, sizes: Any) -> Any:
        expert = lambda rows, param: jnp.tanh(rows @ param)  # noqa: E731
        mapped = lambda rows, params: fastjax.moe.grouped_map(expert, rows, params, sizes)  # noqa: E731
        value, back = jax.vjp(mapped, rows, params)
        return value, back(value)

    text = compiled(
        step,
        shaped((room, WIDTH), jnp.float32),
        shaped((groups, WIDTH, WIDTH), jnp.float32),
        shaped((groups,), jnp.int32),
    )
    found = [line for line in text.splitlines() if " while(" in line]
    assert sum("known_trip_count" not in line for line in found) == loops
    assert " conditional(" not in text


def works(lines: list[str]) -> bool:
    """Whether there is work of experts among the lines of a program."""
    return any(re.search(r" (?:while|dot)\(|gemm", line) for line in lines)


def started(text: str) -> list[list[str]]:
    """By exchange that is started: the lines between that and its done.

    The done has the rows of the start and the operand of the exchange. Its result is in the place
    of the rows, unless XLA has fused the slice that the operand is into both calls.
    """
    lines = text.splitlines()
    made, target_of, inside = {}, {}, ""
    for number, line in enumerate(lines):
        if line.startswith("%dynamic-slice-fusion"):
            inside = line.split()[0]
        elif line == "}":
            inside = ""
        target = re.search(r'custom_call_target="fastjax_(exchange|done)_v2"', line)
        if inside and target:
            target_of[inside] = target[1]
        elif fused := re.search(r" fusion\(.* calls=(%dynamic-slice-fusion\S*?)(?:,|$)", line):
            target_of[number] = target_of.get(fused[1])
        elif target:
            target_of[number] = target[1]
            assert target[1] == "exchange" or "output_to_operand_aliasing={{}: (0, {})}" in line
        if found := re.match(r"\s*(?:ROOT )?(%\S+) = ", line):
            made[found[1]] = number
    between = []
    for end in [n for n, target in target_of.items() if target == "done" and isinstance(n, int)]:
        kept = operands_in(lines[end])
        (begin,) = {made[name] for name in kept if target_of.get(made[name]) == "exchange"}
        assert operands_in(lines[begin])[0] in kept
        between.append(lines[begin + 1 : end])
    return between


def operands_in(line: str) -> list[str]:
    return re.findall(r"%[\w.-]+", re.search(r" (?:custom-call|fusion)\(([^)]*)\)", line)[1])
