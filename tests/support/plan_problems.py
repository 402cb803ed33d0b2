"""Problems to plan: hypothesis strategies for them, ways to have them planned, and stage tables."""

import functools

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fastjax
from fastjax import Topology, make_plan

# Those that plan in microseconds, anywhere; "optimal" solves, on the host only.
SCHEDULERS = tuple(name for name in fastjax.schedulers() if name != "optimal")
HEADER_WORDS = 16
_FIELDS = "phase stage src dst origin target first_row rows src_row dst_row"
ENTRY_DTYPE = np.dtype([(field, "i4") for field in _FIELDS.split()])
KINDS = (
    "zeros",
    "ones",
    "uniform",
    "sparse",
    "skewed",
    "single flow",
    "only self",
    "only local",
    "only cross",
    "only rails",
    "hot sender",
    "hot receiver",
    "permutation",
)


def make_traffic(kind, n, m, largest, rng):
    """A matrix of the kind, with entries up to `largest`."""
    size = n * m
    some = rng.integers(0, largest, (size, size), endpoint=True)
    server, local = np.divmod(np.arange(size), m)
    one = np.zeros((size, size), bool)
    one[rng.integers(size), rng.integers(size)] = True
    keep = {
        "zeros": np.zeros((size, size), bool),
        "ones": np.ones((size, size), bool),
        "uniform": np.ones((size, size), bool),
        "sparse": rng.random((size, size)) < 0.15,
        "skewed": np.ones((size, size), bool),
        "single flow": one,
        "only self": np.eye(size, dtype=bool),
        "only local": server[:, None] == server,
        "only cross": server[:, None] != server,
        "only rails": local[:, None] == local,
        "hot sender": np.arange(size)[:, None] == rng.integers(size),
        "hot receiver": np.arange(size) == rng.integers(size),
        "permutation": rng.permutation(size)[:, None] == np.arange(size),
    }[kind]
    if kind == "ones":
        some = np.ones_like(some)
    if kind == "skewed":
        some = np.floor(largest * rng.random((size, size)) ** 8).astype(np.int64)
    return np.where(keep, some, 0)


@st.composite
def topologies(draw, servers=(1, 6), per_server=(1, 5)):
    """Topologies with servers and devices in these ranges."""
    return Topology(
        draw(st.integers(*servers)),
        draw(st.integers(*per_server)),
        scale_up_bandwidth=draw(st.sampled_from([450e9, 50e9, 1.0])),
        scale_out_bandwidth=draw(st.sampled_from([50e9, 12e9, 3.0])),
        scale_up_latency=draw(st.sampled_from([0.0, 2e-6])),
        scale_out_latency=draw(st.sampled_from([0.0, 1e-5, 0.5])),
        transfer_overhead=draw(st.sampled_from([0.0, 1e-6, 0.25])),
        incast_loss=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@st.composite
def problems(draw, topology=None, largest=60):
    """A topology, a matrix for it and the bytes of a row."""
    topology = draw(topologies() if topology is None else topology)
    size = topology.num_devices
    if size <= 6 and draw(st.booleans()):
        entries = st.integers(0, min(largest, 9))
        traffic = draw(hnp.arrays(np.int64, (size, size), elements=entries))
    else:
        kind = draw(st.sampled_from(KINDS))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        traffic = make_traffic(
            kind, topology.servers, topology.devices_per_server, draw(st.integers(1, largest)), rng
        )
    return topology, traffic, draw(st.sampled_from([1, 4096, 2**20, 2**40 - 1]))


@st.composite
def two_server_extremes(draw, largest=400):
    """Two servers, and one or two flows each way, or a hot sender and receiver in one of them."""
    m = draw(st.integers(1, 6))
    device = st.integers(0, m - 1)
    rows = st.integers(1, largest)
    traffic = np.zeros((2 * m, 2 * m), np.int64)
    if draw(st.booleans()):
        for first in draw(st.lists(st.sampled_from([0, m]), min_size=1, max_size=4)):
            traffic[first + draw(device), m - first + draw(device)] += draw(rows)
    else:
        traffic[:] = draw(st.integers(0, 2))
        traffic[draw(device), m:] = draw(rows)
        traffic[m:, draw(device)] = draw(rows)
    return Topology(2, m), traffic, draw(st.sampled_from([1, 2**20]))


def balanced_servers(n, rng, largest=1000):
    """Rows between servers with equal sums, none zero and otherwise of no structure.

    Birkhoff's way, one permutation after the other until one entry is used up, takes all of the
    n * n - 2 n + 2 that it may.
    """
    weights = rng.integers(1, largest, 2 * n * n, endpoint=True)
    return 1 + permuted_servers(n, weights, rng)


def permuted_servers(n, weights, rng):
    """The sum of as many permutations of servers as there are weights."""
    servers = np.zeros((n, n), np.int64)
    for weight in weights:
        servers[np.arange(n), rng.permutation(n)] += weight
    return servers


def spread_over_devices(servers, m, rng):
    """Traffic in which each server pair has m times those rows, on blocks drawn at random."""
    n = len(servers)
    tiles = [rng.multinomial(m * int(rows), rng.dirichlet([0.3] * m * m)) for rows in servers.flat]
    return np.array(tiles).reshape(n, n, m, m).swapaxes(1, 2).reshape(n * m, n * m)


@st.composite
def permutation_problems(draw, servers=(2, 6), per_server=(1, 4)):
    """Pairs of servers whose rows divide evenly over rails: few permutations, or very many."""
    n, m = draw(st.integers(*servers)), draw(st.integers(*per_server))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = draw(st.lists(st.integers(1, 60), max_size=4))
    rows = permuted_servers(n, weights, rng) if weights else balanced_servers(n, rng)
    return Topology(n, m), spread_over_devices(rows, m, rng), draw(st.sampled_from([1, 2**20]))


@st.composite
def one_giant_problems(draw):
    """One block that dwarfs all the others."""
    topology = draw(topologies())
    size = topology.num_devices
    small = hnp.arrays(np.int64, (size, size), elements=st.integers(0, 3))
    traffic = draw(small)
    giant = draw(st.sampled_from([1000, 2**31 - 1, 2**31, 2**40]))
    traffic[draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))] = giant
    return topology, traffic, draw(st.sampled_from([1, 4096]))


def adversarial_problems():
    """Problems of the kinds that planners get wrong."""
    return st.one_of(two_server_extremes(), permutation_problems(), one_giant_problems())


def scheduled(problem, scheduler):
    """The plan of a problem."""
    topology, traffic, row_bytes = problem
    return make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)


def traced_tables(topology, scheduler):
    """One compiled program, which keeps its planner from call to call."""
    mesh = jax.make_mesh((topology.num_devices,), ("x",), axis_types=(AxisType.Auto,))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    def tables(sizes):
        plan = fastjax.plan_ragged_all_to_all(
            sizes, axis_name="x", topology=topology, scheduler=scheduler
        )
        return plan.table[None]

    return tables


def decode_table(words):
    """A stage table's header, rows sent to and received from each device, and entries."""
    begin = HEADER_WORDS + 2 * int(words[1])
    body = words[begin : begin + len(ENTRY_DTYPE) * int(words[3])]
    return words[:HEADER_WORDS], *words[HEADER_WORDS:begin].reshape(2, -1), body.view(ENTRY_DTYPE)


def server_matrix(traffic, n, m):
    """Rows that servers send to each other; nothing on the diagonal."""
    tiles = np.asarray(traffic, np.int64).reshape(n, m, n, m).sum(axis=(1, 3))
    return np.where(np.eye(n, dtype=bool), 0, tiles)
