"""Plays plans and says what is wrong with them; written without a look at how they are made."""

import numpy as np

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)
IN_PLACE = -1
UNWRITTEN, READ = -1, -2  # staging rows; others hold the number of a row of the exchange

HEADER_WORDS = 16
ENTRY_FIELDS = (
    "phase",
    "stage",
    "src",
    "dst",
    "origin",
    "target",
    "first_row",
    "rows",
    "src_row",
    "dst_row",
)
ENTRY_DTYPE = np.dtype([(field, "i4") for field in ENTRY_FIELDS])


class PlanError(AssertionError):
    """A plan does not do what it must."""


# What schedulers promise beyond delivery: the names of the checks below that their plans pass.
PROMISES = {
    "direct": (),
    "spreadout": ("one_to_one",),
    "rails": ("rails",),
    "balanced": ("rails", "balance"),
    "relay": ("rails", "own"),
    "fast": ("one_to_one", "balance", "shortest"),
}


def check_plan(plan, *, shortest=True):
    """Everything that can be asked of a plan, by its scheduler.

    Without `shortest`, stages may be longer than they need be: matchings may have run out. With it,
    the stages of a topology without latency are as short as can be, almost; otherwise some of that
    may have gone into having fewer of them.
    """
    n, m = plan.topology.servers, plan.topology.devices_per_server
    check_transfers(plan.traffic, n, m, plan.transfers, plan.num_stages)
    if plan.scheduler not in PROMISES:
        raise PlanError(f"plan_checker.PROMISES does not say what {plan.scheduler!r} promises")
    promises = PROMISES[plan.scheduler]
    nics = plan.topology.nic_bandwidths
    if "one_to_one" in promises:
        check_one_to_one(plan.transfers)
    if "rails" in promises:
        check_rails(n, m, plan.transfers, nics)
    if "own" in promises:
        check_own(plan.transfers)
    if "balance" in promises:
        check_balance(plan.traffic, n, m, plan.transfers, nics)
    if "shortest" in promises and shortest and len(set(nics or ())) <= 1:
        check_shortest(plan.traffic, n, m, plan.transfers, startup_rows=startup_rows(plan))


def check_transfers(traffic, n, m, transfers, num_stages):
    """Phases mean what they say, and played in order every row arrives once."""
    check_phases(n, m, transfers)
    check_stages(transfers, num_stages)
    replay(traffic, transfers)


def check_phases(n, m, transfers):
    """Each transfer joins devices that its phase may join."""
    for field in ("src", "dst", "origin", "target"):
        _refuse((transfers[field] < 0) | (transfers[field] >= n * m), transfers, "is of no device")
    src, dst, origin, target = (transfers[f] // m for f in ("src", "dst", "origin", "target"))
    within = src == dst
    starts = transfers["src"] == transfers["origin"]
    ends = transfers["dst"] == transfers["target"]
    moves = transfers["src"] != transfers["dst"]
    fits = [
        within & starts & ends & (transfers["stage"] == -1),
        within & starts & moves & (target != origin) & (transfers["stage"] >= 0),
        ~within & (src == origin) & (dst == target) & (transfers["stage"] >= 0),
        within & ends & moves & (target != origin) & (transfers["stage"] >= 0),
    ]
    for phase, fit in enumerate(fits):
        _refuse((transfers["phase"] == phase) & ~fit, transfers, f"does not fit phase {phase}")
    _refuse((transfers["phase"] < 0) | (transfers["phase"] > 3), transfers, "has no such phase")


def check_stages(transfers, num_stages):
    """Stages are 0 ... num_stages - 1, in order, each fed before it starts and drained after."""
    position = np.arange(len(transfers))
    spans = []
    for phase in (BALANCE, SCALE_OUT, REDISTRIBUTE):
        first = np.full(num_stages, len(transfers))
        last = np.full(num_stages, -1)
        chosen = transfers["phase"] == phase
        stage = transfers["stage"][chosen]
        if stage.size and stage.max() >= num_stages:
            raise PlanError(f"phase {phase} has stage {stage.max()} of {num_stages}")
        np.minimum.at(first, stage, position[chosen])
        np.maximum.at(last, stage, position[chosen])
        spans.append((first, last))
    (_, fed), (begins, ends), (drains, _) = spans
    for stage in range(num_stages):
        if ends[stage] < 0:
            raise PlanError(f"stage {stage} moves nothing between servers")
        if stage and begins[stage] < ends[stage - 1]:
            raise PlanError(f"stage {stage} begins before stage {stage - 1} ends")
        if fed[stage] > begins[stage]:
            raise PlanError(f"stage {stage} begins before it is balanced")
        if drains[stage] < ends[stage]:
            raise PlanError(f"stage {stage} is redistributed before it ends")


def replay(traffic, transfers):
    """Plays transfers in order.

    Rows that every transfer treats alike are one cell: as exact as single rows, for any counts.
    """
    devices = len(traffic)
    sizes = np.asarray(traffic, np.int64).ravel()
    ends = np.cumsum(sizes)
    starts = ends - sizes
    block = transfers["origin"].astype(np.int64) * devices + transfers["target"]
    begin = starts[block] + transfers["first_row"]
    end = begin + transfers["rows"]
    _refuse(transfers["rows"] <= 0, transfers, "moves no rows")
    _refuse((begin < starts[block]) | (end > ends[block]), transfers, "leaves its block")

    edges = np.unique(np.concatenate([[0], starts, ends, begin, end]))
    cell_block = np.searchsorted(ends, edges[:-1], side="right")
    place, target = np.divmod(cell_block, devices)
    delivered = np.zeros(len(place), bool)
    last_phase = np.full(len(place), -1)
    stage = np.full(len(place), -1)
    for i, (low, high) in enumerate(
        zip(np.searchsorted(edges, begin), np.searchsorted(edges, end), strict=True)
    ):
        move = transfers[i]
        cells = slice(low, high)
        if delivered[cells].any():
            raise PlanError(f"transfer {i} {move} moves rows that have arrived")
        if (place[cells] != move["src"]).any():
            raise PlanError(f"transfer {i} {move} moves rows that are on devices {place[cells]}")
        if (last_phase[cells] >= move["phase"]).any():
            raise PlanError(f"transfer {i} {move} repeats or goes back behind a phase")
        if (
            move["phase"] > BALANCE
            and ((last_phase[cells] >= BALANCE) & (stage[cells] != move["stage"])).any()
        ):
            raise PlanError(f"transfer {i} {move} goes on in another stage than {stage[cells]}")
        place[cells] = move["dst"]
        last_phase[cells] = move["phase"]
        stage[cells] = move["stage"]
        delivered[cells] = move["dst"] == target[cells]
    if not delivered.all():
        cell = int(np.argmin(delivered))
        origin, goal = divmod(int(cell_block[cell]), devices)
        raise PlanError(
            f"rows {edges[cell] - starts[cell_block[cell]]}... from {origin} to {goal} never arrive"
        )


def check_one_to_one(transfers):
    """In a stage a device sends to one device at most, and receives from one at most."""
    moves = transfers[transfers["phase"] == SCALE_OUT]
    pairs = np.unique(moves[["stage", "src", "dst"]])
    for end, word in (("src", "sends to"), ("dst", "receives from")):
        ways, count = np.unique(pairs[["stage", end]], return_counts=True)
        if (count > 1).any():
            stage, device = ways[np.argmax(count > 1)]
            raise PlanError(f"in stage {stage} device {device} {word} several devices")


def check_rails(n, m, transfers, nics=None):
    """Scale-out keeps its rail, and NICs that have failed carry nothing.

    Only where no rail has two working ends, all of a server pair's rows go from the fastest NIC of
    the one to the fastest of the other. `nics`: bytes/s of each, or None for equal ones.
    """
    rates = _nic_rates(n, m, nics)
    moves = transfers[transfers["phase"] == SCALE_OUT]
    source, target = moves["src"] // m, moves["dst"] // m
    shared = (np.minimum(rates[source], rates[target]) > 0).any(axis=1)
    _refuse(shared & (moves["src"] % m != moves["dst"] % m), moves, "leaves its rail")
    for end, server in (("src", source), ("dst", target)):
        rate = rates[server, moves[end] % m]
        _refuse(rate == 0, moves, f"uses a failed NIC ({end})")
        slower = rate < rates[server].max(axis=1, initial=0)
        _refuse(~shared & slower, moves, f"is not on the fastest NIC ({end})")


def check_own(transfers):
    """Rows cross over the NIC of the device that they come from, and are balanced nowhere."""
    if (transfers["phase"] == BALANCE).any():
        raise PlanError("rows are balanced")
    crossing = transfers[transfers["phase"] == SCALE_OUT]
    if (crossing["src"] != crossing["origin"]).any():
        raise PlanError("rows cross over another device's NIC")


def check_balance(traffic, n, m, transfers, nics=None):
    """Besides, every rail carries its share of each server pair's rows.

    Shares are equal, or in proportion to the slower of a rail's two NICs where they differ. A rail
    carries its share rounded down or up; where NICs differ it may be a whole row off.
    """
    check_rails(n, m, transfers, nics)
    moves = transfers[transfers["phase"] == SCALE_OUT]
    rows = np.zeros((n, n, m), np.int64)
    np.add.at(rows, (moves["src"] // m, moves["dst"] // m, moves["src"] % m), moves["rows"])
    tiles = server_matrix(traffic, n, m)
    rates = _nic_rates(n, m, nics)
    for s, d in np.argwhere(tiles > 0):
        slower = np.minimum(rates[s], rates[d])
        if not (slower > 0).any():
            continue
        if not _shares_fit(rows[s, d].tolist(), int(tiles[s, d]), slower.tolist()):
            raise PlanError(
                f"rails from server {s} to {d} carry {rows[s, d]} of {tiles[s, d]} "
                f"with NICs of {slower}"
            )


def _nic_rates(n, m, nics):
    """By server and local index: integers, since shares are compared exactly."""
    rates = [1] * (n * m) if nics is None else [int(rate) for rate in nics]
    return np.array(rates, object).reshape(n, m)


def _shares_fit(rows, total, rates):
    """Exactly, in integers of any size."""
    off = [abs(r * sum(rates) - total * rate) for r, rate in zip(rows, rates, strict=True)]
    equal = len(set(rates)) == 1
    return all(
        o < sum(rates) or (o == sum(rates) and not equal and rate > 0)
        for o, rate in zip(off, rates, strict=True)
    )


def check_shortest(traffic, n, m, transfers, *, startup_rows=0):
    """Stages are together about as short as can be: as long as the busiest server's rail is busy.

    One part in 127 longer, to be exact. Where a stage costs something, `startup_rows`, stages and
    length together are no more than those of the shortest stages, of which n * n + n will do.
    """
    per_rail = -(-server_matrix(traffic, n, m) // m)
    busiest = max(per_rail.sum(0).max(), per_rail.sum(1).max())
    length = sum(stage_lengths(transfers, n * m))
    least = busiest + startup_rows * (n * n + n)
    if not busiest <= length <= least * 128 / 127:
        raise PlanError(f"stages are {length} rows long, where {busiest} would do")


def startup_rows(plan):
    """Rows that a NIC moves in the time that a stage takes to start."""
    topology = plan.topology
    return topology.scale_out_latency * topology.scale_out_bandwidth / plan.row_bytes


def stage_lengths(transfers, devices):
    """Rows of the busiest sender in each scale-out stage."""
    moves = transfers[transfers["phase"] == SCALE_OUT]
    sent = np.zeros((int(moves["stage"].max(initial=-1)) + 1, devices), np.int64)
    np.add.at(sent, (moves["stage"], moves["src"]), moves["rows"])
    return sent.max(axis=1).tolist()


def server_matrix(traffic, n, m):
    """Rows that servers send to each other; nothing on the diagonal."""
    tiles = np.asarray(traffic, np.int64).reshape(n, m, n, m).sum(axis=(1, 3))
    np.fill_diagonal(tiles, 0)
    return tiles


def transposed(transfers, num_stages):
    """The same plan read backwards: that of the transposed traffic."""
    back = transfers[::-1].copy()
    pairs = [("src", "dst"), ("origin", "target")]
    if "src_row" in back.dtype.names:
        pairs.append(("src_row", "dst_row"))
    for one, other in pairs:
        back[one], back[other] = back[other].copy(), back[one].copy()
    ahead, behind = back["phase"] == BALANCE, back["phase"] == REDISTRIBUTE
    back["phase"][ahead], back["phase"][behind] = REDISTRIBUTE, BALANCE
    staged = back["phase"] != LOCAL
    back["stage"][staged] = num_stages - 1 - back["stage"][staged]
    return back


def decode_table(words):
    """A stage table's header, rows sent to and received from each device, and entries."""
    header = words[:HEADER_WORDS]
    devices, entries = int(header[1]), int(header[3])
    begin = HEADER_WORDS + 2 * devices
    sends, receives = words[HEADER_WORDS:begin].reshape(2, devices)
    body = words[begin : begin + entries * len(ENTRY_FIELDS)]
    return header, sends, receives, body.view(ENTRY_DTYPE)


def of_device(transfers, device):
    """Those that a device takes part in."""
    return transfers[(transfers["src"] == device) | (transfers["dst"] == device)]


def join_tables(transfers, tables):
    """All transfers with their staging rows, on which sender and receiver must agree."""
    left = [iter(decode_table(words)[3]) for words in tables]
    joined = np.zeros(len(transfers), ENTRY_DTYPE)
    for i, move in enumerate(transfers):
        ends = {int(move["src"]), int(move["dst"])}
        entries = [next(left[device], None) for device in sorted(ends)]
        if entries[0] is None or any(entry != entries[0] for entry in entries):
            raise PlanError(f"transfer {i} {move} is {entries} in the tables of {sorted(ends)}")
        joined[i] = entries[0]
        if any(joined[i][field] != move[field] for field in transfers.dtype.names):
            raise PlanError(f"transfer {i} {move} is {joined[i]} in the tables of {sorted(ends)}")
    for device, rest in enumerate(left):
        if next(rest, None) is not None:
            raise PlanError(f"the table of {device} has more entries than the plan")
    return joined


def replay_staging(traffic, entries, staging_rows):
    """Plays table entries on real buffers, one number for each row of the exchange."""
    devices = len(traffic)
    sizes = np.asarray(traffic, np.int64).ravel()
    starts = np.cumsum(sizes) - sizes
    staging = [np.full(int(rows), UNWRITTEN) for rows in staging_rows]
    arrived = np.zeros(int(sizes.sum()), int)
    for i, move in enumerate(entries):
        first = starts[int(move["origin"]) * devices + int(move["target"])] + move["first_row"]
        rows = np.arange(first, first + move["rows"])
        if move["src_row"] != IN_PLACE:
            _take_staged(staging, i, move, rows)
        elif move["src"] != move["origin"]:
            raise PlanError(f"entry {i} {move} reads an operand that is not the origin's")
        if move["dst_row"] != IN_PLACE:
            _put_staged(staging, i, move, rows)
        elif move["dst"] == move["target"]:
            arrived[rows] += 1
        else:
            raise PlanError(f"entry {i} {move} writes an output that is not the target's")
    if (arrived != 1).any():
        raise PlanError(f"rows arrive {np.unique(arrived)} times")
    for device, rows in enumerate(staging):
        if (rows >= 0).any():
            raise PlanError(f"rows {rows[rows >= 0]} stay in the staging of device {device}")


def _take_staged(staging, i, move, rows):
    held = _staging_slice(staging, i, move, "src")
    if not np.array_equal(held, rows):
        raise PlanError(f"entry {i} {move} reads {held} from staging, wants {rows}")
    held[:] = READ


def _put_staged(staging, i, move, rows):
    room = _staging_slice(staging, i, move, "dst")
    if (room != UNWRITTEN).any():
        raise PlanError(f"entry {i} {move} writes over staged rows {room}")
    room[:] = rows


def _staging_slice(staging, i, move, end):
    first, device = int(move[f"{end}_row"]), int(move[end])
    if first < 0 or first + move["rows"] > len(staging[device]):
        raise PlanError(f"entry {i} {move} is outside {len(staging[device])} staging rows")
    return staging[device][first : first + move["rows"]]


def _refuse(wrong, transfers, why):
    if wrong.any():
        i = int(np.argmax(wrong))
        raise PlanError(f"transfer {i} {transfers[i]} {why}")
