"""Packages that a layer's module imports and does not use."""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Sequence[str]):
        self.names = names

    def find_spec(self, fullname: str, *_: Any) -> Any:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Anything:
    def __init__(self, *_: Any, **__: Any):
        pass


class _Absent(ModuleType):
    """Has every name, whose values may be called, and subclassed if they are of classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (_Anything,), {}) if name[:1].isupper() else mock.MagicMock()
        setattr(self, name, found)
        return found


def bare(name: str, folder: Path) -> None:
    """Lets modules of a package be imported without what the package itself imports."""
    package = ModuleType(name)
    package.__path__ = [str(folder.joinpath(*name.split(".")))]
    sys.modules[name] = package


@contextlib.contextmanager
def absent(names: Sequence[str]) -> Iterator[None]:
    """Lets modules of these names be imported, with nothing in them."""
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
