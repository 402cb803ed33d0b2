"""Routing traces, as Megatron-Core writes them with `--moe-routing-trace-path`.

Checked against Megatron-LM at commit d98e8a64dd (router_trace.py and moe_layer.py in
megatron/core/transformer/moe): the option names a folder, in which each rank writes a file
router_trace_rank{rank}.jsonl with one JSON object a line:

    {"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0,
     "num_tokens": 2, "topk": 2, "top_indices": [[12, 45], [3, 12]]}

top_indices has the experts of each token, numbered over all devices. rank is that of
torch.distributed. Layers of multi-token prediction have block "mtp" and a further field mtp_idx.
What else a line may have (places in files of hidden states and logits) is not read here. In
training, step is the iteration, so that a rank has one line for each of a layer's microbatches, and
may have more where activations are recomputed. Device d of an expert-parallel group holds experts
[d * e, (d + 1) * e), where e is their number on each.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks
from fastjax.traffic.text import FilePath, lines, open_for_writing

_FILE_NAME = re.compile(r"router_trace_rank(\d+)\.jsonl(\.gz)?")
_FIELDS = ("step", "stage", "block", "layer", "rank", "num_tokens", "topk", "top_indices")


@dataclasses.dataclass(frozen=True, eq=False)
class RoutingRecord:
    """Where one rank's tokens went in one layer, one time: a line of a trace.

    Attributes:
      step: training iteration, or step of inference.
      layer: number of the layer.
      rank: who routed these tokens.
      top_indices: experts of each token, integers of 0 or more, shape (tokens, k).
      block: "decoder", or "mtp" for multi-token prediction.
      mtp_idx: which head of multi-token prediction; None for others.
      stage: where it was recorded; Megatron-Core has "pre_dispatch" only.

    Raises:
      ArgumentError: a field is impossible.
    """

    step: int
    layer: int
    rank: int
    top_indices: np.ndarray
    block: str = "decoder"
    mtp_idx: int | None = None
    stage: str = "pre_dispatch"

    def __post_init__(self) -> None:
        for name in ("step", "layer", "rank", "mtp_idx"):
            value = getattr(self, name)
            if name != "mtp_idx" or value is not None:
                object.__setattr__(self, name, checks.integer(name, value, 0))
        for name in ("block", "stage"):
            if not isinstance(getattr(self, name), str):
                raise ArgumentError(f"{name} must be a name, got {getattr(self, name)!r}.")
        experts = np.array(self.top_indices)
        if experts.ndim != 2 or not np.issubdtype(experts.dtype, np.integer):
            raise ArgumentError(
                "top_indices must be integers, as many for each token; got "
                f"{experts.dtype} of shape {experts.shape}."
            )
        experts = experts.astype(np.int64)
        if experts.size and experts.min() < 0:
            raise ArgumentError(f"top_indices must be 0 or more, got {experts.min()}.")
        experts.flags.writeable = False
        object.__setattr__(self, "top_indices", experts)

    @property
    def num_tokens(self) -> int:
        """Tokens that were routed."""
        return self.top_indices.shape[0]

    @property
    def topk(self) -> int:
        """Experts of each token."""
        return self.top_indices.shape[1]


def read_routing_trace(path: FilePath) -> Iterator[RoutingRecord]:
    """Reads a trace, one record at a time.

    Args:
      path: a file of JSON lines, compressed with gzip or not, or a folder of files
        router_trace_rank*.jsonl or router_trace_rank*.jsonl.gz, which are read in order of rank.

    Yields:
      The records, in order of the file.

    Raises:
      ArgumentError: a line is no record, named by file and line; or the folder has no such file.
      OSError: a file cannot be read.
    """
    for file in _files(Path(path)):
        for where, line in lines(file):
            if line.strip():
                yield _record(where, line)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [(m, file) for file in sorted(path.iterdir()) if (m := _FILE_NAME.fullmatch(file.name))]
    if not found:
        raise ArgumentError(f"{path}: this folder has no file router_trace_rank*.jsonl.")
    of_rank: dict[int, Path] = {}
    for match, file in found:
        other = of_rank.setdefault(int(match[1]), file)
        if other != file:
            raise ArgumentError(f"{path}: rank {int(match[1])} has two files, {other} and {file}.")
    return [of_rank[rank] for rank in sorted(of_rank)]


def _record(where: str, line: str) -> RoutingRecord:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{where}: want a JSON object; {error}.") from None
    if not isinstance(fields, dict):
        raise ArgumentError(f"{where}: want a JSON object, got {type(fields).__name__}.")
    missing = [name for name in _FIELDS if name not in fields]
    if missing:
        raise ArgumentError(f"{where}: a routing record has a field {missing[0]!r}; got none.")
    try:
        shape = tuple(checks.integer(n, fields[n], 0, 2**31 - 1) for n in ("num_tokens", "topk"))
        record = RoutingRecord(
            top_indices=_experts(fields["top_indices"], shape),
            mtp_idx=fields.get("mtp_idx"),
            **{name: fields[name] for name in ("step", "stage", "block", "layer", "rank")},
        )
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from None
    return record


def _experts(top_indices: Any, shape: tuple[int, ...]) -> np.ndarray:
    if top_indices == []:
        experts = np.zeros((0, shape[1]), np.int64)  # JSON has no k where there are no tokens
    else:
        try:
            experts = np.array(top_indices)
        except (ValueError, OverflowError):
            raise ArgumentError("top_indices must be integers, as many for each token.") from None
    if experts.shape != shape:
        raise ArgumentError(
            f"num_tokens and topk say {shape[0]} x {shape[1]}, top_indices has "
            f"{' x '.join(map(str, experts.shape)) or 'no list'}."
        )
    return experts


def write_routing_trace(path: FilePath, records: Iterable[RoutingRecord]) -> None:
    """Writes records as `read_routing_trace` and Megatron-Core's tools read them.

    Megatron-Core's tools want one file for each rank, with the name router_trace_rank{rank}.jsonl.

    Args:
      path: the file; compressed with gzip where its name ends in .gz.
      records: the lines of the trace.

    Raises:
      OSError: the file cannot be written.
    """
    with open_for_writing(path) as stream:
        for record in records:
            fields = {name: getattr(record, name) for name in _FIELDS[:-1]}
            fields["top_indices"] = record.top_indices.tolist()
            if record.mtp_idx is not None:
                fields["mtp_idx"] = record.mtp_idx
            stream.write(json.dumps(fields) + "\n")
