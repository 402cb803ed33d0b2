"""From where XLA counts the launches of an executable.

That processes whose executables differ find each other is shown by jobs, in
tests/traced/test_programs_in_flight.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning

from fastjax.network import modules
from fastjax.network.launch_numbers import start_of

# Fingerprints of executables of the same four devices, with the run ids of their first launches:
# what jaxlib 0.10.2 said in two processes that had compiled a program, or read it from a cache.
FIRST_RUNS = {
    b"108964502194541449077357671951063909336": 1916874876,
    b"2127729663299522597335349675205486889": -607223835,
    b"73465852231117599025290888708948513021": 1367875535,
}


def test_run_ids_less_their_starts_are_alike() -> None:
    rest = {(run - (start_of(text) or 0)) % 2**32 for text, run in FIRST_RUNS.items()}
    assert len(rest) == 1


def test_starts_are_numbers_of_32_bits() -> None:
    for length in range(33, 65):
        start = start_of(b"7" * length)
        assert start is not None
        assert 0 <= start < 2**32


@pytest.mark.parametrize("length", [0, 16, 32, 65])
def test_a_fingerprint_of_another_kind_says_nothing(length: int) -> None:
    assert start_of(b"7" * length) is None


def test_executables_without_a_fingerprint_start_alike() -> None:
    assert start_of(None) == 0


def test_addresses_of_python_objects_are_no_part_of_a_fingerprint() -> None:
    """JAX puts them into calls of custom_partitioning; they differ between processes."""

    kept = []  # two live objects never share an address, and a lowered program keeps its own alive

    def module(factor: float) -> tuple[str, Any]:
        times = custom_partitioning(lambda x: x * factor)
        times.def_partition(
            partition=lambda *_: None,
            infer_sharding_from_operands=lambda *_: None,
            sharding_rule="i -> i",
        )
        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        sharded = jax.NamedSharding(mesh, jax.P("x"))
        lowered = jax.jit(lambda x: times(jnp.sin(x)), in_shardings=sharded).lower(np.ones(4))
        kept.append(lowered)
        found = lowered.compiler_ir("stablehlo")
        text = str(found)
        named = modules.fingerprint(found)
        assert str(found) == text
        return text, named

    (one, first), (other, second) = module(2.0), module(3.0)
    assert "CustomSPMDPartitioning" in one
    assert one != other
    assert first == second
    assert not first.whole  # each is compiled: the objects know what
    plain = jax.jit(jnp.sin).lower(np.ones(4)).compiler_ir("stablehlo")
    assert modules.fingerprint(plain).whole
