"""Bugs that the simulator must find, planted into the production code for the time of a test."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from cluster.shards.lead import Lead
from cluster.tests.simulation.planting import Plant
from cluster.tests.simulation.simulated_run import Shape
from storage.engines import opening as engine_opening
from storage.engines.durable import DurableStore
from storage.engines.store import Done
from storage.log import Log, Position, Reading, log_opening
from storage.log.entry import Entry
from storage.log.header import Header
from storage.log.identity import write_identity
from storage.log.scan import Scan
from storage.rows.entry_body import decode_body
from storage.rows.stored_rows import StoredRows
from visibility.rows.row_changes import Changes
from visibility.rules.decided import Decided
from visibility.state.stamp import Stamp


def replay_from_one_entry_too_late(patch: pytest.MonkeyPatch) -> None:
    """A start leaves out the first Entry behind the rows."""

    def replay(reading: Reading, opening: engine_opening._Opening) -> int:
        for entry in list(reading.entries())[1:]:
            opening.rows.write(decode_body(entry.body).ops, entry.position)
        return 0

    patch.setattr(engine_opening, "_replay", replay)


def forget_the_tail(patch: pytest.MonkeyPatch) -> None:
    """A start replays nothing."""
    patch.setattr(engine_opening, "_replay", lambda reading, opening: 0)


def release_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """Segments are reused while the rows are not durable."""
    flush = DurableStore._flush

    async def release_and_flush(
        self: DurableStore, reached: Position | None, changed_rows: int
    ) -> None:
        assert self._log is not None
        assert reached is not None
        self._log.release(reached.index)
        await flush(self, reached, changed_rows)

    patch.setattr(DurableStore, "_flush", release_and_flush)


def read_by_index_alone(patch: pytest.MonkeyPatch) -> None:
    """An Entry belongs to the log if its index does."""

    def by_index(
        self: Scan, at: Position | Entry, entry: Entry, header: Header, offset: int
    ) -> bool:
        return entry.index == at.index + 1

    patch.setattr(Scan, "follows", by_index)
    patch.setattr(Scan, "term_fits", lambda self, term, header, offset: True)


def keep_the_term(patch: pytest.MonkeyPatch) -> None:
    """A start that keeps the previous term."""

    def take_term(reading: Reading, log_id: bytes) -> int:
        term = max(reading.highest_term, 1)
        write_identity(reading.disk, reading.folder, reading.identity.slots, log_id, term)
        return term

    patch.setattr(log_opening, "_take_term", take_term)


def answer_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """An Entry counts once it is written."""

    def sync(self: DurableStore, done: Done) -> None:
        assert self._log is not None
        self._log.sync(lambda failure: None)
        asyncio.get_running_loop().call_soon(done, None)

    patch.setattr(DurableStore, "sync", sync)


def answer_unchanged_turns_at_once(patch: pytest.MonkeyPatch) -> None:
    """A Turn that changed nothing does not wait for the Entries that it saw."""
    commit = Lead._commit

    def commit_or_answer(self: Lead, decided: Decided, stamp: Stamp) -> None:
        if not self._rows.changes:
            self._answer_all(decided.answers)
            decided = decided._replace(answers=[])
        commit(self, decided, stamp)

    patch.setattr(Lead, "_commit", commit_or_answer)


def apply_rows_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Rows have an Entry before it is synced, and keep it if that fails."""
    commit = Lead._commit
    apply = DurableStore.apply

    def commit_early(self: Lead, decided: Decided, stamp: Stamp) -> None:
        before = len(self._under_way)
        commit(self, decided, stamp)
        if len(self._under_way) > before:
            apply(self._store, self._under_way[-1].changes)  # type: ignore[arg-type]

    patch.setattr(Lead, "_commit", commit_early)
    patch.setattr(DurableStore, "apply", lambda self, changes: None)


def drop_the_overlay_early(patch: pytest.MonkeyPatch) -> None:
    """Changes of Entries under way are not read any more once they are appended."""

    def take_changes(self: StoredRows) -> Changes:
        changes, self.changes = self.changes, Changes()
        self.store.layers[-1] = self.changes
        return changes

    patch.setattr(StoredRows, "take_changes", take_changes)
    patch.setattr(StoredRows, "forget", lambda self, changes: None)


def trust_a_file_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """A failed sync is tried again, which "succeeds"."""
    sync_all = Log._sync_all

    def try_twice(self: Log, handles: list[int]) -> None:
        with suppress(OSError):
            sync_all(self, handles)
            return
        sync_all(self, handles)

    patch.setattr(Log, "_sync_all", try_twice)


PLANTS: tuple[tuple[Plant, Shape], ...] = (
    (replay_from_one_entry_too_late, Shape()),
    (forget_the_tail, Shape()),
    (release_before_the_flush, Shape()),
    (read_by_index_alone, Shape(is_alike=True)),
    (keep_the_term, Shape()),
    (answer_before_the_sync, Shape()),
    (answer_unchanged_turns_at_once, Shape()),
    (apply_rows_before_the_commit, Shape()),
    (drop_the_overlay_early, Shape()),
    (trust_a_file_after_a_failed_sync, Shape()),
)
"""Each with the kind of run in which it shows."""
