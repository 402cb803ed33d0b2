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
# # Skew and schedules
#
# The routing is real: `examples/train_moe.py` recorded it while it trained a small language model
# with 8 experts, of which each token chooses two. Here are its exchanges on four
# servers of two GPUs, where NICs are nine times slower than the links inside a server.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fastjax

TRACE = next(
    folder / "benchmarks/traces/train_moe.jsonl.gz"
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "benchmarks/traces").is_dir()
)
SERVERS, LOCAL, ROW_BYTES = 4, 2, 4096
topology = fastjax.Topology(SERVERS, LOCAL, scale_up_bandwidth=450e9, scale_out_bandwidth=50e9)
DEVICES = SERVERS * LOCAL

exchanges = fastjax.traffic.traffic_from_routing(
    fastjax.traffic.read_routing_trace(TRACE), devices=DEVICES, num_experts=8
)
matrices = list(exchanges.values())
print(f"{len(matrices)} exchanges of {matrices[0].sum()} rows")

# %% [markdown]
# ## Uneven traffic
#
# Rows that devices receive, relative to the average: in every exchange, and in the most uneven.

# %%
received = np.array([matrix.sum(axis=0) / matrix.sum(axis=0).mean() for matrix in matrices])
worst = int(received.max(axis=1).argmax())
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
left.plot(np.sort(received, axis=1)[:, ::-1], color="tab:blue", alpha=0.4)
left.plot(received.max(axis=1), color="tab:red")
left.set(xlabel="exchange", ylabel="received / average", title="all devices; red: the busiest")
right.bar(range(DEVICES), received[worst], color="tab:blue")
right.axhline(1, color="0.4", linestyle="--")
right.set(xlabel="device", title=str(list(exchanges)[worst]))
figure.tight_layout()
plt.show()
print(f"the busiest device gets {received[worst].max():.2f} times the average at worst")
print(f"Gini by expert: {fastjax.traffic.gini(matrices[worst].sum(axis=0)):.2f}")

# %% [markdown]
# ## Before and after balancing
#
# A row that leaves its server does so over the NIC of some device there. As routed, that is the
# device that has it; the plan first moves rows inside the server, so that for each other server all
# NICs have as much to send. Nothing has to move twice: the fewest rows that do it are moved.

# %%
traffic = matrices[worst] * 64  # the model is small; the pattern is what counts
plan = fastjax.make_plan(traffic, topology, scheduler="fast", row_bytes=ROW_BYTES)


def over_nics(senders, receivers, rows):
    """Rows that each device's NIC sends to each other server."""
    sent = np.zeros((DEVICES, SERVERS), int)
    np.add.at(sent, (senders, receivers // LOCAL), rows)
    sent[np.arange(DEVICES), np.arange(DEVICES) // LOCAL] = 0
    return sent


i, j = np.nonzero(traffic)
scale_out = plan.transfers[plan.transfers["phase"] == 2]
before = over_nics(i, j, traffic[i, j])
after = over_nics(scale_out["src"], scale_out["dst"], scale_out["rows"])
assert before.sum() == after.sum()
tile = lambda sent: sent.reshape(SERVERS, LOCAL, SERVERS)  # noqa: E731
assert (np.ptp(tile(after), axis=1) <= plan.num_stages).all()  # even, but for single rows

figure, axes = plt.subplots(1, 3, figsize=(11, 3.5))
pictures = {"routed, device to device": traffic, "over NICs as routed": before, "balanced": after}
for ax, (title, matrix) in zip(axes, pictures.items(), strict=True):
    top = traffic.max() if matrix is traffic else before.max()
    image = ax.imshow(matrix, vmin=0, vmax=top, cmap="viridis")
    ax.set(title=title, ylabel="from device")
    ax.set_xlabel("to device" if matrix is traffic else "to server")
    figure.colorbar(image, ax=ax, shrink=0.8)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## The load of NICs
#
# An exchange takes as long as its busiest NIC, sending or receiving.

# %%
away = np.where(np.arange(DEVICES)[:, None] // LOCAL == np.arange(DEVICES) // LOCAL, 0, traffic)
loads = {
    "sent, as routed": away.sum(axis=1),
    "sent, balanced": np.bincount(scale_out["src"], scale_out["rows"], DEVICES),
    "received, as routed": away.sum(axis=0),
    "received, balanced": np.bincount(scale_out["dst"], scale_out["rows"], DEVICES),
}
figure, axes = plt.subplots(1, 2, figsize=(10, 3), sharey=True, layout="constrained")
for ax, way in zip(axes, ("sent", "received"), strict=True):
    for shift, state in enumerate(("as routed", "balanced")):
        rows = loads[f"{way}, {state}"]
        ax.bar(np.arange(DEVICES) + 0.4 * shift, rows, width=0.4, label=state)
    ax.set(xlabel="NIC of device", ylabel="rows", title=way)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()
assert loads["received, balanced"].max() <= loads["received, as routed"].max() + plan.num_stages
busiest = max(loads["sent, as routed"].max(), loads["received, as routed"].max())
balanced = max(loads["sent, balanced"].max(), loads["received, balanced"].max())
print(f"the busiest NIC has {busiest / balanced:.2f} times as much to do as routed")

# %% [markdown]
# ## Stages over time
#
# In each stage every NIC sends to one other and receives from one. Rows are balanced before their
# stage and handed on after it, while other stages cross.

# %%
print(plan.explain())
fastjax.simulate(plan, synchronization="barrier").plot()

# %% [markdown]
# ## Which scheduler, and when
#
# The time that the cost model predicts, planning included, relative to the lower bound; for the
# exchanges of the whole trace, on two fabrics.

# %%
fabrics = {
    "450 and 50 GB/s": topology,
    "448 and 12.5 GB/s": fastjax.Topology(
        SERVERS, LOCAL, scale_up_bandwidth=448e9, scale_out_bandwidth=12.5e9
    ),
}
names = ("auto", "fast", "balanced", "relay", "rails", "spreadout", "direct")
figure, axes = plt.subplots(1, 2, figsize=(10, 3), sharey=True, layout="constrained")
for ax, (title, fabric) in zip(axes, fabrics.items(), strict=True):
    for name in names:
        plans = [
            fastjax.make_plan(64 * matrix, fabric, scheduler=name, row_bytes=ROW_BYTES)
            for matrix in matrices[:: max(1, len(matrices) // 40)]
        ]
        ratios = np.array([p.predicted_time() / p.lower_bound() for p in plans])
        wide = {"linewidth": 6, "color": "0.85"} if name == "auto" else {"linewidth": 1}
        ax.plot(ratios, label=name, **wide)
        print(f"{title:18} {name:10} {np.median(ratios):.2f} (up to {ratios.max():.2f})")
    ax.set(title=title, xlabel="exchange", ylabel="predicted / lower bound")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()
