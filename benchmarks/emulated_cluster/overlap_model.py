"""What the model of a layer predicts of the programs of `overlap`."""

import dataclasses

import fastjax
from emulated_cluster import layer_work
from fastjax.chunking.times import BACKWARD
from fastjax.simulation import LayerTimes, layer_time

EXCHANGES, EXPERTS, CHOSEN = "exchanges alone", "experts alone", "chosen"
LEVELLED = " levelled"


@dataclasses.dataclass(frozen=True)
class Model:
    """What the model of a layer predicts of the programs: it has seen none of them.

    It knows the fabric, and how long a layer of one token takes. What that takes longer than the
    model says is what the model leaves out of a layer in one chunk: the counts, and what this
    machine takes to begin anything.

    Attributes:
      layer: what is sent.
      topology: the fabric.
      deduplicate: whether tokens cross once.
      seconds_per_row: that experts take, forward.
      backward: whether there is a backward pass, which is a layer whose experts take longer.
      one_token_s: what a layer of one token takes, measured.
    """

    layer: layer_work.Layer
    topology: fastjax.Topology
    deduplicate: bool
    seconds_per_row: float
    backward: bool
    one_token_s: float

    def seconds_of(self, program: str) -> float:
        """Of a program, by its name."""
        rows = layer_work.arriving(self.layer, self.layer.choices())
        if program.endswith(LEVELLED):
            rows = layer_work.levelled(self.layer, self.layer.choices())
            program = program.removesuffix(LEVELLED)
        if program == EXPERTS:
            return rows * self.seconds_per_row * (1 + BACKWARD if self.backward else 1)
        chunks = 1 if program == EXCHANGES else self._chunks(program)
        # Experts are equally popular in the model; here they take what the busiest ones do.
        busiest = rows / (self.layer.tokens * self.layer.top_k)
        each = 0.0 if program == EXCHANGES else self.seconds_per_row * busiest
        one = dataclasses.replace(self, layer=dataclasses.replace(self.layer, tokens=1))
        left_out = self.one_token_s - one._layer(0.0, 1, backward=self.backward).total
        return max(0.0, left_out) + self._layer(each, chunks, backward=self.backward).total

    def _chunks(self, program: str) -> int:
        if program != CHOSEN:
            return int(program)
        return self._layer(self.seconds_per_row, None, backward=True).chunks  # as moe.layer does

    def _layer(self, seconds_per_row: float, chunks: int | None, *, backward: bool) -> LayerTimes:
        layer = self.layer
        return layer_time(
            self.topology,
            layer.tokens,
            layer.top_k,
            layer.row_bytes,
            layer.experts,
            seconds_per_row=seconds_per_row,
            chunks=chunks,
            deduplicate=self.deduplicate,
            backward=backward,
        )
