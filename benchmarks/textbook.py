"""Birkhoff's decomposition as textbooks have it: the yardstick of cpp/textbook.cc, for figures."""

import numpy as np


def pad(rows: np.ndarray) -> np.ndarray:
    """Fills a square matrix up until all its lines have the sum of the largest one."""
    padded = rows.astype(np.int64)
    total = max(padded.sum(axis=0).max(), padded.sum(axis=1).max())
    for i in range(len(padded)):
        for j in range(len(padded)):
            padded[i, j] += total - max(padded[i].sum(), padded[:, j].sum())
    return padded


def decompose(rows: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Perfect matchings of the padded matrix, each as long as its smallest entry.

    Args:
      rows: what each server sends to each, square, of 0 or more.

    Returns:
      For each matching the target of every server, and its length.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    left = pad(rows)
    servers = np.arange(len(left))
    matchings = []
    while left.any():
        targets = maximum_bipartite_matching(csr_array(left), perm_type="column")
        length = int(left[servers, targets].min())
        left[servers, targets] -= length
        matchings.append((targets, length))
    return matchings
