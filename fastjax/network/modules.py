"""Names for the modules of a job's programs, and one executable of each.

Processes find out by the names whether they launch the same program; see `launch_numbers`.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from jax.extend.mlir import ir

from fastjax import _core, jax_compat
from fastjax.network.launch_numbers import start_of

_CALL = "stablehlo.custom_call"
_ATTRIBUTES = "mhlo.backend_config"
_MARK = "processes"  # the attribute that calls between processes have
_NAME = "module"  # and the one that they are given
_EXECUTABLES_KEPT = 256


class Named(NamedTuple):
    """What a module is known by.

    Attributes:
      fingerprint: of the module, but for the name that its calls get.
      whole: whether that says all that is compiled.
    """

    fingerprint: str
    whole: bool


_named: weakref.WeakKeyDictionary[ir.Module, Named] = weakref.WeakKeyDictionary()
_executables: dict[Hashable, Any] = {}
_compiling: dict[Hashable, threading.Lock] = {}


def follow() -> None:
    """Tells calls between processes which module they are part of, from now on.

    And tells C++, of each executable of such a module, from where its launches are counted.

    A process has one executable of a named module, however often the module is lowered and
    compiled, and keeps it: its launches are numbered, and would be numbered anew. So functions that
    are lowered to the same module share its numbers too, in the order in which they are called.
    Only a module that calls back into Python, also by custom_partitioning, or is compiled by a
    profile, is compiled each time.

    The name is the same in all processes, and is part of the program wherever that is cached.
    """

    def compiled(compilation: jax_compat.Compilation) -> Any:
        named = _named.get(compilation.module)
        if named is None:
            return compilation.run()

        def compile_anew() -> Any:
            executable = compilation.run()
            start = start_of(executable.fingerprint)
            if start is not None:
                _core.network_count_launches_from(named.fingerprint, start)
            return executable

        if not named.whole or not compilation.is_of_the_module_alone:
            return compile_anew()
        return _kept((named.fingerprint, compilation.options), compile_anew)

    jax_compat.follow_modules(_name, compiled)


def forget_executables() -> None:
    """Lets executables of named modules go. To be called at the end, before JAX's own."""
    _executables.clear()


def fingerprint(module: ir.Module) -> Named:
    """What is the same in all processes."""
    partitioned = [
        (call, call.attributes["backend_config"])
        for call in _calls(module)
        if _target(call) == "CustomSPMDPartitioning" and "backend_config" in call.attributes
    ]
    digest: Any = _Digest()
    with module.context:
        # A call of jax.experimental.custom_partitioning has the address of a Python object, which
        # knows what is compiled, and which JAX can leave out of the keys of its cache, too.
        for call, _ in partitioned:
            call.attributes["backend_config"] = ir.StringAttr.get("")
        # Without where in the source each operation is from, which may differ between hosts.
        module.operation.print(file=digest, binary=True, enable_debug_info=False)
        for call, given in partitioned:
            call.attributes["backend_config"] = given
    return Named(digest.hash.hexdigest()[:32], not partitioned)


class _Digest:
    """A file whose contents are hashed and not kept: a module may have gigabytes of constants."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, text: bytes) -> None:
        self.hash.update(text)


def _name(module: ir.Module) -> None:
    """Gives the calls between processes of a module its fingerprint."""
    if jax_compat.job() is None:
        return
    calls = [call for call in _calls(module) if _MARK in _given(call)]
    if not calls:
        return
    named = _named[module] = fingerprint(module)
    with module.context:
        for call in calls:
            attributes: dict[str, ir.Attribute] = {a.name: a.attr for a in _given(call)}
            attributes[_NAME] = ir.StringAttr.get(named.fingerprint)
            call.attributes[_ATTRIBUTES] = ir.DictAttr.get(attributes)


def _calls(module: ir.Module) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == _CALL:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _target(call: ir.Operation) -> str:
    name: Any = call.attributes["call_target_name"]
    return name.value


def _given(call: ir.Operation) -> Any:
    """The attributes that a handler gets; none of a call of an older kind."""
    if _ATTRIBUTES not in call.attributes:
        return ()
    given: Any = call.attributes[_ATTRIBUTES]
    return given if isinstance(given, ir.DictAttr) else ()


def _kept(key: Hashable, make: Callable[[], Any]) -> Any:
    """What `make` returned first. Threads that want the same wait, and no others."""
    with _compiling.setdefault(key, threading.Lock()):
        if key not in _executables:
            _executables[key] = make()
            # The first that was made, in every process.
            for old in list(_executables)[:-_EXECUTABLES_KEPT]:
                _executables.pop(old, None)
                _compiling.pop(old, None)
        return _executables[key]
