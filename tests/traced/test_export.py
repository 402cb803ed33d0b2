"""Programs that are exported, and run by another process; those of earlier releases run still."""

import exported_programs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange, planned
from jax.sharding import PartitionSpec as P
from moe_layers import same
from pythons import printed
from spmd import mesh_of

import fastjax
from fastjax.traced.contract import CALLS

RELEASED = sorted(exported_programs.FOLDER.glob("*/*.bin"))
UNUSED = {"fastjax_empty_v2"}  # that measures

_RUN = """
import sys
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
import fastjax
from jax.sharding import PartitionSpec as P

folder = sys.argv[1]
with open(folder + "/program", "rb") as file:
    exported = jax.export.deserialize(bytearray(file.read()))
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
with np.load(folder + "/arguments.npz") as found:
    given = [found[name] for name in found.files]
args = jax.device_put(given, jax.NamedSharding(mesh, P("x")))
np.save(folder + "/results.npy", jax.jit(exported.call)(*args))
"""


def test_one_export_for_several_platforms(rng, tmp_path):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    flat = [a.reshape(-1, *a.shape[2:]) for a in (operand, output, *meta.arrays())]

    def local(operand, output, *arrays):
        return planned(operand, output, *arrays) + exchange(operand, output, *arrays)

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    args = jax.device_put(flat, jax.NamedSharding(mesh_of(), P("x")))
    with fastjax.options(fallback="never"):
        exported = jax.export.export(
            jax.jit(mapped),
            platforms=("cpu", "cuda", "rocm"),
            disabled_checks=fastjax.export_checks(),
        )(*args)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arguments.npz", *flat)
    printed("-P", "-c", _RUN, tmp_path)
    expected = 2 * reference.exchange(operand, output, meta)
    got = np.load(tmp_path / "results.npy")
    np.testing.assert_array_equal(got.reshape(expected.shape), jnp.asarray(expected))


@pytest.mark.parametrize(
    "path", RELEASED, ids=[f"{path.parent.name} {path.stem}" for path in RELEASED]
)
def test_what_a_release_exported_runs(path):
    program = exported_programs.PROGRAMS[path.stem]()
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    got = jax.jit(exported.call)(*exported_programs.placed(program.arguments))
    same(jax.tree.map(np.asarray, got), program.expected)


def test_this_version_exported_every_custom_call():
    """`make exported` writes what is missing: a new version, or a new call."""
    released = [path for path in RELEASED if path.parent.name == fastjax.__version__]
    assert {path.stem for path in released} == set(exported_programs.PROGRAMS)
    everything = b"".join(path.read_bytes() for path in released)
    wanted = {*CALLS} - UNUSED
    assert [call for call in wanted if call.encode() not in everything] == []
