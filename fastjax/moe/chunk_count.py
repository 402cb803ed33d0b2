"""Chooses the number of chunks of a layer where the caller gives none."""

from __future__ import annotations

import jax

from fastjax.chunking import layer_time
from fastjax.moe.arrangement import Arrangement


def chunks_of(whole: Arrangement, tokens: int, top_k: int, seconds_per_row: float | None) -> int:
    """The number that the model of a layer predicts to be fastest; 1 where nothing can be gained.

    That is wherever nothing is known of the experts' work; in one process, whose processors both
    move rows and work; and on GPUs, where exchanges and experts have one stream. Elsewhere it is
    the fastest for a forward and a backward pass together: a program is not known to be
    differentiated when it is traced.

    Args:
      whole: how all tokens go.
      tokens: of a device.
      top_k: choices of each.
      seconds_per_row: see `layer`.
    """
    here = jax.process_count() == 1 or jax.default_backend() != "cpu"
    if seconds_per_row is None or here or tokens == 0 or whole.servers.count == 1:
        return 1
    best = layer_time(
        whole.servers.topology,
        tokens,
        top_k,
        whole.row_bytes,
        whole.experts.count,
        seconds_per_row=seconds_per_row,
        deduplicate=whole.deduplicated,
        crossing_bytes=whole.crossing_bytes,
        scheduler=whole.group.spec.scheduler,
        backward=True,
    )
    return best.chunks


__all__ = ["chunks_of"]
