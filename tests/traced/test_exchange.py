"""Exchanges of any traffic, and in any kind of program; test_exchange_checks.py has the rest."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_problems import SCHEDULERS
from spmd import mesh_of, spmd

import fastjax

TOPOLOGIES = [fastjax.Topology(n, m) for n, m in ((1, 8), (2, 4), (4, 2), (8, 1))]


def exchange_with(topology=None, scheduler=None, **spmd_options):
    return spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(
            *args, axis_name="x", topology=topology, scheduler=scheduler
        ),
        **spmd_options,
    )


# One compiled program for all examples: only the numbers in it change.
ROWS = 96
_programs = {}


def program(topology, scheduler):
    key = (topology, scheduler)
    if key not in _programs:
        _programs[key] = exchange_with(topology, scheduler)
    return _programs[key]


@st.composite
def traffic(draw):
    """Sizes of two updates a peer, of every shape: empty, one flow, skewed, hot receiver, dense."""
    kind = draw(st.sampled_from(["any", "flow", "receiver", "sender", "local", "empty"]))
    sizes = np.zeros((8, 16), int)
    row = st.lists(st.integers(0, 6), min_size=16, max_size=16)
    if kind == "any":
        sizes[:] = [draw(row) for _ in range(8)]
    elif kind == "flow":
        sizes[draw(st.integers(0, 7)), draw(st.integers(0, 15))] = draw(st.integers(1, ROWS))
    elif kind == "receiver":
        peer = draw(st.integers(0, 7))
        sizes[:, 2 * peer : 2 * peer + 2] = draw(st.integers(1, 6))
    elif kind == "sender":
        sizes[draw(st.integers(0, 7))] = draw(row)
    elif kind == "local":
        for i in range(8):
            sizes[i, 2 * (i ^ 1)] = draw(st.integers(0, 6))
    return sizes


@settings(max_examples=60)
@given(
    sizes=traffic(),
    topology=st.sampled_from(TOPOLOGIES),
    scheduler=st.sampled_from(SCHEDULERS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_traffic(sizes, topology, scheduler, seed):
    rng = np.random.default_rng(seed)
    meta = reference.packed(sizes)
    operand, output = rng.normal(size=(2, 8, ROWS, 2)).astype(np.float32)
    got = program(topology, scheduler)(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_axis_types_vma_and_jit(rng, axis_types, check_vma, jit):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    mesh = mesh_of(explicit=axis_types == "explicit")
    run = exchange_with(mesh=mesh, check_vma=check_vma, jit=jit)
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
