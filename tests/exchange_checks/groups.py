"""Exchanges between some of the devices: groups, axes of a mesh, meshes of some devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import fastjax
from exchange_checks.backends import SCHEDULERS, Backend
from exchange_checks.cases import carry_out, drawn
from exchange_checks.listed import check

Positions = list[list[int]]


def _groups(backend: Backend, rng: np.random.Generator) -> list[Positions]:
    """Inside servers, of a device of each, neighbours, and such that lie crosswise."""
    positions = np.arange(backend.size)
    inside = positions.reshape(backend.servers, -1)
    found = [inside, inside.T, rng.permutation(positions)[None], positions[:, None]]
    if backend.size % 2 == 0:
        halves = positions.reshape(2, -1)
        unequal = halves.copy()
        unequal[0, -1], unequal[1, 0] = halves[1, 0], halves[0, -1]
        pairs = positions.reshape(-1, 2)
        found += [halves, pairs, pairs.T, unequal, rng.permutation(positions).reshape(2, -1)]
    different = {str(groups): groups.tolist() for groups in found}
    return list(different.values())


@check
def groups_of_positions(backend: Backend, rng: np.random.Generator) -> None:
    """On each topology by some of the schedulers: compiling all for each takes long."""
    topologies = backend.some_topologies()
    some = len(topologies)
    for number, groups in enumerate(_groups(backend, rng)):
        options = [
            {"scheduler": scheduler, "topology": topology}
            for shift, topology in enumerate(topologies)
            for scheduler in SCHEDULERS[(number + shift) % some :: some]
        ]
        cases = [drawn(rng, backend.size, groups=groups, **given) for given in ({}, *options)]
        carry_out(backend, cases)


def _lines(shape: tuple[int, ...], axes: tuple[int, ...]) -> Positions:
    """Positions that exchange along some axes of a mesh, in the order of these."""
    moved = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), axes, range(len(axes)))
    return moved.reshape(int(np.prod([shape[a] for a in axes])), -1).T.tolist()


@check
def axes_of_a_mesh(backend: Backend, rng: np.random.Generator) -> None:
    """All in one program, also where devices are alone on an axis."""
    shape = (backend.servers, backend.per_server, 1)
    mesh = backend.mesh(shape, ("server", "device", "one"))
    cases = []
    for names, axes in (
        ("server", (0,)),
        ("device", (1,)),
        (["device"], (1,)),
        (("server", "device"), (0, 1)),
        (("device", "server"), (1, 0)),
        ("one", (2,)),
    ):
        known = fastjax.Topology.from_mesh(mesh, tuple(names) if isinstance(names, list) else names)
        for topology in (None, known):
            options = {"axis_name": names, "topology": topology}
            cases.append(drawn(rng, backend.size, members=_lines(shape, axes), **options))
    for check_vma in (True, False):
        carry_out(backend, cases, mesh, check_vma=check_vma)


@check(needs=lambda backend: backend.size > 1)
def groups_of_several_axes(backend: Backend, rng: np.random.Generator) -> None:
    mesh = backend.mesh((backend.servers, backend.per_server), ("server", "device"))
    groups = rng.permutation(backend.size).reshape(2, -1).tolist()
    options = {"axis_name": ("server", "device"), "groups": groups}
    carry_out(backend, [drawn(rng, backend.size, **options)], mesh)


@check
def topology_that_nobody_gave(backend: Backend, rng: np.random.Generator) -> None:
    """It is that of the mesh, though only the shape of the mesh is known where it is needed."""
    mesh = backend.mesh((backend.servers, backend.per_server), ("server", "device"))
    for name in ("server", "device", ("server", "device"), ("device", "server")):
        specs = []

        def plan(sizes: Any, name: Any = name, specs: Any = specs) -> Any:
            plan = fastjax.plan_ragged_all_to_all(sizes, axis_name=name)
            specs.append(plan.spec)
            return plan.table

        f = jax.shard_map(plan, mesh=mesh, in_specs=P(), out_specs=P(mesh.axis_names))
        jax.make_jaxpr(f)(np.zeros(backend.size, np.int32))
        known = fastjax.Topology.from_mesh(mesh, name)
        ranks = known.placement or tuple(range(known.num_devices))
        assert specs[0].topology.words[:2] == known.words[:2]
        assert specs[0].rank_of == ranks


@check
def devices_in_any_order(backend: Backend, rng: np.random.Generator) -> None:
    size = backend.size
    strided = np.arange(size).reshape(backend.servers, -1).T.reshape(-1)
    for number, order in enumerate((strided, rng.permutation(size))):
        mesh = backend.mesh(order=order.tolist())
        known = fastjax.Topology.from_mesh(mesh, "x")
        # Also where the servers are not what the mesh says.
        halves = {2} if size % 2 == 0 else {1}
        given = [
            fastjax.Topology(n, size // n, placement=tuple(order.tolist()))
            for n in {backend.servers} | halves
        ]
        carry_out(
            backend,
            [
                drawn(rng, size, scheduler=scheduler, topology=topology)
                for scheduler in SCHEDULERS[number::2]
                for topology in (known, *given)
            ],
            mesh,
        )


@check(needs=lambda backend: backend.per_server > 1)
def part_of_the_devices(backend: Backend, rng: np.random.Generator) -> None:
    """Every process takes part, with the first of its devices, or all but the last."""
    here = backend.size // backend.processes
    for count in sorted({1, 2, 3, here // 2 + 1, here - 1} & set(range(1, here)), reverse=True):
        order = [p * here + d for p in range(backend.processes) for d in range(count)]
        topologies = [None, fastjax.Topology(len(order), 1)]
        carry_out(
            backend,
            [drawn(rng, len(order), topology=topology) for topology in topologies],
            backend.mesh(order=order),
        )


@check(needs=lambda backend: backend.processes > 2)
def part_of_the_processes(backend: Backend, rng: np.random.Generator) -> None:
    """The first and the last; the others have nothing to do with it."""
    m, last = backend.per_server, backend.processes - 1
    if jax.process_index() in {0, last}:
        mesh = backend.mesh(order=[*range(m), *range(last * m, backend.size)])
        carry_out(backend, [drawn(rng, mesh.size)], mesh)
