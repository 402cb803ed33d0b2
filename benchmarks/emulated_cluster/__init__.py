"""A cluster on one machine: servers as network namespaces, joined by a switch with slow ports."""
