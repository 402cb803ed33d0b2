"""Training over the devices of one or several processes: arrays, steps, checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
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
      bias_rate: what the bias of an expert changes by in a step, to the same end.
    """

    def __init__(
        self,
        shape: model.Shape,
        optimizer: optax.GradientTransformation,
        balance: float,
        bias_rate: float,
    ) -> None:
        self.shape, self._optimizer = shape, optimizer
        self._balance, self._bias_rate = balance, bias_rate
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
        """Parameters as they are at first, the optimizer's state, and no bias of experts."""
        params = model.init(self.shape, seed)
        bias = np.zeros((self.shape.layers, self.shape.experts), np.float32)
        state = {"params": params, "optimizer": self._optimizer.init(params), "bias": bias}
        return jax.tree.map(self.put, state, model.specs(state))

    def loss(self, layer: Layer) -> Callable[[Any, Any, Any], Any]:
        """Of parameters, bias and batch; see `model.loss`, but for all devices together."""
        local = functools.partial(model.loss, shape=self.shape, layer=layer, balance=self._balance)
        params = model.specs(jax.eval_shape(lambda: model.init(self.shape, 0)))
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(params, jax.P(), jax.P(AXIS)),
            out_specs=(jax.P(), (jax.P(), jax.P(None, AXIS), jax.P())),
        )

    def step(self, layer: Layer) -> Step:
        """One step of training; the state is donated.

        The bias of experts that had fewer rows than the mean rises, and that of others falls
        (auxiliary-loss-free balancing, arXiv 2408.15664, algorithm 1).

        It returns the new state, and of this step the loss in nats a byte; the experts that tokens
        chose, shape (layers, tokens, k); and the rows of each layer's slowest device by the mean.
        """
        gradients = jax.value_and_grad(self.loss(layer), has_aux=True)

        @functools.partial(jax.jit, donate_argnums=0)
        def step(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
            bias = state["bias"]
            (_, (entropy, ids, rows)), grads = gradients(state["params"], bias, batch)
            updates, optimizer = self._optimizer.update(grads, state["optimizer"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            mean = rows.mean(-1, keepdims=True)
            bias += self._bias_rate * jnp.sign(mean - rows)
            of_devices = rows.reshape(len(rows), self.mesh.size, -1).sum(-1)
            slowest = of_devices.max(-1) / of_devices.mean(-1)
            state = {"params": params, "optimizer": optimizer, "bias": bias}
            return state, {"loss": entropy, "ids": ids, "slowest": slowest}

        return step

    def evaluation(self, layer: Layer) -> Callable[[State, Any], Any]:
        """The loss of a state on a batch, in nats a byte."""
        whole = self.loss(layer)
        return jax.jit(lambda state, batch: whole(state["params"], state["bias"], batch)[1][0])

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
