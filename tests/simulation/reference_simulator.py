"""Plans simulated the slow way: row by row, and all rates anew at every event.

Written from what `fastjax.simulate` promises, without a look at how it is done.
"""

import collections
import math

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)
FIRST_SERVED = {BALANCE: 0, SCALE_OUT: 0, REDISTRIBUTE: 1, LOCAL: 2}


class Message:
    """What a device sends to another in one phase of one stage, or a piece of it."""

    def __init__(self, phase, stage, piece, src, dst):
        self.phase, self.stage, self.piece, self.src, self.dst = phase, stage, piece, src, dst
        self.rows = []  # (origin, target, row)
        self.waits_for = []
        self.before = None  # what flows before it, start-up or not
        self.start_up = 0.0
        self.start = self.end = None
        self.left = self.rate = 0.0

    @property
    def links(self):
        tier = "nic" if self.phase == SCALE_OUT else "fabric"
        links = [(tier, "out", self.src), (tier, "in", self.dst)]
        return [*links, "core"] if self.phase == SCALE_OUT else links


def gather(transfers, in_pieces):
    """Messages by what they are of, rows in them."""
    moving = [t for t in transfers if t["src"] != t["dst"] and t["rows"] > 0]
    at_once = max((int(t["stage"]) for t in transfers), default=-1) < 1
    pieces = in_pieces if at_once and any(t["src"] != t["origin"] for t in moving) else 1
    messages, posted = {}, []
    for t in moving:
        # As even as can be, longer pieces first.
        rows, first = int(t["rows"]), int(t["first_row"])
        sizes = [rows // pieces + (piece < rows % pieces) for piece in range(pieces)]
        for piece, size in enumerate(sizes):
            key = tuple(int(t[name]) for name in ("phase", "stage", "src", "dst"))
            if not size:
                continue
            message = messages.setdefault((*key, piece), Message(*key[:2], piece, *key[2:]))
            block = (int(t["origin"]), int(t["target"]))
            message.rows += [(*block, first + k) for k in range(size)]
            first += size
            if message not in posted:
                posted.append(message)
    return list(messages.values()), posted, at_once


def await_rows(messages):
    """Rows are sent on when they have come."""
    brings = {}
    for message in messages:
        for row in message.rows:
            brings[message.dst, row] = message
    for message in messages:
        came = {brings[message.src, row] for row in message.rows if row[0] != message.src}
        message.waits_for += came


def keep_in_step(messages, synchronization):
    """Stages follow each other."""
    for message in messages:
        earlier = [m for m in messages if m.phase == message.phase and m.stage < message.stage]
        own = [m for m in earlier if m.src == message.src]
        last_of_own = max((m.stage for m in own), default=None)
        if message.phase == BALANCE:
            message.waits_for += [m for m in own if m.stage == last_of_own]
        if message.phase != SCALE_OUT:
            continue
        if synchronization == "barrier":
            message.waits_for += earlier
            continue
        if synchronization == "window":
            in_window(message, earlier)
            continue
        message.waits_for += [m for m in own if m.stage == last_of_own]
        if synchronization == "credit":
            theirs = [m for m in earlier if m.dst == message.dst]
            last = max((m.stage for m in theirs), default=None)
            message.waits_for += [m for m in theirs if m.stage == last]


def in_window(message, earlier):
    """Four stages of a device are in flight; between two devices, one message after another."""
    for end in ("src", "dst"):
        own = [m for m in earlier if getattr(m, end) == getattr(message, end)]
        stages = sorted({m.stage for m in own})
        if len(stages) >= 4:
            message.waits_for += [m for m in own if m.stage == stages[-4]]
    pair = [m for m in earlier if (m.src, m.dst) == (message.src, message.dst)]
    if pair:
        message.before = max(pair, key=lambda m: m.stage)


def follow_pieces(messages):
    """Pieces follow each other, without start-ups."""
    for message in messages:
        if message.piece:
            link = (message.phase, message.src, message.dst)
            before = [
                m for m in messages if (m.phase, m.src, m.dst) == link and m.piece < message.piece
            ]
            message.waits_for.append(max(before, key=lambda m: m.piece))
            message.start_up = 0.0


def post(posted, overhead):
    """A device posts what it sends in a stage one by one."""
    count = collections.Counter()
    for message in posted:
        if message.phase == SCALE_OUT and not message.piece:
            message.start_up += overhead * count[message.src, message.stage]
            count[message.src, message.stage] += 1


def between(efficiency, senders):
    """That of so many senders, of which one may be there in part."""
    whole = max(1, int(senders))
    part = max(0.0, senders - whole)
    return efficiency(whole) * (1 - part) + efficiency(whole + 1) * part


def capacity(link, senders, topology, fabric):
    if link == "core":
        nics = topology.nic_bandwidths or [topology.scale_out_bandwidth] * topology.num_devices
        return sum(nics) / fabric.oversubscription if fabric.oversubscription > 1 else math.inf
    tier, way, device = link
    if tier == "fabric":
        return topology.scale_up_bandwidth
    rate = (topology.nic_bandwidths or {}) and topology.nic_bandwidths[device]
    rate = rate or topology.scale_out_bandwidth
    return rate * (between(fabric.incast.efficiency, senders) if way == "in" else 1.0)


def count_senders(flowing, literally):
    """How many meet at each link: by what they can send, or each as one."""
    if literally:
        met = {(m.src, link) for m in flowing for link in m.links}
        return collections.Counter(link for _, link in met)
    users = collections.Counter(m.links[0] for m in flowing)
    senders = collections.Counter()
    for message in flowing:
        for link in message.links:
            senders[link] += 1 / users[message.links[0]]
    return senders


def share(flowing, topology, fabric):
    """Everybody's rate is raised together until a link is full; those on it stay as they are."""
    senders = count_senders(flowing, fabric.incast.count == "senders")
    left = {link: capacity(link, worth, topology, fabric) for link, worth in senders.items()}
    for served in range(3):
        rising = {m for m in flowing if FIRST_SERVED[m.phase] == served}
        for message in rising:
            message.rate = 0.0
        while rising:
            count = collections.Counter(link for m in rising for link in m.links)
            step = min(left[link] / count[link] for link in count)
            full = {link for link in count if left[link] / count[link] <= step * (1 + 1e-12)}
            for message in rising:
                message.rate += step
            for link in count:
                left[link] = 0.0 if link in full else left[link] - step * count[link]
            rising = {m for m in rising if not full.intersection(m.links)}


def simulate(
    plan,
    fabric,
    pieces=1,
):
    """When each message starts and ends, by phase, stage, piece, src and dst."""
    topology = plan.topology
    messages, posted, at_once = gather(plan.transfers, pieces)
    for message in messages:
        out = message.phase == SCALE_OUT
        message.start_up = topology.scale_out_latency if out else topology.scale_up_latency
        message.left = float(len(message.rows) * plan.row_bytes)
    await_rows(messages)
    if at_once:
        follow_pieces(messages)
    else:
        keep_in_step(messages, fabric.synchronization)
    post(posted, topology.transfer_overhead)
    _run(messages, lambda flowing: share(flowing, topology, fabric))
    return {(m.phase, m.stage, m.piece, m.src, m.dst): (m.start, m.end) for m in messages}


def _run(messages, find_rates):
    now, flowing, waiting = 0.0, [], list(messages)
    while waiting or flowing:
        begins = {
            m: max(
                max((w.end for w in m.waits_for), default=0.0) + m.start_up,
                m.before.end if m.before else 0.0,
            )
            for m in waiting
            if all(w.end is not None for w in (*m.waits_for, *filter(None, [m.before])))
        }
        find_rates(flowing)
        ends = {m: now + m.left / m.rate for m in flowing if m.rate > 0}
        then = min([*begins.values(), *ends.values()])
        for message in flowing:
            message.left -= message.rate * (then - now)
        for message in [m for m in ends if ends[m] <= then * (1 + 1e-12)]:
            message.end = then
            flowing.remove(message)
        for message in [m for m in begins if begins[m] <= then]:
            message.start = then
            flowing.append(message)
            waiting.remove(message)
        now = then
