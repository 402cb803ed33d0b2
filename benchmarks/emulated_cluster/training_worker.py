"""The process of one server: trains as its part of the job, and takes the times of steps.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import sys
from pathlib import Path
from typing import Any

import fastjax

sys.path.append(str(Path(__file__).parents[2] / "examples"))


def serve(
    fabric: dict[str, Any],  # noqa: ARG001
    topology: dict[str, Any],
    training: dict[str, Any],
) -> dict[str, Any]:
    """Losses, and seconds of steps by layer.

    Args:
      fabric: keyword arguments of Fabric.
      topology: keyword arguments of fastjax.Topology.
      training: options of examples/train_moe.py.
    """
    import train_moe

    training["folder"] = Path(training["folder"])
    with fastjax.options(topology=fastjax.Topology(**topology)):
        history = train_moe.run(train_moe.TrainOptions(**training, compare=True))
    return {"losses": history["losses"], "compared": history["compared"]}
