"""The process of one server: trains as its part of the job, and takes the times of steps.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import sys
from pathlib import Path
from typing import Any

import fastjax

sys.path.append(str(Path(__file__).parents[2] / "examples"))


def serve(options: dict[str, Any], topology: dict[str, Any]) -> dict[str, Any]:
    """Losses, and seconds of steps by layer.

    Args:
      options: those of examples/train_moe.py.
      topology: keyword arguments of fastjax.Topology.
    """
    import train_moe

    options = {**options, "folder": Path(options["folder"])}
    with fastjax.options(topology=fastjax.Topology(**topology)):
        history = train_moe.run(train_moe.TrainOptions(**options, compare=True))
    return {"losses": history["losses"], "compared": history["compared"]}
