"""Training over the devices of one or several processes: arrays, steps, checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

from moe_lm import model
from moe_lm.layers import AXIS, Layer

State = dict[str, Any]
Step = Callable[[State, Any], tuple[State, dict[str, Any]]]


class Trainer:
    """A model on all devices of the program, tokens and experts spread over the same axis.

    Args:
      shape: of the model.
      optimizer: of optax.
      balance: weight of the loss that keeps experts equally busy.
    """

    def __init__(
        self, shape: model.Shape, optimizer: optax.GradientTransformation, balance: float
    ) -> None:
        self.shape, self._optimizer, self._balance = shape, optimizer, balance
        kind = jax.sharding.AxisType.Auto
        self.mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(kind,))
        self._copy = jax.jit(lambda x: x, out_shardings=self._sharding(jax.P()))

    def _sharding(self, spec: Any) -> jax.NamedSharding:
        return jax.NamedSharding(self.mesh, spec)

    def put(self, array: np.ndarray, spec: Any) -> jax.Array:
        """An array that every process has, over all devices."""
        array = np.asarray(array)
        return jax.make_array_from_callback(
            array.shape, self._sharding(spec), lambda index: array[index]
        )

    def batch(self, sequences: np.ndarray) -> jax.Array:
        """Sequences, an equal part on each device."""
        return self.put(sequences, jax.P(AXIS))

    def start(self, seed: int) -> State:
        """Parameters as they are at first, and the optimizer's state."""
        params = model.init(self.shape, seed)
        state = {"params": params, "optimizer": self._optimizer.init(params)}
        return jax.tree.map(self.put, state, model.specs(state))

    def loss(self, layer: Layer) -> Callable[[Any, Any], Any]:
        """Of parameters and batch; see `model.loss`, but for all devices together."""
        local = functools.partial(model.loss, shape=self.shape, layer=layer, balance=self._balance)
        params = model.specs(jax.eval_shape(lambda: model.init(self.shape, 0)))
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(params, jax.P(AXIS)),
            out_specs=(jax.P(), (jax.P(), jax.P(None, AXIS))),
        )

    def step(self, layer: Layer) -> Step:
        """One step of training; the state is donated.

        It returns the new state, and of this step the loss in nats a byte and the experts that
        tokens chose, shape (layers, tokens, k).
        """
        gradients = jax.value_and_grad(self.loss(layer), has_aux=True)

        @functools.partial(jax.jit, donate_argnums=0)
        def step(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
            (_, (entropy, ids)), grads = gradients(state["params"], batch)
            updates, optimizer = self._optimizer.update(grads, state["optimizer"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "optimizer": optimizer}, {"loss": entropy, "ids": ids}

        return step

    def evaluation(self, layer: Layer) -> Callable[[Any, Any], Any]:
        """The loss of parameters on a batch, in nats a byte."""
        whole = self.loss(layer)
        return jax.jit(lambda params, batch: whole(params, batch)[1][0])

    def everywhere(self, array: jax.Array) -> np.ndarray:
        """All of an array, in every process."""
        return np.asarray(self._copy(array))


class Checkpoints:
    """States of a run on disk, with its losses so far; all processes share the folder.

    Args:
      folder: where; made if need be.
      keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self._folder = folder
        self._manager = ocp.CheckpointManager(
            folder.resolve(), options=options, item_names=("state", "notes")
        )

    @property
    def newest(self) -> int | None:
        """Steps done in the newest checkpoint, if there is one."""
        return self._manager.latest_step()

    def save(self, steps: int, state: State, history: dict[str, Any]) -> None:
        """After so many steps."""
        items = {
            "state": ocp.args.StandardSave(state),
            "notes": ocp.args.JsonSave({"history": history, "shapes": _shapes(state)}),
        }
        self._manager.save(steps, args=ocp.args.Composite(**items))

    def restore(self, steps: int, like: State) -> tuple[State, dict[str, Any]]:
        """State and losses after so many steps.

        Args:
          steps: of a checkpoint that there is.
          like: a state of the same shapes, laid out as wanted.

        Raises:
          ValueError: the checkpoint is of another model.
        """
        only_notes = ocp.args.Composite(notes=ocp.args.JsonRestore())
        notes = self._manager.restore(steps, args=only_notes)["notes"]
        if notes["shapes"] != _shapes(like):
            raise ValueError(
                f"{self._folder} is of another model, with other sizes. Say the same as for the "
                "run that goes on, or give another --folder."
            )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        return self._manager.restore(steps, args=items)["state"], notes["history"]

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()


def _shapes(state: State) -> list[list[int]]:
    return [list(array.shape) for array in jax.tree.leaves(state)]
