"""Bugs of asynchronous replication that the simulator of a cluster must find, planted for the time
of a test."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cluster.replication import replicated_store
from cluster.replication.replicated_store import Proposal, ReplicatedStore
from cluster.shards.answers import EarlyAnswers
from cluster.tests.simulation.cluster_run import APART, Shape
from cluster.tests.simulation.planting import Plant, change_operation
from storage.engines.store_options import Replication
from visibility.contract.operations import ReceiveMessage
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.departures import ClearOutbox, ReadOutbox


def rows_at_the_local_sync(patch: pytest.MonkeyPatch) -> None:
    """The leader's rows do not wait for a majority either."""
    on_synced = ReplicatedStore.on_synced

    def and_apply(self: ReplicatedStore) -> None:
        on_synced(self)
        synced_index = self.replica.log.synced_index
        while self._proposals and 0 < self._proposals[0].index <= synced_index:
            self._release_proposal(self._proposals.popleft())

    patch.setattr(ReplicatedStore, "on_synced", and_apply)


def answer_before_the_own_sync(patch: pytest.MonkeyPatch) -> None:
    """Early answers leave at the append."""

    def at_once(self: EarlyAnswers) -> None:
        release = self._held[-1]
        self._store.once_synced(lambda: self._release(release))
        self._store._proposals[-1].tell_synced()  # type: ignore[attr-defined]
        self._held.pop()

    patch.setattr(EarlyAnswers, "appended", at_once)


def forget_the_bound(patch: pytest.MonkeyPatch) -> None:
    """Any amount is answered that no majority has."""

    def synced_ones(
        proposals: Iterable[Proposal], synced_index: int, bytes_max: int
    ) -> list[Proposal]:
        return [each for each in proposals if 0 < each.index <= synced_index]

    patch.setattr(replicated_store, "synced_ones", synced_ones)


def receive_what_may_be_lost(patch: pytest.MonkeyPatch) -> None:
    """Receives do not wait for a majority either."""
    change_operation(patch, ReceiveMessage, is_early=True)


def cross_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Messages change the shard although either side may be lost."""
    for operation in (ReadOutbox, AcceptMessages, ClearOutbox):
        change_operation(patch, operation, is_early=True)


_ASYNC = Shape(often=APART, replication=Replication.ASYNC)

ASYNC_PLANTS: tuple[tuple[Plant, Shape], ...] = (
    (rows_at_the_local_sync, _ASYNC),
    (answer_before_the_own_sync, _ASYNC),
    (forget_the_bound, _ASYNC),
    (receive_what_may_be_lost, _ASYNC),
    (cross_before_the_commit, _ASYNC._replace(shards=3)),
)
"""Each with the kind of run in which it shows."""
