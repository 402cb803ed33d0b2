"""Functions of others with some of their statements replaced, which are found by how they begin."""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Edit:
    """One place of a layer that changes.

    Attributes:
      within: dotted name of the function whose body has the statements, from the module's top.
      first: how the first of the statements begins that go.
      last: how the last one begins; None where none goes, and lines are written before the first.
      lines: what is written there.
    """

    within: str
    first: str
    last: str | None
    lines: str

    @property
    def written(self) -> list[str]:
        return textwrap.dedent(self.lines).strip().splitlines()


def place(source: str, edit: Edit) -> range:
    """Lines of the statements that go, from 0; none, before the first, for an insertion."""
    body = ast.parse(source).body
    for name in edit.within.split("."):
        (scope,) = (s for s in ast.walk(ast.Module(body, [])) if getattr(s, "name", None) == name)
        body = scope.body
    first = _find(body, edit.first, edit.within)
    start = min(s.lineno for s in [body[first], *getattr(body[first], "decorator_list", [])]) - 1
    if edit.last is None:
        return range(start, start)
    last = first + _find(body[first:], edit.last, edit.within)
    return range(start, body[last].end_lineno)


def _find(body: list[ast.stmt], beginning: str, within: str) -> int:
    for i, statement in enumerate(body):
        if ast.unparse(statement).startswith(beginning):
            return i
    raise LookupError(f"No statement of {within} begins with {beginning!r}.")


def apply(source: str, edits: Iterable[Edit]) -> str:
    lines = source.splitlines()
    for at, edit in sorted(((place(source, e), e) for e in edits), key=lambda p: -p[0].start):
        before = lines[at.start]
        indent = before[: len(before) - len(before.lstrip())]
        lines[at.start : at.stop] = [indent + line for line in edit.written]
        assert all(len(indent + line) <= 100 for line in edit.written), edit
    return "\n".join(lines)


@contextlib.contextmanager
def applied(module: ModuleType, edits: Iterable[Edit], names: dict[str, Any]) -> Iterator[None]:
    """Has the module's functions changed, which may use more names, and no file."""
    source = Path(inspect.getsourcefile(module)).read_text()
    tree = ast.parse(apply(source, edits))
    with contextlib.ExitStack() as stack:
        for name, value in names.items():
            stack.enter_context(mock.patch.object(module, name, value, create=True))
        for owner, name in {_owner(edit.within, module) for edit in edits}:
            scope = tree if owner is module else _named(tree, owner.__name__)
            new = ast.fix_missing_locations(ast.Module([_named(scope, name)], []))
            found: dict[str, Any] = {}
            exec(compile(new, f"<{module.__name__}, edited>", "exec"), vars(module), found)
            stack.enter_context(mock.patch.object(owner, name, found[name]))
        yield


def _named(tree: ast.AST, name: str) -> Any:
    (found,) = (s for s in ast.iter_child_nodes(tree) if getattr(s, "name", None) == name)
    return found


def _owner(within: str, module: ModuleType) -> tuple[Any, str]:
    """The module or class whose attribute is the outermost function, and its name."""
    first, *others = within.split(".")
    owner = getattr(module, first)
    return (owner, others[0]) if inspect.isclass(owner) else (module, first)
