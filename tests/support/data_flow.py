"""Which parts of a compiled program need the results of which others."""

import re
from typing import NamedTuple


class Part(NamedTuple):
    """An instruction of the entry computation, and others by name.

    Attributes:
      target: of a custom call, or "".
      scope: the name that the program has for it.
      operands: in order.
      needs: all whose results it needs, by way of others too.
    """

    target: str
    scope: str
    operands: list[str]
    needs: set[str]


def parts_of(text):
    """The parts of a program, in its order, by the names of their instructions."""
    found = {}
    for line in text[text.index("\nENTRY") :].splitlines()[2:]:
        instruction = re.match(r"  (?:ROOT )?%?(\S+) = (?:\(.*?\)|\S+) [\w-]+\((.*)", line)
        if instruction is None:
            continue
        operands = [name for name in re.findall(r"%([\w.-]+)", instruction[2]) if name in found]
        target = re.search(r'custom_call_target="([^"]*)"', line)
        scope = re.search(r'op_name="([^"]*)"', line)
        needs = {*operands}.union(*(found[operand].needs for operand in operands))
        found[instruction[1]] = Part(
            target[1] if target else "", scope[1] if scope else "", operands, needs
        )
    return found
