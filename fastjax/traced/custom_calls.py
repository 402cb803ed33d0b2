"""What fastjax's custom calls are told."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastjax import jax_compat, network
from fastjax.scheduling import scheduler_number
from fastjax.traced.plan_spec import PlanSpec


def call_site_attributes(
    ctx: Any,
    operation: str,
    axes: tuple[Any, ...],
    groups: tuple[tuple[int, ...], ...] | None,
    spec: PlanSpec,
    timeout_ms: int,
    platform: str,
) -> dict[str, Any]:
    """Attributes that every fastjax custom call carries.

    Where a group spans processes, this opens the network between them.
    """
    replicas = jax_compat.replica_groups(ctx, axes, groups)
    attributes = {
        "operation": operation,
        "name": jax_compat.op_name(ctx, operation),
        "axis": repr(axes[0]) if len(axes) == 1 else repr(axes),
        "program": jax_compat.program_name(ctx),
        "shapes": " ".join(f"{a.dtype.name}{list(a.shape)}" for a in ctx.avals_in[:3]),
        "channel": np.int64(jax_compat.new_channel(ctx)),
        "timeout_ms": np.int64(timeout_ms),
        "group_size": np.int64(replicas.shape[1]),
        "replica_groups": replicas.reshape(-1),
        "rank_of": np.array(spec.rank_of, dtype=np.int64),
        "platform": platform,
    }
    placed = jax_compat.device_processes(ctx, replicas)
    if placed is not None:
        network.ensure_open()
        attributes |= {"processes": placed[0], "rails": placed[1]}
    return attributes


def planning_attributes(spec: PlanSpec) -> dict[str, Any]:
    """Attributes of the custom calls that plan."""
    return {
        "topology": np.array(spec.topology.words, dtype=np.int64),
        "scheduler": np.int64(scheduler_number(spec.scheduler)),
        "row_bytes": np.int64(spec.row_bytes),
    }


__all__ = ["call_site_attributes", "planning_attributes"]
