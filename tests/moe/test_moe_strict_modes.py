"""Layers where JAX is strict: what is implicit, or is NaN on the way, is an error there."""

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import pytest
from moe_layers import (
    DEVICES,
    dense_with_gradients,
    layer,
    name_of,
    on_devices,
    problem,
    same,
    with_gradients,
)

import fastjax

NICS = tuple(1e9 if nic % 3 else 5e8 for nic in range(DEVICES))
TOPOLOGY = fastjax.Topology(4, 2, nic_bandwidths=NICS)
PLAIN = {"deduplicate": False}
NARROW = {"deduplicate": False, "chunks": 2, "alignment": 4, "payload_dtype": jnp.bfloat16}
SCALED = {"deduplicate": True, "chunks": 2, "alignment": 4, "payload_dtype": jnp.float8_e4m3fn}
LEVELLED = {"deduplicate": True, "chunks": 2, "balance": True, "buffer_factor": 1.0}


def values():
    promotion = jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict")
    return [*promotion, jax.debug_nans(True), jax.debug_infs(True)]


def checks_of_jax():
    return [jax.checking_leaks(), jax.enable_checks(True)]


# JAX's checks take longest.
@pytest.mark.parametrize(
    ("checks", "options"),
    [
        (False, NARROW),
        (False, LEVELLED),
        (True, PLAIN),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in ((False, SCALED), (True, NARROW), (True, LEVELLED))
        ),
    ],
    ids=name_of,
)
def test_values_and_gradients(rng, checks, options):
    """Nothing is promoted, and nothing is NaN; or JAX looks at all that is traced."""
    arrays = problem(rng, 7)
    rounding = (options.get("payload_dtype"),) * 2
    step = with_gradients(on_devices(layer, topology=TOPOLOGY, **{"buffer_factor": None} | options))
    with ExitStack() as stack:
        for mode in checks_of_jax() if checks else values():
            stack.enter_context(mode)
        got = step(*arrays)
        if not checks:  # a platform without handlers of ours gets what it has itself
            other = step.trace(*arrays).lower(lowering_platforms=("tpu",))
            assert "ragged_all_to_all" in other.as_text()
    tolerance = 1e-5 if rounding == (None, None) else 0.1
    same(got, dense_with_gradients(arrays, rounding=rounding), tolerance)
