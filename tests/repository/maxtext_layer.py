"""MaxText's layer of experts: with its exchange, under the swap, and without.

Nothing of MaxText is replaced. Options of its own keep it from kernels for TPUs (`megablox`), and
choose between sorted rows, which are exchanged, and each expert on every token (`sparse_matmul`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import own_layers
from flax import linen, nnx
from maxtext.configs import pyconfig
from maxtext.layers import initializers, moe
from maxtext.utils import globals as paths
from maxtext.utils import maxtext_utils

jax.config.update("jax_num_cpu_devices", 8)
WIDTH, INNER = 16, 32


def configure(*, sparse_matmul: bool) -> Any:
    return pyconfig.initialize(
        [None, str(Path(paths.MAXTEXT_CONFIGS_DIR) / "base.yml")],
        sparse_matmul=sparse_matmul,
        megablox=False,
        ici_expert_parallelism=4,
        num_experts=8,
        num_experts_per_tok=2,
        base_emb_dim=WIDTH,
        base_mlp_dim=INNER,
        base_moe_mlp_dim=INNER,
        dtype="float32",
        hardware="cpu",
        skip_jax_distributed_system=True,
        enable_checkpointing=False,
        log_config=False,
        run_name="own_layers",
    )


def run(
    config: Any, preference: float, x: jax.Array, how: Callable[..., Any], **options: int
) -> Any:
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    module = moe.RoutedMoE(
        config=config,
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        mesh=mesh,
        kernel_init=initializers.nd_dense_init(1.0, "fan_in", "truncated_normal"),
        kernel_axes=("embed", "mlp"),
        intermediate_dim=config.moe_mlp_dim,
        dtype=config.dtype,
        rngs=nnx.Rngs(0),
    )
    definition, params, rest = nnx.split(module, nnx.Param, ...)
    router: Any = params["gate"]["kernel"]
    router[...] = own_layers.prefer_first(router[...], preference)

    def layer(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(definition, params, rest)(x)[0]

    with jax.set_mesh(mesh), linen.logical_axis_rules(config.logical_axis_rules):
        return how(layer, params, x, **options)


def main() -> None:
    sparse, dense = configure(sparse_matmul=True), configure(sparse_matmul=False)
    # One sequence is on all devices: its rows are exchanged only on their way back.
    for sequences, exchanges in [(8, 4), (1, 2)]:
        x = own_layers.tokens(sequences, 12, WIDTH)
        for preference in own_layers.PREFERENCES:
            wanted = run(dense, preference, x, own_layers.without_exchange)
            got = run(sparse, preference, x, own_layers.under_the_swap, exchanges=exchanges)
            own_layers.assert_same(got, wanted)


if __name__ == "__main__":
    main()
