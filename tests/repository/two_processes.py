"""A program of a job: exchanges rows between its processes, and says what came and over what."""

import jax
import jax.numpy as jnp
import numpy as np

import fastjax
import fastjax._core

ROWS = 16  # of a device's operand and of its output


def exchange(send_sizes: list[list[int]]) -> dict:
    """Device i sends send_sizes[i][j] rows to device j, in order; each row names itself.

    Returns:
      The rows of this process's devices, where they start, and whether the network is open.
    """
    mesh = jax.make_mesh(
        (jax.device_count(),), ("expert",), axis_types=(jax.sharding.AxisType.Auto,)
    )

    def spread(array: np.ndarray) -> jax.Array:
        sharding = jax.NamedSharding(mesh, jax.P("expert"))
        return jax.make_array_from_callback(array.shape, sharding, lambda at: array[at])

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=jax.P("expert"), out_specs=jax.P("expert"))
    def send(rows, send_sizes):
        sizes = jax.lax.all_gather(send_sizes, "expert")
        me = jax.lax.axis_index("expert")
        return fastjax.fast_ragged_all_to_all(
            rows,
            jnp.full((ROWS, 2), -1.0),
            input_offsets=(jnp.cumsum(sizes, axis=1) - sizes)[me],
            send_sizes=send_sizes,
            output_offsets=(jnp.cumsum(sizes, axis=0) - sizes)[me],
            recv_sizes=sizes[:, me],
            axis_name="expert",
        )

    rows = np.arange(len(send_sizes) * ROWS * 2, dtype=np.float32).reshape(-1, 2)
    received = send(spread(rows), spread(np.array(send_sizes, np.int32).ravel()))
    shards = received.addressable_shards
    return {
        "received": np.concatenate([shard.data for shard in shards]),
        "start": min(shard.index[0].start for shard in shards),
        "network_open": bool(fastjax._core.network_state()["open"]),
    }
