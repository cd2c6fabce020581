"""Rates: requests a second for each account and queue, and AWS's quotas of FIFO queues. Off unless
configured.

`limits` reads the rates. Its memory counts by the wall clock, which may be set back by an hour, and
starts a thread for each expiry, so the windows are counted here, by the monotonic clock. They are
fixed: twice the rate may pass at their border.
Source: SQS quotas: 300 calls a second for each API action of a FIFO queue, or for each message
group of one whose FifoThroughputLimit is perMessageGroupId; a batch is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from limits import RateLimitItem, RateLimitItemPerSecond, parse

from auth.caller import Caller
from visibility.contract.errors import RequestThrottled
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import Operation

_SWEEP_S = 1.0
_FIFO_QUOTA = RateLimitItemPerSecond(300)


class _Windows:
    """Counts of fixed windows, by what they count."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        """Hits, and the end of the window."""
        self._sweep_at_s = 0.0

    def hit(self, rate: RateLimitItem, kind: str, name: str) -> bool:
        """Count a hit, which is within the rate if this is True."""
        now_s = self._now_s()
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + _SWEEP_S
            self._counts = {key: kept for key, kept in self._counts.items() if now_s < kept[1]}
        count, end_s = self._counts.get((kind, name), (0, 0.0))
        if now_s >= end_s:
            count, end_s = 0, now_s + rate.get_expiry()
        self._counts[kind, name] = count + 1, end_s
        return count < rate.amount

    def __len__(self) -> int:
        """The number of windows that are kept."""
        return len(self._counts)


class Rates:
    """Counts requests and refuses those above a rate. Belongs to the event loop's thread."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        *,
        account_rate: str | None,
        queue_rate: str | None,
        fifo_quotas: bool,
        workers: int = 1,
    ) -> None:
        """Rates as `limits` reads them, such as "3000/second"; None: none. Each of the workers of a
        machine lets its share pass. Raises ValueError."""
        self._account = None if account_rate is None else _share(parse(account_rate), workers)
        self._queue = None if queue_rate is None else _share(parse(queue_rate), workers)
        self._fifo_quota = _share(_FIFO_QUOTA, workers)
        self._fifo_quotas = fifo_quotas
        self._windows = _Windows(monotonic_s)
        self.throttled = {"account": 0, "queue": 0, "fifo": 0}
        """Refused requests, by the limit that refused them."""

    @property
    def is_needed(self) -> bool:
        """True if anything is limited."""
        return bool(self._account or self._queue or self._fifo_quotas)

    def check_account(self, caller: Caller) -> None:
        """Count a request of an account. Raises RequestThrottled."""
        if self._account is not None:
            self._hit("account", self._account, caller.account)

    def check_queue(self, operation: Operation, queue: QueueDefinition) -> None:
        """Count a request on the messages of a queue. Raises RequestThrottled."""
        if self._queue is not None:
            self._hit("queue", self._queue, str(queue.queue_id))
        if self._fifo_quotas and queue.settings.fifo and not _is_high_throughput(queue):
            action = type(operation).__name__.removesuffix("Batch")
            self._hit("fifo", self._fifo_quota, f"{queue.queue_id} {action}")

    def check_groups(self, queue: QueueDefinition, parts: Iterable[object]) -> None:
        """Count a send to the message groups of a queue of high throughput.

        Raises RequestThrottled.
        """
        if self._fifo_quotas and queue.settings.fifo and _is_high_throughput(queue):
            for group in {part.group for part in parts if isinstance(part, Content)}:
                self._hit("fifo", self._fifo_quota, f"{queue.queue_id} {group.hex()}")

    def _hit(self, kind: str, rate: RateLimitItem, name: str) -> None:
        if not self._windows.hit(rate, kind, name):
            self.throttled[kind] += 1
            raise RequestThrottled("Rate exceeded")


def _share(rate: RateLimitItem, workers: int) -> RateLimitItem:
    return type(rate)(max(1, rate.amount // workers), rate.multiples)


def _is_high_throughput(queue: QueueDefinition) -> bool:
    return queue.attributes.get("FifoThroughputLimit") == "perMessageGroupId"
