"""The network, for people to read."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastjax import _core, config
from fastjax.errors import FastjaxError
from fastjax.network import library


def report(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Library, NICs, transports and state of the network between processes, by name."""
    try:
        options = config.network_from_environment(environ)
        path, found_how = library.find(options.library, environ)
    except FastjaxError as error:
        return {"library": str(error)}
    nics = ", ".join(options.nics) or "UCX's choice; set FASTJAX_UCX_NICS to change"
    transports = options.transports or "UCX's choice; set FASTJAX_UCX_TRANSPORTS to change"
    section = {"library": f"{path} ({found_how})", "NICs": nics, "transports": transports}
    return section | _state(_core.network_state())


def _state(state: dict[str, object]) -> dict[str, str]:
    if not state["open"]:
        return {"state": "not open: the first exchange that spans processes opens it"}
    rest = {name: str(value) for name, value in state.items() if name != "open"}
    return {"state": "open"} | {f"  {name}": value for name, value in rest.items()}
