"""What the parts of a compiled CPU program wait for, as XLA's thunks do.

XLA:CPU runs a thunk once all before it have run that write what it reads or writes, or read what it
writes. Memory is given on in the order of the program, so a thunk may wait for one whose result it
does not need.
"""

import re
from typing import NamedTuple


class Part(NamedTuple):
    """An instruction of the entry computation, and others by name.

    Attributes:
      target: of a custom call.
      operands: its operands.
      needs: what computes its operands.
      waits: what it waits for, that and others.
    """

    target: str
    operands: list[str]
    needs: set[str]
    waits: set[str]


# Instructions that have no thunk; their memory is that of their operands.
_PASSING = {"bitcast", "get-tuple-element", "tuple"}
_NOTHING = {"parameter", "constant", "partition-id", "replica-id"}


def ancestors(compile_to, folder):
    """The parts of a program, by the names of their instructions, in its order.

    Args:
      compile_to: compiles a program with these compiler options.
      folder: an empty one, for what XLA writes.
    """
    compile_to({"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True})
    (memory,) = folder.glob("*cpu_after_optimizations-buffer-assignment.txt")
    (program,) = folder.glob("*cpu_after_optimizations.txt")
    slices = _slices(memory.read_text())
    instructions = _instructions(program.read_text())
    used, needs, thunks = {}, {}, []
    for name, (opcode, operands, _) in instructions.items():
        needs[name] = {*operands}.union(*(needs[operand] for operand in operands))
        passed = [s for operand in operands for s in used.get(operand, [])]
        used[name] = passed if opcode in _PASSING else slices.get(name, [])
        if opcode not in _PASSING | _NOTHING:
            thunks.append((name, passed, used[name]))
    waits = {}
    for at, (name, reads, writes) in enumerate(thunks):
        waits[name] = set()
        for earlier, earlier_reads, earlier_writes in thunks[:at]:
            if _meet(earlier_writes, reads + writes) or _meet(earlier_reads, writes):
                waits[name] |= {earlier} | waits[earlier]
    return {
        name: Part(instructions[name][2], instructions[name][1], needs[name], found)
        for name, found in waits.items()
    }


def _slices(text):
    """By value: allocation, first byte and end."""
    found, allocation = {}, None
    for line in text.partition("\nTotal bytes")[0].splitlines():
        if begun := re.match(r"allocation (\d+): size", line):
            allocation = int(begun[1])
        value = re.match(r" value: <\d+ ([^\s{]+)\S* @\d+> \(size=(\d+),offset=(\d+)\)", line)
        if value:
            size, offset = int(value[2]), int(value[3])
            found.setdefault(value[1], []).append((allocation, offset, offset + size))
    return found


def _instructions(text):
    """By name, in order: opcode, operands, and the custom call's target."""
    found = {}
    for line in text[text.index("\nENTRY") :].splitlines()[2:]:
        parts = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\((.*)$", line)
        if parts:
            operands = [n for n in re.findall(r"%?([\w.\-]+)", parts[3]) if n in found]
            target = re.search(r'custom_call_target="([^"]+)"', line)
            found[parts[1]] = parts[2], operands, target[1] if target else ""
    return found


def _meet(some, others):
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)
