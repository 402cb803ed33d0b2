"""Exchanges that are started begin in the order of their tokens, whatever thread comes first."""

import json
import textwrap
from pathlib import Path

import jax
import numpy as np
import reference
from moe_layers import BALANCED, dense, layer, on_devices, same
from moe_layers import problem as problem_of_layers
from pythons import CPU, printed
from spmd import mesh_of, spmd

import fastjax
from fastjax.traced.contract import Metadata
from fastjax.traced.start_done import done, start

DEVICES, COUNT, RUNS = 4, 8, 25


def several(operand, output, *way, ordered=True):
    """Exchanges that nothing joins but their tokens, if anything."""
    plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
    in_flight, token = [], ()
    for number in range(COUNT):
        begun = start(operand * (number + 1), output, Metadata(*way), plan, after=token)
        token = (begun.token,) if ordered else ()
        in_flight.append(begun)
    return tuple(map(done, in_flight))


def problem():
    rng = np.random.default_rng(0)
    meta = reference.packed(reference.random_sizes(rng, DEVICES, DEVICES))
    operand, output = reference.data(rng, meta, (64,))
    expected = [reference.exchange((n + 1) * operand, output, meta) for n in range(COUNT)]
    return (operand, output, *meta.arrays()), expected


def records(ordered):
    """Runs in a process of its own: for each launch and device, the exchanges as they began."""
    from fastjax import _core

    given, expected = problem()

    def local(*operands):
        return several(*operands, ordered=ordered)

    program = jax.jit(spmd(local, mesh_of((DEVICES,))))
    found = []
    for _ in range(RUNS):
        got = program(*given)
        for rows, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(rows, wanted)
        record = _core.record_of_turns()
        assert len(record) == COUNT * DEVICES
        found.append([[c for c, p in record if p == device] for device in range(DEVICES)])
    return found


_PROGRAM = """
import json, sys
sys.path[:0] = {paths!r}
import jax
jax.config.update("jax_num_cpu_devices", 8)
import fastjax
import test_order_of_starts
print(json.dumps(test_order_of_starts.{call}))
"""


def in_a_process(call, **environment):
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support")]
    code = textwrap.dedent(_PROGRAM.format(paths=paths, call=call))
    out = printed("-c", code, environment=CPU | environment)
    return json.loads(out.splitlines()[-1])


def recorded(ordered):
    return in_a_process(f"records({ordered})", FASTJAX_DELAY_STARTS="3")


def test_the_order_holds_with_every_start_delayed():
    """The first launch says which number which exchange has; they are numbered in order."""
    for launch in recorded(ordered=True):
        for began in launch:
            assert began == sorted(began)
            assert len({*began}) == COUNT


def test_without_tokens_there_is_no_order():
    """So the delays do change the order, where nothing keeps it."""
    assert any(began != sorted(began) for launch in recorded(ordered=False) for began in launch)


def run_layer_in_chunks():
    """Runs in a process of its own."""
    arrays = problem_of_layers(np.random.default_rng(0), 24)
    options = BALANCED | {"deduplicate": True, "chunks": 3, "buffer_factor": 8.0}
    step = jax.jit(on_devices(layer, **options))
    for _ in range(2):
        same(step(*arrays), dense(*arrays))


def test_xla_may_call_an_exchange_once_a_later_one_has_ended():
    """As where it keeps little memory: the later one does not wait for the call for good."""
    flags = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    in_a_process("run_layer_in_chunks()", XLA_FLAGS=flags)
