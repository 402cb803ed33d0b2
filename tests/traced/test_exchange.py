"""Exchanges under every kind of axis, checked or not; test_exchange_checks.py has the rest."""

import functools

import numpy as np
import pytest
import reference
from spmd import mesh_of, spmd

import fastjax


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_axis_types_vma_and_jit(rng, axis_types, check_vma, jit):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    mesh = mesh_of(explicit=axis_types == "explicit")
    exchange = functools.partial(fastjax.fast_ragged_all_to_all, axis_name="x")
    run = spmd(exchange, mesh, check_vma=check_vma, jit=jit)
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
