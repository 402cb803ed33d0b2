"""Traffic matrices: from files, from routing traces, and made up.

A traffic matrix has in row i, column j the rows that device i sends to device j; int64, shape
(devices, devices), in the server-major numbering of `fastjax.Topology`. numpy only.
"""

from fastjax.traffic.files import read_matrix, write_matrix
from fastjax.traffic.routing import (
    Exchange,
    RoutingRecord,
    read_routing_trace,
    traffic_from_routing,
    write_routing_trace,
)

__all__ = [
    "Exchange",
    "RoutingRecord",
    "read_matrix",
    "read_routing_trace",
    "traffic_from_routing",
    "write_matrix",
    "write_routing_trace",
]
