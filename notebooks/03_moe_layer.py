# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An expert-parallel layer
#
# Eight devices, sixteen experts, each token to its best two. `fastjax.moe.dispatch` brings tokens
# to the devices of their experts, `fastjax.moe.combine` brings back what those made of them.

# %%
import functools

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
# experts. What arrives is grouped by expert, as `jax.lax.ragged_dot` wants it. On CPUs,
# `fastjax.moe.grouped_dot` is the same at the cost of the rows that there are.


# %%
def layer(tokens, router, up, down, **options):
    weights, ids = jax.lax.top_k(jax.nn.softmax(tokens @ router), TOP_K)
    rows, sizes, handle = fastjax.moe.dispatch(
        tokens, ids, num_experts=EXPERTS, axis_name="expert", **options
    )
    inner = jax.nn.silu(fastjax.moe.grouped_dot(rows, up, sizes))
    rows = fastjax.moe.grouped_dot(inner, down, sizes)
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
# ## Is it right?
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
# ## How uneven it is
#
# Rows that each expert got. A dense exchange would pad every one of them to the largest that there
# could be.

# %%
rows = np.asarray(sizes)
assert rows.sum() == 8 * TOKENS * TOP_K
plt.figure(figsize=(7, 2.5))
plt.bar(range(EXPERTS), rows, color=[f"C{e // 2}" for e in range(EXPERTS)])
plt.axhline(rows.mean(), color="0.4", linestyle="--", label="if all were equally popular")
plt.xlabel("expert; colours are devices")
plt.ylabel("rows")
plt.legend()
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Less room
#
# By default a device has room for all that can arrive, which costs memory. `buffer_factor=1.25` has
# room for 1.25 times the average. What does not fit is dropped, and counted; where it belongs,
# `combine` adds zero.

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
