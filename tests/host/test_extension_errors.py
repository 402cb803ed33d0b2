"""What the extension module refuses by itself; the package gives it no such arguments."""

import numpy as np
from pythons import printed
from refusals import refusals, refused

from fastjax import Topology, _core, scheduling
from fastjax.host.plan import make_plan

ONES = np.ones((4, 4), np.int64)
TARGETS, WEIGHTS = np.array([[1, 0]], np.int16), np.ones(1, np.int64)


def host_plan(traffic=ONES, scheduler=1):
    return _core.HostPlan(traffic, Topology(2, 2).words, scheduler, 1)


def planned_with(targets=TARGETS, weights=WEIGHTS):
    return lambda: host_plan().plan_with(targets, weights)


def simulation(records):
    words = Topology(2, 2).words
    return lambda: _core.simulate(records, words, 1, 0, False, 1, 1.0, [1.0], True, 0.0)


def test_what_is_not_refused():
    planned_with()()
    records = make_plan(ONES, Topology(2, 2)).transfers.view(np.uint8)
    simulation(records)()


test_refused_values = refusals(
    ValueError,
    (lambda: host_plan(scheduler=-1), "unknown scheduler number"),
    (lambda: host_plan(scheduler=len(scheduling.NAMES)), "unknown scheduler number"),
    (lambda: host_plan(ONES[:3]), "traffic does not fit the topology"),
    (lambda: host_plan(np.ones((4, 3), np.int64)), "traffic does not fit the topology"),
    (planned_with(np.array([[1, 2, 0]], np.int16)), "matchings do not fit the topology"),
    (planned_with(weights=np.ones(2, np.int64)), "matchings do not fit the topology"),
    (planned_with(np.array([[0, 0]], np.int16)), "matchings are not one-to-one"),
    (planned_with(np.array([[1, 2]], np.int16)), "matchings are not one-to-one"),
    (planned_with(weights=np.zeros(1, np.int64)), "a matching's weight is not positive"),
    (simulation(np.zeros(3, np.uint8)), "records are not whole"),
    (lambda: _core.network_open(0, 2, bytes(15), "", [], ""), "the secret must have 16 bytes"),
)

test_refused_states = refusals(
    RuntimeError,
    (lambda: _core.network_add_peer(1, b""), "fastjax's network is not open in this process"),
    (lambda: _core.network_peer_lost(1, ""), "fastjax's network is not open in this process"),
)


def test_no_such_device():
    plan = host_plan()
    for device in (-1, 4):
        refused(IndexError, lambda device=device: plan.table(device), "no such device")
    for device in (0, 3):
        plan.table(device)


# Prints what it is told, one line for each; the network opens once in a process.
_NETWORKS = """
import sys
from fastjax import _core
from fastjax.network import library

def told(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:
        print(str(error).replace("\\n", " "))

def opened(nics, transports):
    return told(_core.network_open, 0, 2, bytes(16), library.find("")[0], nics, transports)

opened(["no_such_nic"], "tcp")
opened(["lo"], "no_such_transport")
mine = opened(["lo"], "tcp")
opened(["lo"], "tcp")
for process, addresses in (1, b"nonsense"), (1, mine[:-1]), (1, mine), (2, mine):
    told(_core.network_add_peer, process, addresses)
_core.network_close(1.0)
"""


def test_networks_and_addresses_that_are_none():
    told = printed("-c", _NETWORKS).splitlines()
    texts = [line for line in told if not line.startswith("[")]
    wanted = (
        "no NIC 'no_such_nic' that is up and has an address; there are: ",
        "cannot open NIC 'lo' with transports 'no_such_transport'",
        "fastjax's network is open already",
        "process 1 sent not addresses of this version of fastjax",
        "bytes that are damaged",
        "process 1 sent addresses of process 0, of 2",
        "process 2 sent addresses of process 0, of 2",
    )
    assert len(texts) == len(wanted), texts
    for text, part in zip(texts, wanted, strict=True):
        assert part in text
