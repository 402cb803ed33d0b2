"""Traced programs of functions: their effects, and their results for other operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe.arrangement import Arrangement

_CAPTURED = object()
# They name an axis or are fastjax's, but wait for no other device.
_ALONE = frozenset({"axis_index", "after"})


def effects(program: ClosedJaxpr) -> set[Any]:
    """Effects of a traced program, and primitives of fastjax in it.

    Those of fastjax have no effects that would name their axes, as JAX's collectives do: JAX never
    frees what an equation with effects takes from a trace of tangents, so each gradient would leak.
    """
    found: set[Any] = set()
    for equation, inner in _equations(program):
        if not inner and equation.primitive.name not in _ALONE:
            found |= equation.effects
            if jax_compat.is_ours(equation.primitive):
                found.add(equation.primitive)
    return found


def names_values(program: ClosedJaxpr) -> bool:
    """Whether a traced program names values by `checkpoint_name`."""
    return any(equation.primitive.name == "name" for equation, _ in _equations(program))


def _equations(program: ClosedJaxpr) -> Iterator[tuple[JaxprEqn, list[Any]]]:
    """Those of a program, and of its loops, branches and calls: each, and the programs in it."""
    left: list[Any] = [program.jaxpr]
    while left:
        for equation in left.pop().eqns:
            inner = _programs_in(equation)
            left += inner
            yield equation, inner


def _programs_in(equation: JaxprEqn) -> list[Any]:
    parts = jax.tree.leaves(list(equation.params.values()))
    return [getattr(p, "jaxpr", p) for p in parts if isinstance(p, ClosedJaxpr | Jaxpr)]


def opened(
    program: ClosedJaxpr,
) -> tuple[Callable[[Iterable[jax.Array]], ClosedJaxpr], list[jax.Array]]:
    """A function of the traced values that a program captures, which closes it, and these values.

    The function may outlive traces in JAX's caches, so it has no traced values.
    """
    jaxpr = program.jaxpr
    captured: list[Any] = [value for value in program.consts if isinstance(value, Tracer)]
    consts = [_CAPTURED if isinstance(value, Tracer) else value for value in program.consts]

    def close(captured: Iterable[jax.Array]) -> ClosedJaxpr:
        values = iter(captured)
        return ClosedJaxpr(jaxpr, [next(values) if c is _CAPTURED else c for c in consts])

    return close, captured


def closed(
    experts: Callable[..., jax.Array],
    params: Any,
    x: jax.Array,
    arrangements: Sequence[Arrangement],
) -> tuple[Callable[..., jax.Array], Any, bool]:
    """Experts that take params together with the traced values that they capture, and these.

    And whether they have effects, collectives for instance.

    A rule for derivatives would not know of the latter. There is a program for each number of rows.
    """
    groups = arrangements[0].experts.groups
    sizes = jnp.zeros(groups, jnp.int32)
    if arrangements[0].experts.balance is not None:  # of copies, too
        one = lambda leaf: jnp.zeros_like(leaf, shape=(groups, *jnp.shape(leaf)[1:]))  # noqa: E731
        params = jax.tree.map(one, params)
    traced = jax.make_jaxpr(lambda *operands: jnp.asarray(experts(*operands)))
    programs, captured, any_effects = {}, {}, False
    for rows in {arrangement.experts.rows for arrangement in arrangements}:
        example = jnp.zeros((rows, x.shape[1]), x.dtype)
        examples = example, sizes, sizes, params
        *examples, _ = jax_compat.vary_together((*examples, x), arrangements[0].group.axes)
        program = traced(*examples)
        programs[rows], captured[rows] = opened(program)
        any_effects |= bool(effects(program))

    def converted(rows: jax.Array, *rest: Any) -> jax.Array:
        *sizes, (params, captured) = rest
        program = programs[len(rows)](captured[len(rows)])
        (made,) = jaxpr_as_fun(program)(*jax.tree.leaves((rows, *sizes, params)))
        return made

    return converted, captured, any_effects


def evaluated(program: ClosedJaxpr, *operands: Any) -> list[Any]:
    """Results of a program for operands that may vary over more axes than those it was traced with.

    Raises:
      ArgumentError: such an operand goes into a loop or branch, or a function with derivatives of
        its own, whose types say that it does not vary.
    """
    jaxpr = program.jaxpr
    found = dict(zip(jaxpr.constvars, program.consts, strict=True))
    found |= zip(jaxpr.invars, operands, strict=True)
    if _as_traced(found.values(), found):
        return jaxpr_as_fun(program)(*operands)
    read = lambda atom: atom.val if isinstance(atom, Literal) else found[atom]  # noqa: E731
    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        name, inner = equation.primitive.name, _programs_in(equation)
        as_traced = _as_traced(given, equation.invars)
        if name == "pvary":
            axes = equation.params["axes"]
            made = [jax_compat.vary_together([value, *operands], axes)[0] for value in given]
        elif name == "jit" and not as_traced:
            made = evaluated(equation.params["jaxpr"], *given)
        elif inner and not as_traced:
            raise ArgumentError(
                f"function gives a value that devices share to {name}, which was traced for such "
                "values alone; make it differ before: jax.lax.pcast(value, axis_name, "
                'to="varying").'
            )
        else:
            params = equation.primitive.get_bind_params(equation.params)
            given = given if inner else jax_compat.vary_together(given, ())
            with equation.ctx.manager:
                made = equation.primitive.bind(*given, **params)
        made = made if isinstance(made, list | tuple) else [made]
        found |= zip(equation.outvars, made, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _as_traced(values: Iterable[Any], atoms: Iterable[Any]) -> bool:
    """Whether values vary over the axes that a program was traced for."""
    return all(
        jax_compat.vma(jax.typeof(value)) == jax_compat.vma(atom.aval)
        for value, atom in zip(values, atoms, strict=True)
    )
