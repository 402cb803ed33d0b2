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
# # Benchmark
#
# `python -m fastjax bench` as a library: measure, then plot. Sizes are small, so that this runs
# in seconds; the command's defaults are eight times larger, and its recorded results are in
# `benchmarks/results`.

# %%
import argparse

import matplotlib.pyplot as plt
import numpy as np

import fastjax
from fastjax.cli.bench import command as bench
from fastjax.cli.bench.device_workload import start_backend

SMALL = ["--rows", "512", "--rounds", "10", "--latency-rounds", "50"]
parser = argparse.ArgumentParser()
bench.add_options(parser)
options = parser.parse_args(SMALL)
start_backend(options.devices)
record = bench.measured(options)
assert bench.count_wrong(record) == 0

# %% [markdown]
# ## Exchanges on this machine
#
# All devices are in one process, so their "servers" are a figure of speech: a row costs the same
# wherever it goes, and `fast` cannot gain anything. The figure shows the cost of an exchange, of a
# plain copy of the same bytes, and of the exchanges that JAX has without fastjax.

# %%
entries = [e for e in record["schemes"] if e["scheme"] != "auto"]
labels = [f"{e['scheme']} {e['servers']}".removesuffix(" -") for e in entries]
middle = np.array([e["median_ms"] for e in entries])
spread = np.array([[e["median_ms"] - e["p25_ms"], e["p75_ms"] - e["median_ms"]] for e in entries])
is_ours = np.array(["plan" in e for e in entries])

plt.figure(figsize=(7, 4))
for ours, colour, name in ((True, "tab:blue", "fastjax"), (False, "tab:gray", "others")):
    at = np.flatnonzero(is_ours == ours)
    look = {"fmt": "o", "color": colour, "label": name}
    plt.errorbar(middle[at], at, xerr=spread[at].T, **look)
plt.yticks(range(len(labels)), labels)
plt.gca().invert_yaxis()
plt.grid(axis="x", alpha=0.4)
plt.xscale("log")
plt.xlabel("ms, median and quartiles")
plt.title("One exchange, planning included")
plt.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.tight_layout()
plt.show()

for entry in record["schemes"]:
    assert entry["wrong"] in (0, None)
    print(f"{entry['scheme']:12} {entry['servers']:4} {entry['median_ms']:8.2f} ms")

# %% [markdown]
# ## An exchange of a few rows

# %%
for entry in record["latency"]:
    print(f"{entry['name']:30} {entry['median_ms'] * 1e3:6.0f} µs  {entry['by_empty']:.2f}")

# %% [markdown]
# ## The value of plans on a fabric
#
# `make_plan` predicts the time of a schedule on a fabric with fast links inside servers and one
# slower NIC for each device: here 450 and 50 GB/s. No schedule can beat 1. `auto` also
# looks at the schedulers that it does not take, for [some
# microseconds](../benchmarks/results/plan_time.md).

# %%
SERVERS, DEVICES, ROW_BYTES = 4, 8, 4096
topology = fastjax.Topology(SERVERS, DEVICES)
alphas = np.linspace(0, 1.2, 7)
names = ["auto", "fast", "balanced", "relay", "rails", "spreadout", "direct"]
predicted = {name: [] for name in names}
for alpha in alphas:
    matrix = fastjax.traffic.pair_zipf(SERVERS * DEVICES, 32768, exponent=alpha)
    for name in names:
        plan = fastjax.make_plan(matrix, topology, scheduler=name, row_bytes=ROW_BYTES)
        predicted[name].append(plan.predicted_time() / plan.lower_bound())

MARKERS = dict(zip(names, " osD^vx", strict=True))  # hollow: curves that coincide all show
for name in names:
    wide = {"linewidth": 7, "color": "0.85"} if name == "auto" else {}
    plt.plot(alphas, predicted[name], marker=MARKERS[name], mfc="none", label=name, **wide)
plt.axhline(1, color="black", lw=0.5)
plt.ylim(bottom=0)
plt.xlabel("skew: exponent of Zipf's law over pairs of devices")
plt.ylabel("predicted time ÷ lower bound")
plt.title(f"{SERVERS} servers of {DEVICES} devices, 128 MiB a device")
plt.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.tight_layout()
plt.show()

assert min(min(p) for p in predicted.values()) >= 1
for name in names:
    assert (np.array(predicted["auto"]) <= np.array(predicted[name]) * 1.01).all()
