"""Running commands, and what they find and print."""

import itertools
import re

import numpy as np

from fastjax import cli
from fastjax.cli.shared import options
from fastjax.cli.simulate import command, exchange, layer
from fastjax.traffic import RoutingRecord, write_routing_trace

# Rates at which numbers are round, and nothing but bytes takes time.
PLAIN = (
    "--scale-up-bandwidth 1e9 --scale-out-bandwidth 1e8 --scale-up-latency 0 "
    "--scale-out-latency 0 --transfer-overhead 0 --row-bytes 1000"
)


def words_of(arguments):
    """Texts among the arguments are several words."""
    words = [a.split() if isinstance(a, str) else [str(a)] for a in arguments]
    return list(itertools.chain.from_iterable(words))


def run_command(capsys, *arguments, command):
    """What the command prints."""
    assert cli.main([command, *words_of(arguments)]) == 0
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def parsed(*arguments):
    return cli._parser().parse_args(words_of(arguments))


def simulated_exchange(*arguments):
    """What `simulate` finds."""
    given = parsed("simulate", *arguments)
    source = options.load(given)
    schedulers = command.schedulers_of(given, source.topology)
    return exchange.simulate(source, command.fabric_of(given), schedulers)


def simulated_layer(*arguments):
    """What `simulate` finds: the layer, and the ways to run it, theirs and ours."""
    given = parsed("simulate", *arguments)
    assert layer.is_asked_for(given)
    work = layer.load(given, command.fabric_of(given))
    schedulers = command.schedulers_of(given, work.topology)
    return work, layer.peers(work), layer.simulate(work, schedulers)


def value(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {name}  ")]
    return line.removeprefix(f"  {name}  ").strip()


def write_trace(folder):
    """Two devices with an expert each, two layers; layer 4 of step 1 is the busiest."""
    folder.mkdir()
    for rank in range(2):
        records = [
            RoutingRecord(step, layer, rank, np.full((tokens, 2), [0, 1 if layer == 4 else 0]))
            for step, layer, tokens in ((0, 3, 1), (0, 4, 1), (1, 3, 1), (1, 4, 5))
        ]
        write_routing_trace(folder / f"router_trace_rank{rank}.jsonl", records)
    return folder


def says_what_is_wrong(capsys, *arguments, told):
    """The command ends with a message that matches, and shows nothing else."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert re.search(told, done.err), done.err
