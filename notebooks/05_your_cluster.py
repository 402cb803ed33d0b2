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
# # From a trace to a decision
#
# From a routing trace to a decision, without a cluster: the traffic is planned with each scheduler,
# the plans are simulated flow by flow, and the question is which one to take, what it would gain,
# and on which assumptions. Nothing here is measured. `python -m fastjax simulate` answers the same
# from the command line.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fastjax
from fastjax.simulation import INCAST, PRESETS, Incast

TRACE = next(
    folder / "benchmarks/traces/train_moe.jsonl.gz"
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "benchmarks/traces").is_dir()
)
SERVERS, LOCAL, ROW_BYTES = 4, 2, 4096  # a row: 2048 numbers of bfloat16
DEVICES = SERVERS * LOCAL
NAMES = ("fast", "balanced", "relay", "spreadout", "direct")

exchanges = fastjax.traffic.traffic_from_routing(
    fastjax.traffic.read_routing_trace(TRACE), devices=DEVICES, num_experts=8
)
matrices = list(exchanges.values())
received = np.array([matrix.sum(axis=0) / matrix.sum(axis=0).mean() for matrix in matrices])
worst = int(received.max(axis=1).argmax())
# The model is small: 256 tokens on a device. Here are 32 times as many, routed alike.
traffic = matrices[worst] * 32
print(f"{len(matrices)} exchanges; the most uneven: {list(exchanges)[worst]}")
print(f"{traffic.sum() * ROW_BYTES / DEVICES / 2**20:.0f} MiB a device")

# %% [markdown]
# ## Uneven traffic
#
# Balancing can help only as far as NICs of one server have unlike loads, and stages only where
# servers do not all send each other the same. So look at both before anything else.

# %%
between = traffic.reshape(SERVERS, LOCAL, SERVERS, LOCAL).sum(axis=(1, 3))
np.fill_diagonal(between, 0)
crossing = np.kron(~np.eye(SERVERS, dtype=bool), np.ones((LOCAL, LOCAL), bool)) * traffic
loads = {"sends": crossing.sum(axis=1), "receives": crossing.sum(axis=0)}

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for shift, (way, rows) in enumerate(loads.items()):
    left.bar(np.arange(DEVICES) + 0.4 * shift, rows, width=0.4, label=way)
for server in range(1, SERVERS):
    left.axvline(server * LOCAL - 0.3, color="0.6", linestyle=":")
left.set(xlabel="device", ylabel="rows", title="as routed, over each device's NIC")
figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
right.imshow(between, cmap="viridis", vmin=0)
for i, j in np.argwhere(between):
    dark = between[i, j] < between.max() / 2
    colour = "white" if dark else "black"
    right.text(j, i, str(between[i, j]), ha="center", va="center", color=colour)
right.set(xlabel="to server", ylabel="from server", title="rows between servers")
right.set_xticks(range(SERVERS))
right.set_yticks(range(SERVERS))
plt.show()

busiest_nic = max(rows.max() for rows in loads.values())
busiest_server = max(between.sum(axis=0).max(), between.sum(axis=1).max())
to_gain = busiest_nic / (busiest_server / LOCAL)
print(f"the busiest NIC has {to_gain:.2f} times what balancing would leave it")

# %% [markdown]
# That number is the most that balancing can gain here: little. The uneven loads are those of
# servers, and rows for another server cannot go anywhere else.
#
# ## Time by scheduler
#
# On two presets, and on a fabric of one's own: PCIe inside servers, 200 Gb/s NICs. What senders
# lose that meet at a NIC is an assumption; each preset brings one.

# %%
KNOWN = {name: preset for name, preset in PRESETS.items() if not preset.guesses}
own = fastjax.Topology(SERVERS, LOCAL, scale_up_bandwidth=50e9, scale_out_bandwidth=25e9)
fabrics = {
    name: (preset.topology(SERVERS, devices_per_server=LOCAL), INCAST[preset.incast])
    for name, preset in KNOWN.items()
}
fabrics["own"] = (own, INCAST["roce"])


def simulated(traffic, topology, incast, row_bytes=ROW_BYTES, names=NAMES, **options):
    """A timeline for each scheduler."""
    return {
        name: fastjax.simulate(
            fastjax.make_plan(traffic, topology, scheduler=name, row_bytes=row_bytes),
            incast=incast,
            **options,
        )
        for name in names
    }


costs = {title: simulated(traffic, *fabric) for title, fabric in fabrics.items()}
figure, axes = plt.subplots(1, len(costs), figsize=(12, 3), layout="constrained")
for ax, (title, timelines) in zip(axes, costs.items(), strict=True):
    left_edge = np.zeros(len(NAMES))
    parts = [{"planning": t.planning_time, **t.limits()} for t in timelines.values()]
    for part in parts[0]:
        width = np.array([limits[part] for limits in parts]) * 1e3
        ax.barh(NAMES, width, left=left_edge, label=part)
        left_edge += width
    bound = timelines["fast"].lower_bound * 1e3
    ax.axvline(bound, color="black", linestyle="--")
    ax.set(title=title, xlabel="ms")
    ax.invert_yaxis()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()
for title, timelines in costs.items():
    for name, timeline in timelines.items():
        time, ratio = timeline.total_time * 1e3, timeline.total_time / timeline.lower_bound
        print(f"{title:8} {name:10} {time:7.3f} ms, {ratio:.2f} x the lower bound")
print(f"\n{costs['own']['fast']}")

# %% [markdown]
# Stages over time, on one device of three servers. Server 3 receives all the time; the others have
# time to spare, whoever plans.

# %%
costs["own"]["fast"].plot(devices=[0, 2, 6])

# %% [markdown]
# Nearly all of the time is that of the busiest NIC, close to the bound (dashed): no scheduler makes
# this traffic much faster on those servers than sending everything at once does. Only shifted pairs
# lose. The assertions keep these words true.

# %%
for timelines in costs.values():
    gain = timelines["direct"].total_time / timelines["fast"].total_time
    assert 1 < gain < 1.1 * to_gain
    assert timelines["spreadout"].total_time > 1.1 * timelines["fast"].total_time

# %% [markdown]
# ## How large must exchanges be?
#
# Stages cost start-ups. The same routing with smaller and larger rows: where exchanges are small,
# staging them loses, and there "auto" takes something else.

# %%
SIZES = 2.0 ** np.arange(3, 17)  # bytes of a row
figure, axes = plt.subplots(1, len(fabrics), figsize=(12, 3.2), sharey=True, layout="constrained")
a_device = traffic.sum() / DEVICES / 2**20
for ax, (title, (topology, incast)) in zip(axes, fabrics.items(), strict=True):
    runs = [simulated(traffic, topology, incast, int(size), (*NAMES, "auto")) for size in SIZES]
    for name in (*NAMES, "auto"):
        ratios = [run[name].total_time / run[name].lower_bound for run in runs]
        style = {"linewidth": 6, "color": "0.85", "zorder": 1} if name == "auto" else {}
        ax.plot(SIZES * a_device, ratios, label=name, **style)
    best = [min(NAMES, key=lambda name: run[name].total_time) for run in runs]
    regret = [run["auto"].total_time / run[b].total_time for run, b in zip(runs, best, strict=True)]
    print(f"{title}: best is {best[0]} when small, {best[-1]} when large;", end=" ")
    print(f"auto is {max(regret) - 1:.0%} from the best at most")
    assert best[0] == "direct"
    assert best[-1] in ("fast", "balanced")  # level where senders that meet lose little
    assert max(regret) < 1.2
    ax.set(title=title, xlabel="MiB a device", xscale="log", ylim=(0.9, 4))
axes[0].set_ylabel("time with planning / lower bound")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()

# %% [markdown]
# ## A larger cluster
#
# Eight servers of eight, and as uneven as the trace: expert popularity with the same Gini
# coefficient, by a log-normal law. That is an assumption too; take a trace of your own where
# there is one.

# %%
gini = fastjax.traffic.gini(matrices[worst].sum(axis=0))
large = fastjax.traffic.expert_popularity(64, 16384, popularity="lognormal", sigma=0.5)
print(
    f"Gini by expert: {gini:.2f} in the trace, {fastjax.traffic.gini(large.sum(axis=0)):.2f} here"
)
for name, preset in KNOWN.items():
    timelines = simulated(large, preset.topology(8), preset.incast)
    best = min(timelines.values(), key=lambda timeline: timeline.total_time)
    for other, timeline in timelines.items():
        print(f"{name:8} {other:10} {timeline.total_time * 1e3:7.3f} ms")
    gain = timelines["direct"].total_time / timelines["fast"].total_time
    print(f"{name}: {best.scheduler} is fastest; fast takes 1/{gain:.2f} of what direct does\n")
    assert gain > 1.2

# %% [markdown]
# Now there is something to gain: a popular expert makes one NIC busy, and seven others can help.
#
# ## Assumptions
#
# How much is lost where senders meet is the least certain figure, so ask for several. A core
# that is narrower than all NICs together holds up every scheduler, and there is less to gain.

# %%
preset = PRESETS["mi300x"]
topology = preset.topology(8)
losses = {
    "none": INCAST["none"],
    "infiniband": INCAST["infiniband"],
    "own": Incast("own", ((8, 0.9), (64, 0.7)), "a guess, to see what it changes"),
    "roce": INCAST["roce"],
}
cores = (1, 2, 4)
by_loss = {name: simulated(large, topology, loss) for name, loss in losses.items()}
by_core = {
    f"{core} : 1": simulated(large, topology, preset.incast, oversubscription=core)
    for core in cores
}
compared = {"by loss where senders meet": by_loss, "by oversubscription": by_core}
figure, axes = plt.subplots(1, 2, figsize=(11, 3.2), layout="constrained")
for ax, (title, runs) in zip(axes, compared.items(), strict=True):
    for number, name in enumerate(NAMES):
        times = [timelines[name].total_time * 1e3 for timelines in runs.values()]
        ax.bar(np.arange(len(runs)) + 0.2 * number, times, width=0.2, label=name)
    ax.set_xticks(np.arange(len(runs)) + 0.3, list(runs))
    ax.set(title=title, ylabel="ms")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()


def gain_of(timelines):
    """How many times as long sending at once takes as FAST."""
    return timelines["direct"].total_time / timelines["fast"].total_time


for runs in (by_loss, by_core):
    for name, timelines in runs.items():
        print(f"{name:10} direct / fast: {gain_of(timelines):.2f}")
gains = [gain_of(timelines) for timelines in by_core.values()]
assert gains == sorted(gains, reverse=True)

# %% [markdown]
# ## The decision

# %%
small = {title: gain_of(timelines) for title, timelines in costs.items()}
large_gains = [gain_of(timelines) for timelines in by_loss.values()]
print("Four servers of two, the trace itself:")
for title, gain in small.items():
    words = "not worth a thought" if gain < 1.1 else "worth it"
    print(f"  {title}: {gain - 1:.0%} more time without FAST, {words}")
print("Eight servers of eight, as uneven:")
low, high = min(large_gains), max(large_gains)
print(f"  {low:.2f} to {high:.2f} times the time without FAST, by what meeting senders lose;")
print(f"  {gains[-1]:.2f} times where the core is {cores[-1]} times too narrow")
assert max(small.values()) < 1.1
assert low > 1.3

# %% [markdown]
# So on those eight GPUs leave "auto" as it is, and expect nothing of it: their NICs have even loads
# already, and only small exchanges and shifted pairs can be got wrong. What would help there are
# faster NICs. On the larger cluster the scheduler does matter, under every assumption that was
# tried, and how much depends on them. Before money is spent on it, put in rates and losses that
# were measured there, and a trace of the model that is to run.
