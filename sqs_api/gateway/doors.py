"""Doors: the processes that take requests of clients: hosts of all clusters, gateways, workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cluster.peers.questions import Questions


class Doors(NamedTuple):
    """All doors, as one of them sees them. A process that is alone has none."""

    counts: Questions
    """Reaches the hosts, over `Channel.COUNTS`."""
    lender: Callable[[], str | None]
    """The host that lends rates: the leader of the first shard, None while there is none."""
    total: Callable[[], int]
    """The number of doors that may take requests now."""
