"""The parts that a shard is made of, and what its Lead tells it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from cluster.catalog.catalog import Catalog
from cluster.clock import Clock, Entropy
from cluster.shards.shard_report import ArchiveLimits, Followed, News
from cluster.shards.turn_sample import TurnSample
from storage.engines.store import Store, StoreFailed
from storage.histogram import Histogram
from visibility.content.sealing import Sealing
from visibility.contract.errors import QueueError
from visibility.contract.model import Definitions, Request
from visibility.rules.decided import DamageMet
from visibility.rules.events import Damage
from visibility.state.waiters import OnAnswer, Ticket

_TIMES_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_REQUESTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)

OpenStore = Callable[[], Awaitable[Store]]


class ShardParts(NamedTuple):
    """The parts that a shard is made of."""

    open_store: OpenStore
    clock: Clock
    entropy: Entropy
    definitions: Definitions
    """The catalog's view of queues."""
    archive: ArchiveLimits | None = None
    """Without it, nothing is archived."""
    sealing: Sealing | None = None
    """Without it, messages that move between queues keep their seals."""
    under_way_max: int = 1
    """Entries that may be appended and not committed (rule 6)."""
    remembers: bool = False
    """Answers are kept for retries."""
    shared_catalog: Catalog | None = None
    """Over a replicated store a new leader asks it: `definitions` may lag behind."""


class TurnTimes:
    """Histograms of a shard's Turns."""

    def __init__(self) -> None:
        self.seconds = Histogram(_TIMES_S)
        """Time that deciding took."""
        self.requests = Histogram(_REQUESTS)
        self.sample: TurnSample | None = None
        """None while nobody asks for it."""


class LeadOwner(Protocol):
    """The shard. It ends a Lead that reports a failure or damage."""

    followed: Followed
    """The queues whose rows somebody follows."""

    def on_failure(self, error: StoreFailed, tickets: Sequence[Ticket] = ()) -> None:
        """The store failed, or a Turn with these tickets."""

    def on_damage(self, error: DamageMet, new: Sequence[Ticket]) -> None:
        """A Turn met damage that another host heals; its `new` tickets changed nothing."""

    def rebuilds(self, damage: Damage) -> bool:
        """Have the next opening of the store rebuild a queue; False if it did so before."""

    def submit(self, request: Request, on_answer: OnAnswer) -> object:
        """Have the shard decide a request of its own."""

    def tell(self, news: News) -> None:
        """Tell the news of the shard."""

    def undecided(self) -> QueueError:
        """The answer to a request that was not decided."""
