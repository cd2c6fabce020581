"""Rates: requests a second for each account and queue, and AWS's quotas of FIFO queues. Off unless
configured.

`limits` reads the rates. Its memory counts by the wall clock, which may be set back by an hour, and
starts a thread for each expiry, so the windows are counted here, by the monotonic clock. They are
fixed: twice the rate may pass at their border. Of several doors each counts up to an allowance,
which `lent_rates.py` has lent to it; without one up to its share.
Source: SQS quotas: 300 calls a second for each API action of a FIFO queue, or for each message
group of one whose FifoThroughputLimit is perMessageGroupId; a batch is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest

from limits import RateLimitItem, RateLimitItemPerSecond, parse

from auth.caller import Caller
from visibility.contract.errors import RequestThrottled
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import Operation

_SWEEP_S = 1.0
_FIFO_QUOTA = RateLimitItemPerSecond(300)


class Window:
    """The hits of one thing that is limited, in one fixed window."""

    __slots__ = (
        "allowed",
        "amount",
        "asked",
        "asked_before",
        "end_s",
        "is_news",
        "lent",
        "lent_until_s",
        "passed",
    )

    def __init__(self, amount: int) -> None:
        self.amount = amount
        """The hits of one window that the rate lets pass at all doors together."""
        self.end_s = 0.0
        self.asked = self.asked_before = 0
        """Hits of this window and of the one before, refused ones too."""
        self.passed = 0
        self.allowed = 0
        """Hits of this window that may pass here."""
        self.lent = 0
        self.lent_until_s = 0.0
        self.is_news = False
        """True if there were hits since the lender last heard of it."""

    def begin(self, now_s: float, length_s: float, doors: int) -> None:
        """Begin the next window."""
        is_next = now_s < self.end_s + length_s
        self.asked_before = self.asked if is_next else 0
        self.asked = self.passed = 0
        self.end_s = now_s + length_s
        self.limit(now_s, doors)

    def limit(self, now_s: float, doors: int) -> None:
        """Let pass what is lent, or the share of one door."""
        share = max(1, self.amount // doors)
        self.allowed = self.lent if now_s < self.lent_until_s else share


class _Windows:
    """Counts by key, in windows of a second."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self.now_s = monotonic_s
        self.doors = 1
        self.kept: dict[tuple[str, str], Window] = {}
        self.on_unlent: Callable[[], None] | None = None
        self.news: dict[tuple[str, str], Window] = {}
        """Those that the lender is to hear of."""
        self._sweep_at_s = 0.0

    def hit(self, rate: RateLimitItem, kind: str, name: str) -> bool:
        """Count a hit, which is within what may pass here if this is True."""
        now_s = self.now_s()
        if now_s >= self._sweep_at_s:
            self._sweep(now_s)
        key = kind, name
        window = self.kept.get(key)
        if window is None:
            window = self.kept[key] = Window(rate.amount)
        if now_s >= window.end_s:
            window.begin(now_s, rate.get_expiry(), self.doors)
            if self.on_unlent is not None and now_s >= window.lent_until_s:
                self.on_unlent()
        window.asked += 1
        if not window.is_news:
            window.is_news = True
            self.news[key] = window
        if window.passed < window.allowed:
            window.passed += 1
            return True
        if self.on_unlent is not None and window.allowed < window.amount:
            self.on_unlent()
        return False

    def _sweep(self, now_s: float) -> None:
        """Drop what is over, and notice allowances that have ended within a window."""
        self._sweep_at_s = now_s + _SWEEP_S
        kept: dict[tuple[str, str], Window] = {}
        for key, window in self.kept.items():
            if now_s < window.end_s or now_s < window.lent_until_s:
                window.limit(now_s, self.doors)
                kept[key] = window
            elif window.is_news:
                self.news.pop(key, None)
        self.kept = kept

    def __len__(self) -> int:
        """The number of windows that are kept."""
        return len(self.kept)


class Rates:
    """Counts requests and refuses those above a rate."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        *,
        account_rate: str | None,
        queue_rate: str | None,
        fifo_quotas: bool,
    ) -> None:
        """Rates as `limits` reads them, such as "3000/second"; None: none. Raises ValueError."""
        self._account = None if account_rate is None else parse(account_rate)
        self._queue = None if queue_rate is None else parse(queue_rate)
        self._fifo_quotas = fifo_quotas
        self._windows = _Windows(monotonic_s)
        self.throttled = {"account": 0, "queue": 0, "fifo": 0}
        """Refused requests, by the limit that refused them."""

    @property
    def is_needed(self) -> bool:
        """True if anything is limited."""
        return bool(self._account or self._queue or self._fifo_quotas)

    def rate_of(self, kind: str) -> tuple[int, float] | None:
        """The hits of one window of a kind of limit, and its length; None without such a limit."""
        quota = _FIFO_QUOTA if self._fifo_quotas else None
        rate = {"account": self._account, "queue": self._queue, "fifo": quota}.get(kind)
        return (rate.amount, rate.get_expiry()) if rate is not None else None

    def share_among(self, doors: int, on_unlent: Callable[[], None] | None = None) -> None:
        """`doors` processes count together. `on_unlent` is called when there is no allowance, or
        hits are refused here that might pass elsewhere."""
        self._windows.doors, self._windows.on_unlent = doors, on_unlent

    def lend(self, window: Window, lent: int, until_s: float) -> None:
        """Let `lent` hits of each window pass until then."""
        window.lent, window.lent_until_s = lent, until_s
        window.limit(self._windows.now_s(), self._windows.doors)

    def take_news(self, most: int) -> list[tuple[tuple[str, str], Window]]:
        """The windows with hits that the lender has not heard of, by the kind of limit and the name
        of what is limited; of more than `most` those with most hits."""
        news = self._windows.news
        found = nlargest(most, news.items(), lambda each: each[1].asked)
        for key, window in found:
            window.is_news = False
            del news[key]
        return found

    def hear_again(self, told: list[tuple[tuple[str, str], Window]]) -> None:
        """The lender did not hear of these."""
        for key, window in told:
            if self._windows.kept.get(key) is window:
                window.is_news = True
                self._windows.news[key] = window

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
            self._hit("fifo", _FIFO_QUOTA, f"{queue.queue_id} {action}")

    def check_groups(self, queue: QueueDefinition, parts: Iterable[object]) -> None:
        """Count a send to the message groups of a queue of high throughput.

        Raises RequestThrottled.
        """
        if self._fifo_quotas and queue.settings.fifo and _is_high_throughput(queue):
            for group in {part.group for part in parts if isinstance(part, Content)}:
                self._hit("fifo", _FIFO_QUOTA, f"{queue.queue_id} {group.hex()}")

    def _hit(self, kind: str, rate: RateLimitItem, name: str) -> None:
        if not self._windows.hit(rate, kind, name):
            self.throttled[kind] += 1
            raise RequestThrottled("Rate exceeded")


def _is_high_throughput(queue: QueueDefinition) -> bool:
    return queue.attributes.get("FifoThroughputLimit") == "perMessageGroupId"
