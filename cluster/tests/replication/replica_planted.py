"""Bugs that the simulator must find, planted into the production code for the time of a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from cluster.replication import candidacy
from cluster.replication.candidacy import Adopting, Asking
from cluster.replication.following import Follower
from cluster.replication.journal import Journal
from cluster.replication.leadership import Seen, Taken
from cluster.replication.leading import Leading
from cluster.replication.replica import Replica
from cluster.replication.replica_messages import Appended, Heartbeat
from cluster.replication.voters import VoterSet
from cluster.tests.replication import test_log_in_cluster as log_stories
from cluster.tests.replication import test_replica_rules as stories
from cluster.tests.replication.replica_run import Shape
from storage.log import LogMismatch, Position, Promise, PromiseFile, ReplicaLog

Plant = Callable[[pytest.MonkeyPatch], None]
Story = Callable[[], None]


def no_learner_rule(patch: pytest.MonkeyPatch) -> None:
    """A replica is its host: one that lost its disk counts at once."""

    def renewed(self: Journal, promise: Promise | None, damage: str) -> Promise:
        return promise or Promise(self._folder.parent.name)

    patch.setattr(Journal, "_renewed", renewed)


def acknowledge_before_the_majority(patch: pytest.MonkeyPatch) -> None:
    """An Entry is committed once the leader has synced it."""
    for module in ("leading", "shipping"):
        patch.setattr(
            f"cluster.replication.{module}.reached_by_majority",
            lambda reached, voters: max(reached.values()),
        )


def count_entries_of_older_terms(patch: pytest.MonkeyPatch) -> None:
    """An Entry is committed once a majority has it, whatever its term."""
    begin = Leading.begin

    def begin_at_once(self: Leading) -> None:
        self._first = 0
        begin(self)

    patch.setattr(Leading, "begin", begin_at_once)


def _give_again(self: Journal, promise: Promise, given: Callable[[], None]) -> bool:
    """A promise to oneself may be repeated."""
    assert self._promises is not None
    standing = self.standing
    is_ours = promise.leader in (standing.leader, promise.replica_id)
    if promise.term < standing.term or (promise.term == standing.term and not is_ours):
        return False
    self._promises.write(promise, partial(self._given, self._openings, promise, given))
    self._pending = promise
    return True


def keep_the_term_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """The last leader goes on in its term."""

    next_term = Asking._next_term

    def same_term(self: Asking) -> int:
        promise, term = self._replica.journal.promise, next_term(self)
        is_ours = promise.leader == self._replica.replica_id and promise.term == term - 1
        return promise.term if is_ours else term

    patch.setattr(Asking, "_next_term", same_term)
    patch.setattr(Journal, "give", _give_again)


def refresh_an_old_key(patch: pytest.MonkeyPatch) -> None:
    """A key that bears our name is ours, with its term."""
    seen_by = Replica._seen

    def seen_key(self: Replica, seen: Seen) -> None:
        is_free = self.part is None and self.journal.is_open
        if is_free and seen.holder and seen.record and seen.holder.name == self.name:
            self.key.hold(seen.holder)
            record = seen.record
            voters = VoterSet(seen.holder.term, record.voters, record.old_voters)
            self.play(Adopting(self, Taken(seen.holder, voters, seen.revision)))
        else:
            seen_by(self, seen)

    patch.setattr(Replica, "_seen", seen_key)
    patch.setattr(Journal, "give", _give_again)


def no_check_of_the_previous_checksum(patch: pytest.MonkeyPatch) -> None:
    """Entries are taken behind whatever is there."""

    def place(self: ReplicaLog, previous: Position, records: list[bytes]) -> int | None:
        if previous.index > self.last_index:
            return None
        for record in records:
            entry = self.decode(record)
            if entry.index > self.last_index:
                self._write(record, entry.term, entry.checksum)
        return previous.index + len(records)

    patch.setattr(ReplicaLog, "place", place)


def skip_the_promise_sync(patch: pytest.MonkeyPatch) -> None:
    """A promise is answered when it is written."""

    def write(self: PromiseFile, slot: bytes, at: int) -> None:
        self._disk.pwrite(self._handle, slot, at)

    patch.setattr(PromiseFile, "_write", write)


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A follower tells its leader of what it has written."""

    def acknowledge(self: Follower) -> None:
        if self._verified:
            term = self.journal.promise.term
            self.send(self._leader, Appended(term, self.replica_id, self._verified))
            self.commit_to(min(self._told_commit, self._verified))

    def sync(self: Journal) -> None:
        synced(self)
        self._on_synced()

    synced = Journal.sync
    patch.setattr(Follower, "_acknowledge", acknowledge)
    patch.setattr(Journal, "sync", sync)


def verified_by_another_leader(patch: pytest.MonkeyPatch) -> None:
    """Entries of one leader's log are taken to be in the next one's."""

    patch.setattr(Follower, "_given", Follower.guarded)


def commit_what_is_not_verified(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat's commit index is true of whatever the log holds."""
    heartbeat = Follower._on_heartbeat

    def on_heartbeat(self: Follower, sender: str, message: Heartbeat) -> None:
        heartbeat(self, sender, message)
        if message.term == self.journal.promise.term:
            self.commit_to(min(message.commit, self.log.synced_index))

    patch.setattr(Follower, "_on_heartbeat", on_heartbeat)


def answer_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    """A leader takes its word for it that it leads."""
    patch.setattr(Replica, "confirm", lambda self, done: done(True))


def adopt_the_longest_log(patch: pytest.MonkeyPatch) -> None:
    """Whatever the term of its last Entry."""
    patch.setattr(candidacy, "is_better", lambda one, other: one.index > other.index)


def adopt_nothing(patch: pytest.MonkeyPatch) -> None:
    """A candidate leads with the log it has."""
    patch.setattr(candidacy, "is_better", lambda one, other: False)


def forget_the_log_above_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint replaces the log as well as the rows."""
    open_files = Journal._open

    def mismatch(*given: object) -> None:
        raise LogMismatch

    def open_over(
        self: Journal,
        promises: PromiseFile,
        applied: Position,
        keep: int | None,
        *,
        rows_replaced: bool,
        lost: str,
    ) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if rows_replaced:
                inner.setattr("cluster.replication.journal_files.read_log", mismatch)
            open_files(self, promises, applied, keep, rows_replaced=rows_replaced, lost=lost)

    patch.setattr(Journal, "_open", open_over)


PLANTS: tuple[tuple[Plant, Shape | Story], ...] = (
    (no_learner_rule, Shape(often=("new disk", "flipped bit", "cut off"))),
    (no_learner_rule, stories.test_a_new_disk_under_an_old_name_does_not_count),
    (acknowledge_before_the_majority, Shape()),
    (count_entries_of_older_terms, Shape(often=("starve",), batch_bytes=1)),
    (
        count_entries_of_older_terms,
        stories.test_entries_of_older_terms_are_committed_with_one_of_the_leaders_own,
    ),
    (keep_the_term_after_a_restart, Shape(often=("crash at a message",))),
    (refresh_an_old_key, stories.test_a_key_with_our_name_is_deleted_and_its_term_spent),
    (no_check_of_the_previous_checksum, Shape()),
    (skip_the_promise_sync, Shape()),
    (acknowledge_before_the_sync, log_stories.test_an_entry_counts_where_it_is_durable),
    (
        verified_by_another_leader,
        log_stories.test_entries_of_another_leader_are_not_acknowledged_in_a_new_term,
    ),
    (
        commit_what_is_not_verified,
        log_stories.test_entries_of_another_leader_are_not_acknowledged_in_a_new_term,
    ),
    (answer_without_confirmation, Shape(often=("isolate",))),
    (
        answer_without_confirmation,
        partial(stories.test_a_deposed_leader_does_not_answer_after_it_was_stopped, False),
    ),
    (adopt_the_longest_log, stories.test_a_longer_log_of_an_older_term_is_not_adopted),
    (
        adopt_nothing,
        stories.test_a_candidate_adopts_the_log_that_a_majority_may_have_committed,
    ),
    (
        forget_the_log_above_a_checkpoint,
        log_stories.test_what_was_acknowledged_above_a_checkpoint_stays,
    ),
)
"""Each with the kind of run, or the story, in which it shows."""
