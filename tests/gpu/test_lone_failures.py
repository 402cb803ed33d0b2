"""One device of the emulated GPU fails alone: the others are told at once, and why."""

import os
from pathlib import Path

import pytest
from pythons import printed

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), str(TESTS / "support")])

# Of four devices, the numbers of partitions are those of the devices backwards. `run` returns what
# each device is told, by its position.
JOB = """
import os, sys
import conftest
import jax
import numpy as np
import reference
from spmd import mesh_of, spmd

import fastjax
from fastjax import _core

mesh = mesh_of((4,), order=[3, 2, 1, 0])
meta = reference.packed(np.full((4, 4), 3))
operand, output = reference.data(np.random.default_rng(0), meta)

def exchange(*args):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x", topology=fastjax.Topology(2, 2))

def planning(_operand, _output, _inputs, sizes, *_):
    topology = fastjax.Topology(2, 2)
    return fastjax.plan_ragged_all_to_all(sizes, axis_name="x", topology=topology).table

program = spmd({"exchange": exchange, "planning": planning}[sys.argv[1]], mesh)

def run():
    told = []
    for shard in program(operand, output, *meta.arrays()).addressable_shards:
        try:
            shard.data.block_until_ready()
            told.append((shard.index[0].start, "ok"))
        except jax.errors.JaxRuntimeError as error:
            told.append((shard.index[0].start, str(error).splitlines()[0]))
    for _, text in sorted(told):
        print(text)
"""


def told(operation, job, **environment):
    """What the devices are told in each run of `job`."""
    given = {"PYTHONPATH": PATHS, "FASTJAX_EMULATE_GPU": "1", **environment}
    lines = printed("-c", JOB + job, operation, environment=given, timeout=120).splitlines()
    return [lines[i : i + 4] for i in range(0, len(lines), 4)]


@pytest.mark.parametrize("operation", ["exchange", "planning"])
def test_no_pinned_memory_at_the_first_launch(operation):
    """Its number is read without, and the next launch works."""
    job = "_core.set_emulated_faults(pinned=2)\nrun()\n_core.set_emulated_faults()\nrun()"
    failed, good = told(operation, job)
    assert len(set(failed)) == 1
    assert "over axis 'x'" in failed[0]
    assert (
        "device 1 cannot take part: fastjax: emulated device 2 could not get pinned memory of the "
        "host: out of memory (2)."
    ) in failed[0]
    assert good == ["ok"] * 4


@pytest.mark.parametrize("operation", ["exchange", "planning"])
def test_a_device_that_is_lost_later(operation):
    """Nothing can be read of it any more: its number is known of an earlier launch."""
    good, failed = told(operation, "run()\n_core.set_emulated_faults(lost=3)\nrun()")
    assert good == ["ok"] * 4
    assert len(set(failed)) == 1
    assert (
        "device 0 cannot take part: fastjax: emulated device 3 could not launch a kernel"
        in failed[0]
    )
    assert "an illegal memory access was encountered (700)" in failed[0]


def test_a_device_that_is_lost_at_the_first_launch():
    """It cannot say which it is: it is told at once, and the others when their time is up."""
    (failed,) = told("exchange", "_core.set_emulated_faults(lost=3)\nrun()", FASTJAX_TIMEOUT="3")
    assert (
        "a device that does not know its number cannot take part: fastjax: emulated device 3"
        in failed[0]
    )
    for text in failed[1:]:
        assert "waited 3.0 s for device(s) 0, which did not arrive" in text
