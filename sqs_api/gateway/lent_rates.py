"""Lent rates: one rate over several doors (gateways, hosts, workers) that each count alone.

One host, the leader of the fleet's first shard, lends each door an allowance: the hits that it may
let pass in one window. The allowances of all doors are the rate, divided by what each was asked
for lately; a door asks twice a second about what it was asked for, and at once when it refuses.
Requests wait for none of this.

- While no lender answers, a door keeps its allowance for LENT_S, then lets its share pass: the
  rate divided by the number of doors. So all shares are the rate, and while some doors still have
  an allowance at most twice the rate passes.
- A door that begins has its share until its first answer, for which it asks at once.
- A door is known by its certificate, and what it says is believed within what it can have: no more
  than its lender's rate, and no more passed than it was lent or its share. So one in wrong hands
  keeps its fair part from the others, not the rate.
- A lender that begins, or heard nothing for LISTEN_S, lends nothing new for as long: each door
  that is asked for something says what it has meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from cluster.peers.questions import Question, Questions, Said
from sqs_api.gateway.rates import Rates, Window

LENT_S = 10.0
"""Time for which a door has an allowance: longer than it takes until another host leads."""
_LATE_S = 1.5
"""The lender counts it so much longer: a door notices its end a little late."""
ASK_S = 0.5
LISTEN_S = 2.0
_AT_ONCE_S = 0.05
"""Least time between two questions of a door."""
_WAIT_S = 2.0
_TIDY_S = 10.0
_WINDOWS_MAX = 1000
"""Windows of one question: those that were asked for most."""
_LEND = "lend-rates"
_OK, _NOT_LENDER = 200, 409


class Doors(NamedTuple):
    """All processes that take requests of clients, as one of them sees them. A process that is
    alone has none."""

    counts: Questions
    """Reaches the hosts, over `Channel.COUNTS`."""
    lender: Callable[[], str | None]
    """The host that lends rates: the leader of the first shard, None while there is none."""
    total: Callable[[], int]
    """The number of doors that may take requests now."""


class Wanted(msgspec.Struct, array_like=True, frozen=True):
    """A window of a door, as it tells the lender."""

    kind: str
    name: str
    amount: int
    asked: int
    """Hits of this window or the one before, whichever has more."""
    passed: int
    left_s: float
    """The rest of the window in which they passed."""
    lent: int
    """The allowance that the door has; 0 without one."""


_decode_wanted = msgspec.msgpack.Decoder(list[Wanted]).decode
_decode_lent = msgspec.msgpack.Decoder(list[int | None]).decode


@dataclass(slots=True)
class _Loan:
    """The hits that one door has, or has used up."""

    asked: int = 0
    lent: int = 0
    lent_until_s: float = 0.0
    passed: int = 0
    passed_until_s: float = 0.0
    most: int = 0
    """The most that it was lent lately: no more can have passed."""
    most_until_s: float = 0.0

    def allow(self, lent: int, now_s: float, for_s: float) -> None:
        """So much may have passed until its window is over."""
        if lent >= self.most or now_s >= self.most_until_s:
            self.most, self.most_until_s = lent, now_s + for_s

    def passed_at_most(self, now_s: float) -> int:
        """The most that it was lent for a window that is not over."""
        most = self.most if now_s < self.most_until_s else 0
        return max(most, self.lent if now_s < self.lent_until_s else 0)

    def taken(self, now_s: float) -> int:
        """The hits of a window that nobody else may have."""
        lent = self.lent if now_s < self.lent_until_s else 0
        return max(lent, self.passed if now_s < self.passed_until_s else 0)

    @property
    def until_s(self) -> float:
        """The time from which nothing of it counts."""
        return max(self.lent_until_s, self.passed_until_s)


class Lender:
    """Divides rates among doors."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        rate_of: Callable[[str], tuple[int, float] | None],
        doors: Callable[[], int],
    ) -> None:
        """`rate_of` says the hits of a window of a kind of limit, and the window's length, as this
        process has them."""
        self._now_s = monotonic_s
        self._rate_of = rate_of
        self._doors = doors
        self._listens_until_s = float("inf")
        self._asked_s = float("-inf")
        self._tidied_s = float("-inf")
        self._loans: dict[tuple[str, str], dict[str, _Loan]] = {}

    def lend(self, door: str, wanted: Sequence[Wanted]) -> list[int | None]:
        """The allowance of a door for each of its windows; None while it is to go on as it does."""
        now_s = self._now_s()
        if now_s >= self._asked_s + LISTEN_S:  # it may be that another host lent meanwhile
            self._listens_until_s = now_s + LISTEN_S
        self._asked_s = now_s
        if now_s >= self._tidied_s + _TIDY_S:
            self._tidied_s = now_s
            for key in list(self._loans):
                self._tidy(key, now_s)
        listens = now_s < self._listens_until_s
        return [self._lend(door, each, now_s, listens=listens) for each in wanted]

    def _tidy(self, key: tuple[str, str], now_s: float) -> None:
        left = {door: loan for door, loan in self._loans[key].items() if now_s < loan.until_s}
        if left:
            self._loans[key] = left
        else:
            del self._loans[key]

    def _lend(self, door: str, wanted: Wanted, now_s: float, *, listens: bool) -> int | None:
        amount, length_s = self._rate_of(wanted.kind) or (wanted.amount, wanted.left_s)
        loans = self._loans.setdefault((wanted.kind, wanted.name), {})
        own = loans.setdefault(door, _Loan())
        if listens:
            own.allow(min(max(wanted.lent, wanted.passed), amount), now_s, length_s + LENT_S)
        most = max(1, amount // self._doors(), own.passed_at_most(now_s))
        own.asked, own.passed = max(0, wanted.asked), max(0, min(wanted.passed, most))
        own.passed_until_s = now_s + min(wanted.left_s, length_s)
        others = [loan for loan in loans.values() if loan is not own and now_s < loan.until_s]
        free = amount - sum(loan.taken(now_s) for loan in others)
        fair = fair_part(amount, own.asked, [loan.asked for loan in others])
        own.lent = max(min(wanted.lent if listens else fair, free), 0)
        own.lent_until_s = now_s + LENT_S + _LATE_S
        own.allow(own.lent, now_s, length_s + LENT_S + _LATE_S)
        return None if listens and not wanted.lent else own.lent


def fair_part(amount: int, asked: int, others: Sequence[int]) -> int:
    """The part of a door that was asked for `asked` hits, beside others: what it was asked for and
    an equal part of the rest; or what is left by those that were asked for less, divided equally
    among those that were asked for more."""
    doors = 1 + len(others)
    rest = amount - asked - sum(others)
    if rest >= 0:
        return asked + -(-rest // doors)
    for least in sorted((asked, *others)):
        level = -(-amount // doors)
        if least > level:
            return min(asked, level)
        amount, doors = amount - least, doors - 1
    return asked


class LentRates:
    """Borrows for the rates of this process, and lends while it is the lender. Belongs to the event
    loop's thread."""

    def __init__(self, rates: Rates, doors: Doors, monotonic_s: Callable[[], float]) -> None:
        self._rates = rates
        self._doors = doors
        self._now_s = monotonic_s
        self._lender = Lender(monotonic_s, rates.rate_of, doors.total)
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        doors.counts.serve(_LEND, self._lend)
        if rates.is_needed:
            rates.share_among(doors.total(), self._ask_soon)

    async def _lend(self, question: Question) -> Said:
        if self._doors.lender() != self._doors.counts.host:
            return Said(_NOT_LENDER, b"")
        wanted = _decode_wanted(question.body)[:_WINDOWS_MAX]
        return Said(_OK, msgspec.msgpack.encode(self._lender.lend(question.asker, wanted)))

    def look(self) -> None:
        """Ask if there is news. Due every ASK_S."""
        self._rates.share_among(self._doors.total(), self._ask_soon)
        self._ask_soon()

    def _ask_soon(self) -> None:
        is_due = self._now_s() >= self._asked_s + _AT_ONCE_S
        if is_due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def stop(self) -> None:
        """Ask no more."""
        self._rates.share_among(self._doors.total())
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        lender, now_s = self._doors.lender(), self._now_s()
        self._asked_s = now_s
        news = [] if lender is None else self._rates.take_news(_WINDOWS_MAX)
        if lender is None or not news:
            return
        wanted = [_wanted(kind, name, window, now_s) for (kind, name), window in news]
        body = msgspec.msgpack.encode(wanted)
        said = await self._doors.counts.ask(lender, Question(_LEND, b"", body), _WAIT_S)
        if said is None or said.status != _OK:
            self._rates.hear_again(news)
            return
        for (_, window), lent in zip(news, _decode_lent(said.body), strict=True):
            if lent is not None:
                self._rates.lend(window, lent, now_s + LENT_S)


def _wanted(kind: str, name: str, window: Window, now_s: float) -> Wanted:
    left_s = max(0.0, window.end_s - now_s)
    lent = window.lent if now_s < window.lent_until_s else 0
    asked = max(window.asked, window.asked_before)
    return Wanted(kind, name, window.amount, asked, window.passed if left_s else 0, left_s, lent)
