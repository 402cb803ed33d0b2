"""Layers have the same bits however their devices are spread over processes and servers."""

import dataclasses
import functools
import hashlib

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
from exchange_checks.backends import spread
from moe_layers import DEVICES, EXPERTS, TOP_K, dense, ids_of, on_devices, same
from spmd import mesh_of

import fastjax
from fastjax import moe
from fastjax.moe.arrangement import Options, balance_of
from fastjax.traced import levelling

# XLA multiplies matrices of fewer rows than 64, and sums fewer than some 4,000 numbers, by other
# routines, with other bits: here each chunk has room for a tile of 180 rows, and as many numbers.
TOKENS, WIDTH, HIDDEN, COPIES = 192, 32, 5, 4
PLACES = (1, False), (2, False), (4, False), (2, True), (4, True)
CHUNKS = 1, 2, 4
SCHEDULERS = "fast", "spreadout"


@dataclasses.dataclass(frozen=True)
class Way:
    """How a layer is carried out, on which its values must not depend."""

    servers: int
    deduplicate: bool
    chunks: int
    balance: bool
    scheduler: str
    buffer_factor: float | None = None

    @property
    def sums(self):
        """In which parts tokens are summed: those of each server where tokens cross once."""
        return self.servers if self.deduplicate else 1

    @property
    def topology(self):
        return fastjax.Topology(self.servers, DEVICES // self.servers)

    def program(self):
        options = dataclasses.asdict(self) | {"topology": self.topology, "copies": COPIES}
        options |= {"num_experts": EXPERTS, "axis_name": "x"}
        del options["servers"]

        def local(x, weights, params, ct, ids):
            layer = functools.partial(moe.layer, expert_fn=expert, return_stats=True, **options)
            result, back, stats = jax.vjp(
                lambda x, *others: layer(x, ids, *others), x, weights, params, has_aux=True
            )
            return result, *back(ct), stats.rounds[None]

        return jax.jit(on_devices(local))


def every_way():
    """All, and in rounds."""
    found = [
        Way(*place, chunks, balance, scheduler)
        for place in PLACES
        for chunks in CHUNKS
        for balance in (False, True)
        for scheduler in SCHEDULERS
    ]
    return found + [
        Way(*place, 2, balance, "fast", buffer_factor=1.0)
        for place in PLACES
        for balance in (False, True)
    ]


def some_ways():
    """Each place but one, and two with levelled experts; the rest in turn. And one in rounds."""
    found = [
        Way(*place, CHUNKS[number % 3], balance, SCHEDULERS[(number + balance) % 2])
        for number, place in enumerate(PLACES)
        for balance in (False, True)
        if place in ((2, False), (4, True)) or (place != (4, False) and not balance)
    ]
    return [*found, Way(2, True, 2, True, "fast", buffer_factor=1.0)]


def ways_of(processes, *, every):
    """Of several processes, each of which compiles all programs, every second one will do."""
    return every_way() if every else some_ways()[:: min(processes, 2)]


def expert(rows, params):
    """Half of a row is scaled, and half goes through two matrices."""
    scale, up, down = params
    scaled, multiplied = jnp.split(rows, 2, axis=1)
    return jnp.concatenate([scaled * scale, jnp.tanh(multiplied @ up) @ down], axis=1)


def problem():
    """Tokens, weights, params, a cotangent, and choices, some experts much more than others."""
    rng = np.random.default_rng(5)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    half = WIDTH // 2
    params = normal(EXPERTS, 1), normal(EXPERTS, half, HIDDEN), normal(EXPERTS, HIDDEN, half)
    tokens = DEVICES * TOKENS
    x, ct = normal(2, tokens, WIDTH)
    return x, normal(tokens, TOP_K), params, ct, ids_of(rng, tokens)


def bits(array):
    """Digests of each device's part."""
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return [_digest(parts[start]) for start in sorted(parts)]


def bits_of_experts(params):
    """Digests of each expert's params on this process."""
    leaves = map(local_part, jax.tree.leaves(params))
    return [_digest(*parts) for parts in zip(*leaves, strict=True)]


def local_part(array):
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([parts[start] for start in sorted(parts)])


def _digest(*parts):
    return hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest()


def carry_out(every):
    """Runs in a job: the values of all ways, as digests, and those of the first as they are."""
    operands = spread(mesh_of(), problem())
    digests, values = [], None
    for way in ways_of(jax.process_count(), every=every):
        *floats, rounds = way.program()(*operands)
        values = values or jax.tree.leaves(floats)
        assert (local_part(rounds) > 1).all() == (way.buffer_factor is not None)
        of_tokens = {
            name: bits(array)
            for name, array in zip(("result", "tokens", "weights"), floats, strict=False)
        }
        digests.append(of_tokens | {"params": bits_of_experts(floats[3])})
    return {"digests": digests} | {str(n): local_part(array) for n, array in enumerate(values)}


@functools.cache
def carried_out(processes, *, every):
    """By so many: digests of all devices, by way, and the values of the first."""
    results = multiprocess.run(
        __file__,
        "carry_out",
        processes=processes,
        devices=DEVICES // processes,
        arguments={"every": every},
        environment={"FASTJAX_TIMEOUT": "200"},
        seconds=1500,
    )
    of_ways = zip(*(result["digests"] for result in results), strict=True)
    digests = {
        way: {name: [digest for one in of_way for digest in one[name]] for name in of_way[0]}
        for way, of_way in zip(ways_of(processes, every=every), of_ways, strict=True)
    }
    count = len(results[0]) - 1
    return digests, [np.concatenate([r[str(n)] for r in results]) for n in range(count)]


def split_experts(way):
    """Those that have copies, if they are levelled for the rows of all tokens at once."""
    _, _, params, _, ids = problem()
    of_one = sum(leaf[0].nbytes for leaf in params)
    options = Options(EXPERTS, "x", balance=True, copies=COPIES, expert_bytes=of_one)
    balance = balance_of(options, way.topology, TOKENS, TOP_K)
    slots = levelling.level(
        jnp.bincount(ids.ravel(), length=EXPERTS).astype(jnp.int32),
        servers=way.topology.servers,
        devices=way.topology.devices_per_server,
        **dataclasses.asdict(balance),
    ).slots
    return {*slots.ravel().tolist()} - {-1}


# Each process compiles all programs.
NIGHTLY = pytest.param(True, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("every", [False, NIGHTLY])
@pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_same_bits(processes, every):
    digests, values = carried_out(processes, every=every)
    x, weights, params, ct, ids = problem()
    wanted, back = jax.vjp(
        lambda *operands: dense(*operands, ids, expert=expert), x, weights, params
    )
    same(values, jax.tree.leaves((wanted, back(ct))))
    by_one, first = carried_out(1, every=every)[0], {}
    for way, found in digests.items():
        assert found == by_one[way], way
        assert found["weights"] == digests[Way(*PLACES[0], 1, False, "fast")]["weights"], way
        alike = first.setdefault(way.sums, found)
        assert found["tokens"] == alike["tokens"], way
        # In a loop XLA adds up a token's choices by another routine.
        if way.deduplicate or way.buffer_factor is None:
            assert found["result"] == alike["result"], way


@pytest.mark.parametrize("every", [False, NIGHTLY])
def test_the_same_gradients_of_experts_without_copies(every):
    """Their rows are the same, in the same order; those of others are summed in parts."""
    digests, _ = carried_out(1, every=every)
    found = {way: one["params"] for way, one in digests.items()}
    for way in (way for way in found if way.balance and way.buffer_factor is None):
        plain = next(
            one
            for other, one in found.items()
            if other == dataclasses.replace(way, balance=False, scheduler=other.scheduler)
        )
        split = split_experts(way)
        assert 0 < len(split) < EXPERTS
        for number in {*range(EXPERTS)} - split:
            assert found[way][number] == plain[number], (way, number)
        assert any(found[way][number] != plain[number] for number in split)
