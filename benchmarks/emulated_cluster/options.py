"""The options of the programs, and how rates and sizes are written."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from emulated_cluster.fabric import Fabric
from emulated_cluster.system import ClusterError
from emulated_cluster.work import WORKLOADS
from fastjax.scheduling import schedulers_in_programs

RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20}


def amount(text: str, units: Mapping[str, int], what: str) -> int:
    """A whole number of units, as in 100mbit or 128k.

    Raises:
      ClusterError: it is written otherwise.
    """
    found = re.fullmatch(r"(\d+)([a-z]*)", text.lower())
    if not found or found[2] not in units:
        known = ", ".join(f"100{unit}" for unit in units)
        raise ClusterError(f"--{what} must be like {known}; got {text!r}.")
    return int(found[1]) * units[found[2]]


@dataclasses.dataclass(frozen=True)
class FabricOptions:
    """The network of the emulated cluster, and what the planner is told of it."""

    servers: int = 4
    """Servers: network namespaces, with one process each."""
    rails: int = 2
    """NICs of a server, and devices of its process."""
    rate: str = "100mbit"
    """Of a NIC and of a port of the switch."""
    port_buffer: str = "128k"
    """What a port of the switch queues before it drops."""
    nic_buffer: str = "2m"
    """What a NIC queues."""
    mtu: int = 9000
    """Bytes of a packet."""
    congestion_control: str = "cubic"
    """Of TCP: what this kernel has (reno, cubic, bbr, ...)."""
    delay: float = 0.0
    """Seconds that the rails' cables take from end to end; the trunk takes none."""
    name: str = "fjx"
    """Of the cluster; one at a time has a name."""
    scale_up_bandwidth: float = 2e9
    """What the planner is told of copies inside a server, in bytes/s a device."""
    scale_up_latency: float = 5e-5
    """The same: seconds to start a step inside a server."""
    scale_out_latency: float = 5e-4
    """The same: seconds to start a stage between servers, apart from what cables take."""

    def fabric(self) -> Fabric:
        """The fabric these options describe."""
        return Fabric(
            servers=self.servers,
            rails=self.rails,
            rate=amount(self.rate, RATES, "rate"),
            port_buffer=amount(self.port_buffer, SIZES, "port-buffer"),
            nic_buffer=amount(self.nic_buffer, SIZES, "nic-buffer"),
            mtu=self.mtu,
            congestion_control=self.congestion_control,
            delay=self.delay,
            name=self.name,
        )

    def topology(self) -> dict[str, float]:
        """What fastjax.Topology is told."""
        return {
            "scale_up_bandwidth": self.scale_up_bandwidth,
            "scale_up_latency": self.scale_up_latency,
            "scale_out_bandwidth": amount(self.rate, RATES, "rate") / 8,
            # A large message is announced, asked for, and then comes.
            "scale_out_latency": self.scale_out_latency + 3 * self.delay,
        }


def all_known(options: object, option: str, known: tuple[str, ...]) -> None:
    """Refuses names that there are not.

    Raises:
      ClusterError: a value of the option is none of `known`.
    """
    unknown = [name for name in getattr(options, option) if name not in known]
    if unknown:
        raise ClusterError(f"--{option} {unknown[0]}: there are {', '.join(known)}.")


def above_zero(options: "MeasuredOptions | TrainingOptions") -> None:
    """Refuses numbers that are not above 0, but for those that may be.

    Raises:
      ClusterError: one is not.
    """
    for name, value in vars(options).items():
        if type(value) in (int, float) and value <= 0 and name not in ("delay", "seed", "exponent"):
            raise ClusterError(f"--{name.replace('_', '-')} must be above 0.")


@dataclasses.dataclass(frozen=True)
class MeasuredOptions(FabricOptions):
    """What programs that send rows have in common."""

    seconds: float = 1.0
    """The line-rate limit of what is sent: its size is chosen so."""
    rounds: int = 5
    """Times that each program runs, in turn with the others."""
    row_bytes: int = 4096
    """Bytes of a row."""
    seed: int = 0
    """Of what is random: traffic or choices, and the order within rounds."""
    timeout: float = 1800.0
    """Seconds that the whole job may take."""
    json: Path | None = None
    """File for the full record."""

    def __post_init__(self) -> None:
        above_zero(self)
        if self.row_bytes < 4 or self.row_bytes % 4:
            raise ClusterError(f"--row-bytes must be a multiple of 4, got {self.row_bytes}.")

    def check_layer(self, option: str, experts: int, top_k: int) -> None:
        """Refuses a layer that cannot be laid out in the cluster.

        Raises:
          ClusterError: experts do not divide over devices, a token chooses too many or none, or
            nothing crosses.
        """
        devices = self.servers * self.rails
        if experts < 1 or experts % devices or not 1 <= top_k <= experts:
            raise ClusterError(
                f"{option}: want experts that divide over {devices} devices, and 1 to {experts} "
                "choices."
            )
        if self.servers < 2:
            raise ClusterError("--servers must be 2 or more: nothing crosses otherwise.")


@dataclasses.dataclass(frozen=True)
class TrainingOptions(FabricOptions):
    """Trains examples/train_moe.py's model in an emulated cluster, as root on Linux.

    Then times its steps by scheduler, and with the dense padded layer over gloo.
    """

    schedulers: tuple[str, ...] = schedulers_in_programs()
    """Schedulers to measure."""
    ways: tuple[str, ...] = ("once:1", "once:4", "each:1", "each:4")
    """Other layers to measure, by how often a token crosses to a server, and chunks."""
    steps: int = 30
    """Steps of training first, so that routing is real."""
    rounds: int = 7
    """Times that a step of each layer runs, in turn."""
    sequences: int = 4
    """Sequences of 64 bytes, of a device in a step."""
    width: int = 64
    """Width of a token."""
    timeout: float = 1800.0
    """Seconds that the whole job may take."""
    json: Path | None = None
    """File for the full record."""

    def __post_init__(self) -> None:
        above_zero(self)
        all_known(self, "schedulers", schedulers_in_programs())


@dataclasses.dataclass(frozen=True)
class LayerOptions(MeasuredOptions):
    """Measures a layer's dispatch and combine in an emulated cluster, as root on Linux.

    Tokens that cross once to each server, and once for each choice, side by side. Ports of the
    switch queue all, so that no packet is lost, as on InfiniBand and lossless Ethernet.
    """

    rate: str = "50mbit"
    """Of a NIC and of a port of the switch."""
    port_buffer: str = "4m"
    """What a port of the switch queues before it drops."""
    seconds: float = 2.0
    """The line-rate limit of what is sent: its size is chosen so."""
    layers: tuple[str, ...] = ("64:8:0", "64:8:0.8", "8:2:0")
    """Experts, choices of a token and Zipf exponent of experts' popularity, of each layer."""
    schemes: tuple[str, ...] = ("once", "each choice", "each choice, direct", "chosen")
    """What to compare."""
    backward: bool = False
    """Whether to take the gradients too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for layer in self.layers:
            if not re.fullmatch(r"\d+:\d+:\d+(\.\d+)?", layer):
                raise ClusterError(f"--layers {layer}: want experts:choices:exponent, 64:8:0.8.")
            experts, top_k = map(int, layer.split(":")[:2])
            self.check_layer(f"--layers {layer}", experts, top_k)


@dataclasses.dataclass(frozen=True)
class OverlapOptions(MeasuredOptions):
    """Measures a layer in chunks in an emulated cluster, as root on Linux.

    Experts take a time that is set, and no processor. NICs are slower than in other programs, so
    that two cores copy and send the rows in a small part of the time that these take to cross.
    Ports of the switch queue all, so that no packet is lost.
    """

    rate: str = "12500kbit"
    """Of a NIC and of a port of the switch."""
    port_buffer: str = "4m"
    """What a port of the switch queues before it drops."""
    nic_buffer: str = "512k"
    """What a NIC queues."""
    row_bytes: int = 512
    """Bytes of a row: of few tokens, a chunk's experts would be less equally popular."""
    experts: int = 64
    """Of all devices together."""
    top_k: int = 8
    """Choices of a token."""
    chunks: tuple[int, ...] = (1, 2, 4)
    """Numbers of chunks; what moe.layer chooses is measured besides."""
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """What experts take, as a multiple of what exchanges take alone."""
    backward: bool = False
    """Whether to take the gradients too."""
    deduplicate: bool = True
    """Whether a token crosses once to each server."""
    exponent: float = 0.0
    """Of the Zipf law of experts' popularity; 0: all alike."""
    balance: bool = False
    """Whether to measure each number of chunks with levelled experts, too."""
    timelines: bool = False
    """Whether to record when experts work and NICs send, in one more run of the fewest and of the
    most chunks, at the ratio nearest to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_layer(f"--experts {self.experts} --top-k {self.top_k}", self.experts, self.top_k)
        if not self.chunks or min(self.chunks) < 1 or not self.ratios or min(self.ratios) <= 0:
            raise ClusterError("--chunks must be 1 or more each, and --ratios above 0.")


@dataclasses.dataclass(frozen=True)
class BenchOptions(MeasuredOptions):
    """Measures exchanges between JAX processes in an emulated cluster, as root on Linux.

    Compares every scheduler with a dense padded all_to_all and with all_gather, both over gloo, by
    the line-rate limit of the same traffic. Every result is verified.
    """

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    """Traffic: pair-zipf and expert, both of exponent 0.8, and balanced."""
    schedulers: tuple[str, ...] = schedulers_in_programs()
    """Schedulers to measure."""
    baselines: bool = True
    """Whether to measure what there is without fastjax."""
    seconds: float = 2.0
    """The line-rate limit of each workload: its size is chosen so."""
    baseline_rounds: int = 3
    """Times that each baseline runs, in the first rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        all_known(self, "workloads", tuple(WORKLOADS))
        all_known(self, "schedulers", schedulers_in_programs())
