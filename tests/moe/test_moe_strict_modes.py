"""Layers where JAX is strict: what is implicit, or is NaN on the way, is an error there."""

import functools
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import moe_reference as reference
import pytest
from deduplicated import DEVICES, EXPERTS, flat, layer_on_devices
from moe_reference import same, with_gradients

import fastjax

NICS = tuple(1e9 if nic % 3 else 5e8 for nic in range(DEVICES))
TOPOLOGY = fastjax.Topology(4, 2, nic_bandwidths=NICS)
OPTIONS = [
    {"deduplicate": False},
    {"deduplicate": True},
    {"deduplicate": False, "chunks": 2, "alignment": 4, "payload_dtype": jnp.bfloat16},
    {"deduplicate": True, "chunks": 2, "alignment": 4, "payload_dtype": jnp.float8_e4m3fn},
    {"deduplicate": False, "chunks": 1, "balance": True, "buffer_factor": 0.5},
    {"deduplicate": True, "chunks": 2, "balance": True, "buffer_factor": 1.0},
]


def _name(value):
    return value if isinstance(value, str) else ",".join(map(str, value.values()))


def on_devices(options):
    return jax.jit(with_gradients(layer_on_devices(topology=TOPOLOGY, **options)))


MODES = {
    "promotion": lambda: [jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict")],
    "checks": lambda: [jax.checking_leaks(), jax.enable_checks(True)],
    "nans": lambda: [jax.debug_nans(True), jax.debug_infs(True)],
}


# JAX's checks take longest, and two of the options have what others have.
@pytest.mark.parametrize(
    ("mode", "options"),
    [(m, o) for m in MODES for o in (OPTIONS[2::3] if m == "checks" else OPTIONS)],
    ids=_name,
)
def test_values_and_gradients(rng, mode, options):
    arrays = flat(reference.problem(rng, DEVICES, 7, EXPERTS))
    rounding = (options.get("payload_dtype"),) * 2
    dense = functools.partial(reference.dense, top_k=3, rounding=rounding)
    tolerance = 1e-5 if rounding == (None, None) else 0.1
    with ExitStack() as stack:
        for one in MODES[mode]():
            stack.enter_context(one)
        got = on_devices(options)(*arrays)
    same(got, jax.jit(with_gradients(dense))(*arrays), tolerance)


@pytest.mark.parametrize("options", OPTIONS, ids=_name)
def test_programs_for_a_platform_without_our_handlers(rng, options):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        traced = on_devices(options).trace(*flat(reference.problem(rng, DEVICES, 7, EXPERTS)))
        assert "ragged_all_to_all" in traced.lower(lowering_platforms=("tpu",)).as_text()
