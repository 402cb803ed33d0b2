"""Runs layers of others in several ways, compares them, and prints what each costs.

The ways: with its exchange, which is emulated by gathers; with its exchange under the swap, and
with that of `jax.lax.ragged_dot`, too; and with `fastjax.moe` in its place. `run.py NAME ROOT`:
NAME of a module of trees/, ROOT of its tree. Layers without a ragged exchange have no second way.
"""

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import edits
import emulated_jax
import jax
import jax.numpy as jnp
import numpy as np
from absent import absent, bare
from tree import DEVICES, Case, Layer

import fastjax

ROUNDS = 5
Programs = dict[str, Any]  # of each way, compiled


def compile_one(case: Case, module: ModuleType, exchanges: int | None = None) -> Any:
    """The layer's value, and the gradients of its sum with random factors."""
    layer = case.build(module, **case.options)

    def results(params: Any, x: jax.Array, factors: jax.Array) -> Any:
        value, pullback = jax.vjp(layer.function, params, x)
        return value, pullback(factors)

    with layer.scope():
        traced = jax.jit(results).trace(layer.params[0], layer.x, layer.x)
        if exchanges is not None:
            text = str(traced.jaxpr)
            calls = [text.count(f" {name}ragged_all_to_all[") for name in ("fast_", "")]
            assert calls == [exchanges, 0], calls
        return traced.lower().compile()


def compile_all(case: Case, module: ModuleType) -> tuple[Layer, Programs]:
    made: Programs = {}
    with edits.applied(module, (), case.replaced):
        layer = case.build(module, **case.options)
        with emulated_jax.installed():
            made["own"] = compile_one(case, module)
        if case.exchanges:
            with fastjax.swap_ragged_all_to_all():
                made["swap"] = compile_one(case, module, case.exchanges)
        with fastjax.swap_ragged_all_to_all(ragged_dot=True):
            made["swap, ragged_dot"] = compile_one(case, module)
    with edits.applied(module, case.edits, case.replaced | {"moe": fastjax.moe}):
        made["moe"] = compile_one(case, module)
    return layer, made


def assert_same(got: Any, wanted: Any, *, bits: bool) -> None:
    """But for rounding, which is measured by the largest number of each array."""
    leaves = jax.tree_util.tree_leaves_with_path(wanted)
    for (path, expected), found in zip(leaves, jax.tree.leaves(got), strict=True):
        name = jax.tree_util.keystr(path)
        largest = float(jnp.abs(expected).max())
        assert largest > 0, name
        atol = 0 if bits else 2e-5 * largest
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=name)


def compare(case: Case, layer: Layer, made: Programs) -> None:
    for params in layer.params:
        given = params, layer.x, jax.random.normal(jax.random.key(2), layer.x.shape)
        value, gradients = made["own"](*given)
        found = {way: program(*given) for way, program in made.items() if way != "own"}
        wanted = value, gradients if case.own_gradients else found["swap"][1]
        for way, each in found.items():
            assert_same(each, wanted, bits=way == "swap")


def seconds(made: Programs, *arguments: Any) -> dict[str, float]:
    """The least of several rounds, each of which runs all ways."""
    times: dict[str, list[float]] = {way: [] for way in made}
    for _ in range(ROUNDS):
        for way, program in made.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            times[way].append(time.perf_counter() - start)
    return {way: min(each) for way, each in times.items()}


def report(case: Case, module: ModuleType, layer: Layer, made: Programs) -> Iterator[str]:
    source = Path(str(module.__file__)).read_text()
    places = [len(edit.written) for edit in case.edits]
    gone = sum(len(edits.place(source, edit)) for edit in case.edits)
    options = "".join(f", {name}={value}" for name, value in case.options.items())
    yield f"{module.__name__}{options}: {places} lines at each place instead of {gone}, 1 to import"
    spent = seconds(made, layer.params[0], layer.x, layer.x)
    for way, program in made.items():
        memory = program.memory_analysis().temp_size_in_bytes / 2**20
        yield (
            f"  {way:<18}{1e3 * spent[way]:8.1f} ms{spent['own'] / spent[way]:7.2f} x as fast"
            f"{memory:9.2f} MiB"
        )


def main(name: str, root: str) -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES)
    sys.dont_write_bytecode = True
    for case in importlib.import_module(f"trees.{name}").CASES:
        folder = Path(root, case.folder)
        sys.path.insert(0, str(folder))
        for package in case.bare:
            bare(package, folder)
        with absent(case.absent):
            module = importlib.import_module(case.module)
        layer, made = compile_all(case, module)
        compare(case, layer, made)
        for line in report(case, module, layer, made):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
