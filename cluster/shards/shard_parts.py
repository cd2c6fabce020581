"""The parts that a shard and its Lead are made of, and what the Lead tells the shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from cluster.clock import Clock, Entropy
from cluster.shards.issued_ids import SharedCatalog
from cluster.shards.shard_report import ArchiveLimits, Followed, News
from cluster.shards.turn_sample import TurnSample
from storage.engines.store import Store, StoreFailed
from storage.histogram import Histogram
from visibility.content.sealing import Sealing
from visibility.contract.errors import QueueError
from visibility.contract.model import Definitions, Request
from visibility.rules.decided import DamageMet
from visibility.state.waiters import OnAnswer, Ticket

TURN_REQUESTS_MAX = 512
"""Requests of one Turn; bounds the time for which the event loop is held."""
PASSES_MAX = 4
"""Passes of the event loop for which a Turn waits."""
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
    shared_catalog: SharedCatalog | None = None
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

    @property
    def followed(self) -> Followed:
        """The queues whose rows somebody follows."""

    def on_failure(self, error: StoreFailed, tickets: Sequence[Ticket] = ()) -> None:
        """The store failed, or a Turn with these tickets."""

    def on_damage(self, error: DamageMet, new: Sequence[Ticket]) -> None:
        """A Turn met damage that another host heals; its `new` tickets changed nothing."""

    def submit(self, request: Request, on_answer: OnAnswer) -> object:
        """See `Shard.submit`."""

    def tell(self, news: News) -> None:
        """Tell the news of the shard."""

    def undecided(self) -> QueueError:
        """The answer to a request that was not decided."""


class TurnBatching:
    """Lets a Turn wait for requests that are just coming.

    An Entry costs as much as several requests: a sync, and its way to another thread and back; with
    peers as much as some thirty, for their writes and answers. The requests that the last Entry's
    answers cause take several passes of the event loop to read, so a Turn at the first of them
    would decide few.
    """

    def __init__(self, run_turn: Callable[[], None], *, lone_waits: bool) -> None:
        """Unless `lone_waits`, a request that comes alone after a Turn with no others is decided at
        once: where one client asks at a time, nothing follows."""
        self._run_turn = run_turn
        self._lone_waits = lone_waits
        self._seen = self._passes = self._latest = 0

    def goes_on(self, waiting: int) -> bool:
        """True if this pass brought requests: `run_turn` is called again in the next one."""
        comes = self._seen < waiting < TURN_REQUESTS_MAX
        if comes and self._passes < PASSES_MAX and not self._is_lone(waiting):
            self._seen = waiting
            self._passes += 1
            asyncio.get_running_loop().call_soon(self._run_turn)
            return True
        self._seen = self._passes = 0
        self._latest = waiting
        return False

    def _is_lone(self, waiting: int) -> bool:
        return waiting == 1 and self._latest <= 1 and not self._lone_waits


class Alarm:
    """Calls `on_time` at the earliest deadline it was set to."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None, now_ms: int) -> None:
        """Go off at this time too; None for never."""
        if at_ms is None or (self._timer is not None and self._at_ms <= at_ms):
            return
        self.cancel()
        self._at_ms = at_ms
        delay_s = max(0, at_ms - now_ms) / 1000 + 0.0005
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_off)

    def cancel(self) -> None:
        """Do not go off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        self._on_time()
