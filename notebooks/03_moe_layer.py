# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An expert-parallel layer
#
# Eight devices, sixteen experts, each token to its best two. `fastjax.moe.dispatch` brings tokens
# to the devices of their experts, `fastjax.moe.combine` brings the results back.

# %%
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fastjax

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
TOKENS, WIDTH, INNER, EXPERTS, TOP_K = 256, 32, 64, 16, 2  # tokens of one device

rng = np.random.default_rng(0)
tokens = rng.normal(size=(8 * TOKENS, WIDTH)).astype(np.float32)
router = rng.normal(size=(WIDTH, EXPERTS)).astype(np.float32)
router[0] = rng.normal(size=EXPERTS)
tokens[:, 0] = 2.0  # so that some experts are more popular than others
up = (rng.normal(size=(EXPERTS, WIDTH, INNER)) / np.sqrt(WIDTH)).astype(np.float32)
down = (rng.normal(size=(EXPERTS, INNER, WIDTH)) / np.sqrt(INNER)).astype(np.float32)

# %% [markdown]
# ## The layer
#
# It is written for one device, inside `jax.shard_map`: that device's tokens, and its share of the
# experts. Arriving rows are grouped by expert, as `jax.lax.ragged_dot` wants it. On CPUs,
# `fastjax.moe.grouped_dot` is the same at the cost of the rows that there are.


# %%
def experts(rows, sizes, params):
    up, down = params
    inner = jax.nn.silu(fastjax.moe.grouped_dot(rows, up, sizes))
    return fastjax.moe.grouped_dot(inner, down, sizes)


def layer(tokens, router, up, down, **options):
    weights, ids = jax.lax.top_k(jax.nn.softmax(tokens @ router), TOP_K)
    rows, sizes, handle = fastjax.moe.dispatch(
        tokens, ids, num_experts=EXPERTS, axis_name="expert", **options
    )
    rows = experts(rows, sizes, (up, down))
    dropped = jax.lax.psum(handle.dropped, "expert")
    return fastjax.moe.combine(rows, handle, weights), sizes, dropped


SPLIT, SAME = jax.P("expert"), jax.P()


def sharded(**options):
    return jax.shard_map(
        functools.partial(layer, **options),
        mesh=mesh,
        in_specs=(SPLIT, SAME, SPLIT, SPLIT),
        out_specs=(SPLIT, SPLIT, SAME),
    )


result, sizes, dropped = jax.jit(sharded())(tokens, router, up, down)
assert dropped == 0


# %% [markdown]
# ## Compared with a dense layer
#
# On one device, without exchanges: every expert on every token, of which the chosen two count.


# %%
def dense(tokens, router, up, down):
    weights, ids = jax.lax.top_k(jax.nn.softmax(tokens @ router), TOP_K)
    every = jax.nn.silu(jnp.einsum("td,edf->tef", tokens, up))
    every = jnp.einsum("tef,efd->ted", every, down)
    return (jnp.take_along_axis(every, ids[..., None], 1) * weights[..., None]).sum(1)


np.testing.assert_allclose(result, dense(tokens, router, up, down), atol=1e-5)

# %% [markdown]
# Gradients, too: of tokens, of the router and of the experts.

# %%
arguments = (tokens, router, up, down)


def loss(*args):
    return jnp.mean(sharded()(*args)[0] ** 2)


step = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))).lower(*arguments).compile()
before = fastjax.planning_count()
value, grads = step(*arguments)
jax.block_until_ready(grads)
print(f"loss {value:.4f}, {fastjax.planning_count() - before} plan for four exchanges")

wanted = jax.grad(lambda *args: jnp.mean(dense(*args) ** 2), (0, 1, 2, 3))(*arguments)
for got, want in zip(grads, wanted, strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())

# %% [markdown]
# ## Uneven experts
#
# Rows that each expert got. A dense exchange would pad every one of them to the largest that there
# could be.

# %%
rows = np.asarray(sizes)
assert rows.sum() == 8 * TOKENS * TOP_K
plt.figure(figsize=(7, 2.5))
plt.bar(range(EXPERTS), rows, color=[f"C{e // 2}" for e in range(EXPERTS)])
plt.axhline(rows.mean(), color="0.4", linestyle="--")  # if all were equally popular
plt.xlabel("expert; colours are devices")
plt.ylabel("rows")
plt.title("Rows of each expert, and their mean")
plt.tight_layout()
plt.show()

# %% [markdown]
# The device with the popular experts computes longest, and all others wait for it. With `balance`,
# other devices of its server compute part of their rows, with weights that they get for this step.


# %%
def one_expert(rows, params):
    return jax.nn.silu(rows @ params[0]) @ params[1]


def levelled(tokens, router, up, down, *, balance):
    weights, ids = jax.lax.top_k(jax.nn.softmax(tokens @ router), TOP_K)
    made, stats = fastjax.moe.layer(
        *(tokens, ids, weights, (up, down)),
        expert_fn=one_expert,
        num_experts=EXPERTS,
        axis_name="expert",
        balance=balance,
        return_stats=True,
    )
    return made, stats.rows[None], stats.copies[None]


for balance in (False, True):
    function = functools.partial(levelled, balance=balance)
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=(SPLIT, SAME, SPLIT, SPLIT), out_specs=SPLIT
    )
    got, loads, copies = jax.jit(mapped)(*arguments)
    np.testing.assert_allclose(got, result, atol=1e-5)
    print(f"{balance=!s:5}: rows of devices {loads}, copies of experts {copies}")
assert loads.max() <= loads.mean() + 1

# %% [markdown]
# ## Less room
#
# By default `dispatch` has room for all that can arrive, which costs memory.
# `buffer_factor=1.25` has room for 1.25 times the average. Rows without room are dropped, and
# counted; where it belongs, `combine` adds zero.

# %%
for factor in (2.0, 1.25, 0.75):
    got, _, dropped = jax.jit(sharded(buffer_factor=factor))(*arguments)
    share = int(dropped) / (8 * TOKENS * TOP_K)
    print(f"room for {factor:.2f} of the average: {share:6.1%} of choices dropped")
assert share > 0

# %% [markdown]
# ## Narrow rows
#
# Rows may travel in fewer bytes than they have; those of one byte bring a scale each.

# %%
for payload in (jnp.bfloat16, jnp.float8_e4m3fn):
    got, *_ = jax.jit(sharded(payload_dtype=payload))(*arguments)
    error = np.abs(got - result).max() / np.abs(result).max()
    print(f"{payload.__name__:14} on the way there: off by {error:.1e} of the largest value")
    assert 0 < error < 0.1

# %% [markdown]
# ## Some steps of training

# %%
target = rng.normal(size=tokens.shape).astype(np.float32)
parameters = arguments[1:]


@jax.jit
def train(parameters):
    def loss(parameters):
        return jnp.mean((sharded()(tokens, *parameters)[0] - target) ** 2)

    value, grads = jax.value_and_grad(loss)(parameters)
    return value, jax.tree.map(lambda p, g: p - 2.0 * g, parameters, grads)


losses = []
for _ in range(20):
    value, parameters = train(parameters)
    losses.append(float(value))
print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}")
assert losses[-1] < losses[0]


# %% [markdown]
# ## In one call, and in chunks
#
# `fastjax.moe.layer` does all three steps, and can cut the tokens into chunks: while experts work
# on one chunk, rows of the next one travel to them, and rows of the one before travel back. The
# tokens that come out are the same.


# %%
def in_one_call(tokens, router, up, down, chunks):
    weights, ids = jax.lax.top_k(jax.nn.softmax(tokens @ router), TOP_K)
    return fastjax.moe.layer(
        tokens,
        ids,
        weights,
        (up, down),
        grouped_fn=experts,
        num_experts=EXPERTS,
        axis_name="expert",
        chunks=chunks,
    )


for chunks in (1, 4):
    mapped = jax.shard_map(
        functools.partial(in_one_call, chunks=chunks),
        mesh=mesh,
        in_specs=(SPLIT, SAME, SPLIT, SPLIT),
        out_specs=SPLIT,
    )
    np.testing.assert_allclose(jax.jit(mapped)(*arguments), result, atol=1e-5)

# %% [markdown]
# ## Overlapping chunks
#
# In one process there is nothing to gain: the processors that move rows are those that compute. So
# what follows was recorded between servers that `benchmarks/emulated_cluster` emulates on one
# machine. Each server is a process with slow NICs, and its experts sleep for a set time, as if they
# had processors of their own. A layer ran forward and backward, once in one chunk and once in
# several.

# %%
RECORD = next(
    folder / "benchmarks/results/emulated_overlap_backward.json"
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "benchmarks/results").is_dir()
)
record = json.loads(RECORD.read_text())
fabric = record["fabric"]
one_server = [timeline for timeline in record["timelines"] if timeline["server"] == 0]
print(
    f"{fabric['servers']} servers of {fabric['rails']} devices, each with a NIC of "
    f"{fabric['rate'] / 1e6:g} Mbit/s. Time of experts alone by that of exchanges alone: "
    f"{one_server[0]['ratio']:g}."
)


def bins(timeline):
    """Begins and ends of the bins, and the share of all NICs' rate at which they send in each."""
    shares = np.mean(timeline["nics_in_use"], axis=0)
    return timeline["bin_s"] * np.arange(len(shares) + 1), shares


def draw(ax, timeline):
    edges, shares = bins(timeline)
    ax.stairs(1.2 + shares, edges, baseline=1.2, fill=True, color="C0")
    ax.axhline(2.2, color="0.6", linewidth=0.8, linestyle="--")  # line rate
    bars = [(begin, end - begin) for begin, end in timeline["experts_s"]]
    half = len(bars) // 2
    look = {"alpha": 0.5, "linewidth": 0}  # what both devices do at once is darker
    ax.broken_barh(bars[:half], (0, 1), color="C1", label="experts, forward", **look)
    ax.broken_barh(bars[half:], (0, 1), color="C3", label="experts, backward", **look)
    ax.set_yticks([0.5, 1.7], ["experts", "NICs"])
    ax.set_ylim(-0.1, 2.5)
    ax.set_title(f"chunks={timeline['program']}", loc="left")


figure, axes = plt.subplots(2, 1, figsize=(10, 4), sharex=True, layout="constrained")
for ax, timeline in zip(axes, one_server, strict=True):
    draw(ax, timeline)
axes[-1].set_xlabel("seconds since the layer began")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
plt.show()

# %% [markdown]
# This is one server. The blue area is the rate at which its NICs send; line rate is dashed, and for
# a moment after a pause they may send faster. Bars are the times in which experts of its devices
# work.
#
# In one chunk, NICs and experts take turns. Tokens travel to the experts, these work, and results
# travel back. Then gradients take the same way, and experts work twice as long for them. In several
# chunks, experts begin when the first chunk is there, and NICs send others meanwhile. What nothing
# hides is the way of the first chunk to the experts, and that of the last one back, in each pass.


# %%
def use_meanwhile(timeline):
    """The share of NICs' rate that is in use while experts work, and the time that these work."""
    edges, shares = bins(timeline)
    middles = (edges[:-1] + edges[1:]) / 2
    begins, ends = np.array(timeline["experts_s"]).T
    works = ((begins <= middles[:, None]) & (middles[:, None] < ends)).any(axis=1)
    return shares[works].mean(), works.sum() * timeline["bin_s"]


def end(timeline):
    """When the last of the servers had ended the layer."""
    return max(t["end_s"] for t in record["timelines"] if t["program"] == timeline["program"])


for timeline in one_server:
    share, seconds = use_meanwhile(timeline)
    print(
        f"chunks={timeline['program']}: {end(timeline):.2f} s; experts work for {seconds:.2f} s, "
        f"while NICs send at {share:.0%} of their rate"
    )
whole, cut = one_server
assert end(cut) < end(whole)
assert use_meanwhile(cut)[0] > use_meanwhile(whole)[0]
