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
# # Quickstart
#
# `fastjax.fast_ragged_all_to_all` moves rows between the devices of a mesh axis: from each device
# to each other, as many as that pair has. It takes the arguments of `jax.lax.ragged_all_to_all` and
# means the same by them.
#
# Eight CPU devices are enough to try everything. They have to be asked for before JAX starts.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fastjax

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
fastjax.schedulers()


# %% [markdown]
# ## An exchange
#
# One expert lives on each device, and experts are not equally popular. `send_sizes[j]` of a device
# says how many of its tokens, which are sorted by expert, go to device `j`. Everything else follows
# from the sizes of all devices:
#
# - `input_offsets`: where the slice for each device begins in my tokens;
# - `output_offsets`: where my slice lands *in each receiver's* output;
# - `recv_sizes`: rows that arrive here, by sender.


# %%
def offsets(send_sizes):
    sizes = jax.lax.all_gather(send_sizes, "expert")
    me = jax.lax.axis_index("expert")
    return {
        "input_offsets": (jnp.cumsum(sizes, axis=1) - sizes)[me],
        "send_sizes": send_sizes,
        "output_offsets": (jnp.cumsum(sizes, axis=0) - sizes)[me],
        "recv_sizes": sizes[:, me],
    }


def on_all_devices(function):
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=jax.P("expert"), out_specs=jax.P("expert"))
    )


TOKENS, WIDTH, ROOM = 64, 16, 256


@on_all_devices
def dispatch(tokens, send_sizes):
    output = jnp.zeros((ROOM, WIDTH))
    return fastjax.fast_ragged_all_to_all(tokens, output, **offsets(send_sizes), axis_name="expert")


rng = np.random.default_rng(0)
popularity = 1 / np.arange(1, 9) ** 0.8
traffic = rng.multinomial(TOKENS, popularity / popularity.sum(), size=8)
tokens = rng.normal(size=(8, TOKENS, WIDTH)).astype(np.float32)

received = dispatch(tokens.reshape(-1, WIDTH), traffic.astype(np.int32).reshape(-1))
received = np.asarray(received).reshape(8, ROOM, WIDTH)

# %% [markdown]
# Each receiver has the rows of device 0 first, then those of device 1, and so on:

# %%
first = np.cumsum(traffic, axis=1) - traffic
for receiver in range(8):
    rows = [
        tokens[sender, first[sender, receiver] :][: traffic[sender, receiver]]
        for sender in range(8)
    ]
    expected = np.concatenate(rows)
    np.testing.assert_array_equal(received[receiver, : len(expected)], expected)
    assert not received[receiver, len(expected) :].any()  # nobody wrote there

plt.imshow(traffic, cmap="magma_r")
plt.colorbar(label="rows")
plt.title("Who sends how much to whom")
plt.xlabel("receiver")
plt.ylabel("sender")
plt.show()

# %% [markdown]
# ## There and back with one plan
#
# Each exchange is planned from the sizes of that very step. The way back, and the gradients of both
# ways, carry the same rows in reverse, so one plan serves all four.


# %%
def layer(tokens, send_sizes, weights):
    plan = fastjax.plan_ragged_all_to_all(send_sizes, axis_name="expert")
    there = offsets(send_sizes)
    back = {
        "input_offsets": jax.lax.all_to_all(there["output_offsets"], "expert", 0, 0, tiled=True),
        "send_sizes": there["recv_sizes"],
        "output_offsets": jax.lax.all_to_all(there["input_offsets"], "expert", 0, 0, tiled=True),
        "recv_sizes": there["send_sizes"],
    }
    inbox = fastjax.fast_ragged_all_to_all(
        tokens, jnp.zeros((ROOM, WIDTH)), **there, axis_name="expert", plan=plan
    )
    outbox = jnp.tanh(inbox @ weights[0])  # this device's expert
    return fastjax.fast_ragged_all_to_all(
        outbox, jnp.zeros_like(tokens), **back, axis_name="expert", plan=plan.transpose()
    )


weights = rng.normal(size=(8, WIDTH, WIDTH)).astype(np.float32) / 4
arguments = (
    tokens.reshape(-1, WIDTH),
    traffic.astype(np.int32).reshape(-1),
    weights,
)
run = on_all_devices(layer)
combined = np.asarray(run(*arguments)).reshape(8, TOKENS, WIDTH)

experts = np.stack([np.repeat(np.arange(8), sizes) for sizes in traffic])
expected = np.tanh(np.einsum("dtw,dtwv->dtv", tokens, weights[experts]))
np.testing.assert_allclose(combined, expected, rtol=1e-4, atol=1e-5)

# %% [markdown]
# Gradients flow through both exchanges, to the tokens and to the experts. One plan would serve all
# four, and as the traffic is that of before, not even that is made:

# %%
gradient = jax.jit(jax.grad(lambda w: (run(arguments[0], arguments[1], w) ** 2).sum()))
before = fastjax.planning_count()
of_weights = np.asarray(gradient(weights))
plans = fastjax.planning_count() - before


def without_exchange(w):
    return (jnp.tanh(jnp.einsum("dtw,dtwv->dtv", tokens, w[experts])) ** 2).sum()


np.testing.assert_allclose(of_weights, jax.grad(without_exchange)(weights), rtol=1e-3, atol=1e-4)
assert plans == 0
print(f"four exchanges of traffic that was planned before, {plans} new plans")

# %% [markdown]
# ## Programs written for `jax.lax`
#
# `jax.lax.ragged_all_to_all` itself does not run on CPU. Inside `swap_ragged_all_to_all`, programs
# that call it do, unchanged.


# %%
@on_all_devices
def written_for_jax(tokens, send_sizes):
    output = jnp.zeros((ROOM, WIDTH))
    return jax.lax.ragged_all_to_all(tokens, output, **offsets(send_sizes), axis_name="expert")


with fastjax.swap_ragged_all_to_all():
    swapped = written_for_jax(*arguments[:2])
np.testing.assert_array_equal(np.asarray(swapped).reshape(received.shape), received)

# %% [markdown]
# ## A plan
#
# Told that the devices are two servers of four, the scheduler `fast` spreads rows over the devices
# of the sending server (balance), sends in one-to-one stages between servers, and hands rows to
# their targets inside the receiving server. `make_plan` plans the same way outside any program.

# %%
topology = fastjax.Topology(servers=2, devices_per_server=4)
plan = fastjax.make_plan(traffic * 64, topology, scheduler="fast", row_bytes=4096)
print(plan)

phases = ["local", "balance", "scale-out", "redistribute"]
sent = np.zeros((4, 8))
np.add.at(sent, (plan.transfers["phase"], plan.transfers["src"]), plan.transfers["rows"])
bottom = np.zeros(8)
for phase, rows in zip(phases, sent, strict=True):
    plt.bar(np.arange(8), rows, bottom=bottom, label=phase)
    bottom += rows
plt.title("Rows that each device sends, by phase")
plt.xlabel("device")
plt.ylabel("rows")
plt.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.tight_layout()
plt.show()

for server in (
    slice(0, 4),
    slice(4, 8),
):  # all NICs of a server carry the same, within a row a stage
    assert np.ptp(sent[2, server]) <= plan.num_stages
direct = fastjax.make_plan(traffic * 64, topology, scheduler="direct", row_bytes=4096)
assert plan.lower_bound() <= plan.predicted_time() < direct.predicted_time()

# %% [markdown]
# ## Mistakes
#
# Wrong shapes are refused when the program is traced, wrong values when it runs. The next
# exchange works.

# %%
wrong = traffic.astype(np.int32)
wrong[3, 5] = -1
try:
    jax.block_until_ready(dispatch(arguments[0], wrong.reshape(-1)))
except jax.errors.JaxRuntimeError as error:
    message = str(error)
print(message)
assert "device 3" in message
assert "send_sizes[5] = -1" in message
np.testing.assert_array_equal(
    np.asarray(dispatch(*arguments[:2])).reshape(received.shape), received
)
