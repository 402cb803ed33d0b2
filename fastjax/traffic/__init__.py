"""Traffic matrices: from files, from routing traces, and synthetic.

A traffic matrix has in row i, column j the rows that device i sends to device j; int64, shape
(devices, devices), in the server-major numbering of `fastjax.Topology`. numpy only.
"""

from fastjax.traffic.experts import ROUTINGS, Routing
from fastjax.traffic.files import read_matrix, write_matrix
from fastjax.traffic.generators import expert_popularity, gini, pair_zipf, uniform, zipf
from fastjax.traffic.layers import LayerTraffic, layer_traffic
from fastjax.traffic.routing import Exchange, choices_from_routing, traffic_from_routing
from fastjax.traffic.traces import RoutingRecord, read_routing_trace, write_routing_trace

__all__ = [
    "ROUTINGS",
    "Exchange",
    "LayerTraffic",
    "Routing",
    "RoutingRecord",
    "choices_from_routing",
    "expert_popularity",
    "gini",
    "layer_traffic",
    "pair_zipf",
    "read_matrix",
    "read_routing_trace",
    "traffic_from_routing",
    "uniform",
    "write_matrix",
    "write_routing_trace",
    "zipf",
]
