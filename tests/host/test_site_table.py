"""The table of statistics: a line for each place and purpose."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collected import TOPOLOGY
from spmd import spmd

import fastjax


def test_a_summary_of_nothing_says_why(collecting):
    nothing_yet = fastjax.stats_summary()
    with fastjax.collect_stats(False):
        assert "" != fastjax.stats_summary() != nothing_yet != ""


WAYS = ("dispatch", "dispatch in servers", "combine in servers", "combine")


@pytest.mark.parametrize(
    ("deduplicate", "programs"), [pytest.param(True, 1, marks=pytest.mark.nightly), (False, 2)]
)
def test_summary_of_layers_that_are_trained(rng, collecting, deduplicate, programs):
    """Two layers of a loop, with checkpoints, in chunks, of some programs: a line for each way."""

    def block(x, ids, params):
        with jax.named_scope("block"):
            return fastjax.moe.layer(
                x, ids, jnp.ones(ids.shape), params,
                expert_fn=lambda rows, params: rows * params,
                num_experts=8, axis_name="x", topology=TOPOLOGY, chunks=2, deduplicate=deduplicate,
            )  # fmt: skip

    def local(x, ids, params):
        def loss(x, params):
            step = lambda x, _: (jax.checkpoint(block)(x, ids, params), None)  # noqa: E731
            return (jax.lax.scan(step, x, length=2)[0] ** 2).sum()

        return jax.grad(loss, (0, 1))(x, params)

    run = spmd(local)
    for tokens in (4, 6)[:programs]:
        x = rng.normal(size=(8, tokens, 3)).astype(np.float32)
        jax.block_until_ready(run(x, rng.integers(0, 8, (8, tokens, 2)), np.ones((8, 1, 3), "f4")))
    sites, (_, *lines) = fastjax.stats(), fastjax.stats_summary().splitlines()
    cells = [re.split(r"  +", line) for line in lines]
    launches = {name: int(count) for name, count, *_ in cells}
    assert len(launches) == len(lines)  # no two lines are alike
    assert sum(launches.values()) == sum(site.launches for site in sites)
    ways = WAYS if deduplicate else WAYS[::3]
    for way in ways:
        # Of two layers and chunks, and each server for itself.
        many = 4 * programs * (2 if way.endswith("servers") else 1)
        assert launches[f"block: {way}, gradient"] == many
        many *= 2 if way == "dispatch in servers" else 1  # weights go by themselves
        assert launches[f"block: {way}"] == many
    assert launches["block: dispatch, recomputed"] == 4 * programs
    assert {name.partition(": ")[0] for name in launches} == {"block"}
    rows = {name: cell[5] for name, *cell in cells}
    if not deduplicate:
        assert rows["block: dispatch"] == rows["block: combine, gradient"] == "40"
