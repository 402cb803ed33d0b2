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
# # How it works, in code
#
# Two exchanges that are small enough to follow row by row. A row takes a second through a NIC,
# starting takes no time, and nothing is lost where senders meet, so that all there is to see is the
# order. The plans are fastjax's own, and so are the times: they are simulated.

# %%
import matplotlib.pyplot as plt
import numpy as np

from fastjax import Topology, make_plan, simulate

NO_START_UPS = {
    "scale_up_latency": 0,
    "scale_out_latency": 0,
    "transfer_overhead": 0,
    "incast_loss": 0,
}
COLOURS = plt.get_cmap("Set2").colors  # of servers
STAGE_COLOURS = plt.get_cmap("Set3").colors[3:]


def numbers(ax, matrix, colours=None, grey=None, place=0.5):
    """A grid with the numbers of a matrix; cells have the colours given, or none."""
    rows, columns = matrix.shape
    for i, j in np.ndindex(rows, columns):
        face = "white" if grey is None or not grey[i, j] else "0.9"
        if colours is not None and matrix[i, j]:
            face = colours[i, j]
        ax.add_patch(plt.Rectangle((j, i), 1, 1, facecolor=face, edgecolor="0.7"))
        if matrix[i, j]:
            ax.text(j + place, i + 0.5, str(matrix[i, j]), ha="center", va="center")
    ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    ax.set_xticks(np.arange(columns) + 0.5, range(columns))
    ax.set_yticks(np.arange(rows) + 0.5, range(rows))
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")


def sums(ax, matrix):
    """The sum of each line of the grid, beside it; the largest in red."""
    most = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    bold = lambda total: {"color": "tab:red", "weight": "bold"} if total == most else {}  # noqa: E731
    for i, total in enumerate(matrix.sum(axis=1)):
        ax.text(matrix.shape[1] + 0.3, i + 0.5, str(total), va="center", **bold(total))
    for j, total in enumerate(matrix.sum(axis=0)):
        ax.text(j + 0.5, matrix.shape[0] + 0.3, str(total), ha="center", va="center", **bold(total))


# %% [markdown]
# ## Four servers: who sends to whom, and when
#
# Servers of one device. Server 1 is to receive 9 rows, over one NIC: nothing is faster than 9 s.

# %%
traffic = np.array([[0, 3, 3, 2], [0, 0, 1, 1], [2, 6, 0, 0], [6, 0, 2, 0]])
topology = Topology(4, 1, scale_up_bandwidth=9, scale_out_bandwidth=1, **NO_START_UPS)
plan = make_plan(traffic, topology, scheduler="fast", row_bytes=1)
busiest = max(traffic.sum(axis=0).max(), traffic.sum(axis=1).max())
assert plan.lower_bound() == busiest == 9


def stages_of(plan):
    """Rows from server to server in each stage, and how many the longest of them are."""
    devices = plan.topology.num_devices
    stages = np.zeros((plan.num_stages, devices, devices), int)
    out = plan.transfers[plan.transfers["phase"] == 2]
    np.add.at(stages, (out["stage"], out["src"], out["dst"]), out["rows"])
    for stage in stages:
        assert (np.count_nonzero(stage, axis=0) <= 1).all()  # nobody receives from two
        assert (np.count_nonzero(stage, axis=1) <= 1).all()  # nobody sends to two
    return stages, stages.max(axis=(1, 2))


def draw_stages(plan):
    """The matrix, and the part of each stage."""
    stages, lengths = stages_of(plan)
    assert (stages.sum(axis=0) == plan.traffic).all()
    figure, axes = plt.subplots(1, len(stages) + 1, figsize=(12, 3), layout="constrained")
    numbers(axes[0], plan.traffic)
    sums(axes[0], plan.traffic)
    axes[0].set(ylabel="from server", title="rows, and their sums")
    for number, (ax, stage) in enumerate(zip(axes[1:], stages, strict=True)):
        colours = np.full((*stage.shape, 3), STAGE_COLOURS[number])
        numbers(ax, stage, colours, grey=plan.traffic > 0)
        ax.set_title(f"stage {number}: {lengths[number]} s")
    for ax in axes:
        ax.set_xlabel("to server")
    figure.suptitle(f"{plan.scheduler}: {' + '.join(map(str, lengths))} = {lengths.sum()} s")
    plt.show()
    return lengths


lengths = draw_stages(plan)
assert sorted(lengths) == [2, 3, 4]
assert (stages_of(plan)[0][:, :, 1].sum(axis=1) == lengths).all()  # server 1 is never idle
assert lengths.sum() == 9

# %% [markdown]
# A stage is a permutation: a server sends to one other at most, and receives from one. Server 1
# receives in every stage, and all the time: a stage is as long as its rows for server 1, so the
# stages take 9 s together, the least possible. Others have less to do and can wait; their rows fill
# what time there is. That such stages exist for any traffic is the theorem of Birkhoff and von
# Neumann.
#
# The usual way is shifted pairs: server i sends to i + 1, then to i + 2, then to i + 3. Those are
# permutations too, but nobody looked at the rows: in each, all wait for the largest block.

# %%
pairs = make_plan(traffic, topology, scheduler="spreadout", row_bytes=1)
lengths = draw_stages(pairs)
assert lengths.sum() == 15

# %% [markdown]
# ## The same on a clock
#
# Rows that each NIC sends: a bar has the colour of the receiving server, and where
# there is none, the NIC idles. Stages that wait for each other everywhere (`barrier`) take what
# was added up above. With `credit`, a server goes on as soon as it has sent and its next receiver
# has received, which helps shifted pairs a little. "direct" sends all at once: NICs share
# their rate, and one that has sent its small blocks is left alone with the large one.


# %%
def draw_clock(timelines):
    """Messages between servers on a clock: a lane for what each NIC sends."""
    devices = next(iter(timelines.values())).topology.num_devices
    size = (11, (0.5 * devices + 0.4) * len(timelines))
    _, axes = plt.subplots(len(timelines), 1, figsize=size, sharex=True, layout="constrained")
    longest = max(timeline.completion_time for timeline in timelines.values())
    for ax, (title, timeline) in zip(axes, timelines.items(), strict=True):
        messages = timeline.messages[timeline.messages["phase"] == 2]
        local = timeline.topology.devices_per_server
        for device in range(devices):
            ax.barh(device, longest, height=0.8, color="0.95")
            mine = np.sort(messages[messages["src"] == device], order=["start", "end"])
            alone = bool((mine["start"][1:] >= mine["end"][:-1] - 1e-9).all())
            for place, message in enumerate(mine):
                height = 0.8 if alone else 0.8 / len(mine)
                y = device if alone else device - 0.4 + height * (place + 0.5)
                width = message["end"] - message["start"]
                colour = COLOURS[message["dst"] // local]
                ax.barh(y, width, height, message["start"], color=colour, edgecolor="white")
                text, middle = f"{message['rows']} → {message['dst']}", message["start"] + width / 2
                ax.text(middle, y, text, ha="center", va="center", fontsize=8 if alone else 6)
        end = timeline.completion_time
        ax.axvline(end, color="tab:red", linewidth=1)
        ax.set(title=f"{title}: {end:.4g} s", ylim=(devices - 0.5, -0.5), ylabel="NIC of device")
        ax.set_yticks(range(devices))
    axes[-1].set(xlabel="s", xlim=(0, longest * 1.01))
    plt.show()


timelines = {
    "fast, by barrier": simulate(plan, synchronization="barrier"),
    "shifted pairs, by barrier": simulate(pairs, synchronization="barrier"),
    "shifted pairs, by credit": simulate(pairs, synchronization="credit"),
    "direct": simulate(make_plan(traffic, topology, scheduler="direct", row_bytes=1)),
}
times = [timeline.completion_time for timeline in timelines.values()]
np.testing.assert_allclose(times[:3], [9, 15, 14])
assert 9 < times[3] < 10
draw_clock(timelines)

# %% [markdown]
# "direct" comes close here, because this fabric loses nothing where senders meet. The loss of real
# ones is an assumption of every simulation: `incast=` of `fastjax.simulate`.

# %% [markdown]
# ## Three servers of two devices: balance first
#
# Now servers have two NICs each. As routed, device 4 has 10 rows for other servers, and its
# neighbour only 6: with nothing done about it, the exchange takes 10 s. Both together have 16, so
# that with both NICs as busy it could be over after 8. Inside a server, rows move nine times as
# fast.

# %%
SERVERS, LOCAL = 3, 2
traffic = np.array(
    [
        [0, 0, 0, 0, 1, 3],
        [0, 0, 0, 0, 4, 2],
        [5, 0, 0, 0, 0, 0],
        [0, 3, 0, 0, 0, 2],
        [5, 0, 0, 5, 0, 0],
        [0, 1, 1, 4, 0, 0],
    ]
)
topology = Topology(SERVERS, LOCAL, scale_up_bandwidth=9, scale_out_bandwidth=1, **NO_START_UPS)
plan = make_plan(traffic, topology, scheduler="fast", row_bytes=1)
tiles = traffic.reshape(SERVERS, LOCAL, SERVERS, LOCAL).sum(axis=(1, 3))
as_routed = Topology(SERVERS * LOCAL, 1, scale_out_bandwidth=1, **NO_START_UPS)
assert make_plan(traffic, as_routed, row_bytes=1).lower_bound() == 10
assert plan.lower_bound() == 8

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
sender_colours = np.array([[COLOURS[i // LOCAL]] * 6 for i in range(6)])
numbers(left, traffic, sender_colours)
sums(left, traffic)
left.set(xlabel="to device", ylabel="from device", title="devices: the busiest has 10")
numbers(right, tiles, sender_colours[::LOCAL, :SERVERS])
sums(right, tiles)
right.set(xlabel="to server", ylabel="from server", title="servers: the busiest has 16, 8 a NIC")
for line in (2, 4):
    left.axhline(line, color="black")
    left.axvline(line, color="black")
plt.show()

# %% [markdown]
# ### Moves inside servers
#
# For each other server, the two NICs of a server are to have equally much. The plan moves as few
# rows as does it, here 5: the arrows on the left are its transfers inside servers, before rows
# cross. In the same way, NICs receive equally much from each other server, and rows that arrive at
# the neighbour of their target are handed on: the arrows on the right.

# %%
transfers = plan.transfers
balance, crossing, handed_on = (transfers[transfers["phase"] == phase] for phase in (1, 2, 3))


def by_server(device, server, rows):
    """Rows that each device's NIC moves to or from each other server."""
    moved = np.zeros((SERVERS * LOCAL, SERVERS), int)
    np.add.at(moved, (device, server), rows)
    return moved


def arrows(ax, moved, column):
    """An arrow from row to row of the grid for what moves between devices of a server."""
    ends = np.stack([moved["src"], moved["dst"], column])
    ends, which = np.unique(ends, axis=1, return_inverse=True)
    rows = np.bincount(which.ravel(), moved["rows"]).astype(int)
    style = {"arrowstyle": "-|>", "color": "tab:red", "connectionstyle": "arc3,rad=0.3"}
    for (src, dst, j), count in zip(ends.T, rows, strict=True):
        ax.annotate("", (j + 0.68, dst + 0.6), (j + 0.68, src + 0.4), arrowprops=style)
        x = j + (0.53 if dst > src else 0.83)  # where the arc is
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        y = (src + dst + 1) / 2
        ax.text(x, y, str(count), color="tab:red", va="center", ha="center", fontsize=8, bbox=white)


i, j = np.nonzero(traffic)
rows = traffic[i, j]
out = crossing["src"] != crossing["dst"]
assert out.all()
pictures = {
    "to send, as routed": by_server(i, j // LOCAL, rows),
    "to send, balanced": by_server(crossing["src"], crossing["dst"] // LOCAL, crossing["rows"]),
    "arriving, balanced": by_server(crossing["dst"], crossing["src"] // LOCAL, crossing["rows"]),
    "arriving, as routed": by_server(j, i // LOCAL, rows),
}
even = np.ptp(pictures["to send, balanced"].reshape(SERVERS, LOCAL, SERVERS), axis=1)
assert (even == 0).all()
assert balance["rows"].sum() == 5
assert pictures["to send, balanced"].sum(axis=1).max() == 8
assert pictures["to send, as routed"].sum(axis=1).max() == 10

figure, axes = plt.subplots(1, 4, figsize=(12, 5), layout="constrained")
for ax, (title, moved) in zip(axes, pictures.items(), strict=True):
    numbers(ax, moved, sender_colours[:, :SERVERS], place=0.25)
    for device, total in enumerate(moved.sum(axis=1)):
        ax.text(SERVERS + 0.2, device + 0.5, str(total), va="center", color="0.3")
    ax.axhline(2, color="black")
    ax.axhline(4, color="black")
    to = "to" if title.startswith("to") else "from"
    ax.set(title=title, xlabel=f"{to} server", ylabel="NIC of device")
arrows(axes[0], balance, balance["target"] // LOCAL)
arrows(axes[2], handed_on, handed_on["origin"] // LOCAL)
plt.show()

# %% [markdown]
# ### Stages of servers
#
# The rows of each rail are now a matrix of three servers, and is staged like that of four servers
# above: who sends to whom is the same for both rails, from device 0 of a server to device 0 of the
# other, and from 1 to 1. Stages are cut into pieces, so that balancing for one and
# handing on after another happen while NICs work.

# %%
targets, weights = plan.matchings
rails = tiles // LOCAL
assert weights.sum() == plan.lower_bound() == 8
figure, axes = plt.subplots(1, len(weights) + 1, figsize=(9, 3), layout="constrained")
numbers(axes[0], rails)
sums(axes[0], rails)
axes[0].set(title="rows of each rail", xlabel="to server", ylabel="from server")
left_over = rails.copy()
for number, (ax, target, weight) in enumerate(zip(axes[1:], targets, weights, strict=True)):
    matching = np.zeros_like(rails)
    for source in range(SERVERS):
        if target[source] >= 0:
            matching[source, target[source]] = min(weight, left_over[source, target[source]])
    left_over -= matching
    numbers(ax, matching, np.full((*matching.shape, 3), STAGE_COLOURS[number]), grey=rails > 0)
    ax.set(title=f"matching {number}: {weight} s", xlabel="to server")
assert not left_over.any()
plt.show()
print(f"{len(weights)} matchings, cut into {plan.num_stages} stages")

# %% [markdown]
# ### On a clock
#
# The NICs of the busiest server never wait: 8 s instead of 10. Moves inside servers
# happen meanwhile, and none is left before the first stage or after the last.

# %%
timelines = {
    "fast": simulate(plan),
    "direct": simulate(make_plan(traffic, topology, scheduler="direct", row_bytes=1)),
}
np.testing.assert_allclose([t.completion_time for t in timelines.values()], [8, 10])
limits = timelines["fast"].limits()
np.testing.assert_allclose([limits["before"], limits["waiting"], limits["after"]], 0, atol=1e-9)
draw_clock(timelines)

# %% [markdown]
# In this small example everything fits. With real sizes starting takes time, some of the first
# balance and the last redistribution is left to be seen, and shares that do not divide make stages
# a row longer. Notebook [05](05_your_cluster.ipynb) simulates a cluster, and
# [stages](../docs/design/stages.md) has the guarantees.
