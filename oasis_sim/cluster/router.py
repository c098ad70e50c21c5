"""Which decode node a request is promised to."""

from __future__ import annotations

import heapq


class Router:
    """Promise requests to the decode node that was given the fewest tokens so far."""

    def __init__(self, nodes: int) -> None:
        self._given = [(0, node) for node in range(nodes)]

    def decode(self, tokens: int) -> int:
        """Return the node of the next request."""
        given, node = heapq.heappop(self._given)
        heapq.heappush(self._given, (given + tokens, node))
        return node
