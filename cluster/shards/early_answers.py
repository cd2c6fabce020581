"""EarlyAnswers: those that wait for the leader's own disk, not for a majority (`async`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from storage.engines.store import SharedStore
from visibility.rules.decided import Answers
from visibility.rules.features import OPERATIONS


class EarlyAnswers:
    """The early answers of one shard that have not left."""

    def __init__(self, store: SharedStore, release: Callable[[Answers], None]) -> None:
        self._store = store
        self._release = release
        self._held: deque[Answers] = deque()
        """By Entry that is not synced here, oldest first."""

    def hold(self, answers: Answers, *, has_entry: bool) -> Answers:
        """Hold the early ones of a Turn until this host has durably what it saw; return the
        others."""
        early: Answers = []
        others: Answers = []
        for each in answers:
            kind = OPERATIONS[type(each[0].request.operation)]
            (early if kind.is_early else others).append(each)
        if has_entry:
            self._held.append(early)
        elif self._held:
            self._held[-1].extend(early)
        else:
            self._release(early)
        return others

    def appended(self) -> None:
        """The Entry of the last Turn is under way."""
        self._store.once_synced(lambda: self._release(self._held.popleft()))

    def take_all(self) -> Answers:
        """Take the answers out: they must not leave."""
        taken = [each for answers in self._held for each in answers]
        self._held.clear()
        return taken
