"""RefusedReceives: receives that a shard answered with an error although they may have happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from cluster.shards.answers import UnderWay, returning
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.outcomes import Deliveries
from visibility.rules.acknowledge import ReturnMessages, UndoReceive
from visibility.state.waiters import OnAnswer

GIVING_BACK = (ReturnMessages, UndoReceive)
"""Operations that a shard decides as long as it leads, although it stops."""


class RefusedReceives:
    """Those of Entries that failed and may be durable all the same. Once the shard is loaded anew,
    they are given back before anything else is decided."""

    def __init__(self) -> None:
        self._returns: list[Request] = []

    def note(self, under_way: Iterable[UnderWay]) -> None:
        """These Entries failed."""
        self._returns += [
            returning(ticket.request, answer)
            for entry in under_way
            for ticket, answer in entry.answers
            if isinstance(answer, Deliveries) and answer.leases
        ]

    def give_back(self, submit: Callable[[Request, OnAnswer], object]) -> None:
        """Have them given back. What such a receive did not get has another receive count."""
        returns, self._returns = self._returns, []
        for request in returns:
            submit(request, partial(self._answered, request))

    def _answered(self, request: Request, answer: object) -> None:
        if isinstance(answer, ServiceUnavailable):  # the shard failed once more
            self._returns.append(request)
