"""Random histories of the log: no synced Entry is lost and no other appears, whatever the disk
does.

Each planted bug must be found, or the histories prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from storage.log import Log, LogFailed, Position, Reading, log_opening
from storage.log.entry import Entry
from storage.log.header import Header
from storage.log.identity import write_identity
from storage.log.log_opening import _Copy
from storage.log.log_segments import Segment, Spares, write_header
from storage.log.scan import Scan
from storage.tests.log_history import History

STEPS = 80
SEEDS = 2 * int(os.environ.get("SIMULATION_SEEDS", "200"))


def test_a_log_holds_what_was_synced_and_nothing_that_was_not_appended() -> None:
    for seed in range(SEEDS):
        History(seed).run(STEPS)


def test_a_flipped_bit_is_no_entry_and_hides_none_in_silence() -> None:
    noticed = 0
    for seed in range(400, 440):
        history = History(seed)
        history.run(STEPS)
        noticed += history.damage(20)

    assert noticed > 50


def _is_found(history: Callable[[int], History] = History, seeds: int = 600) -> bool:
    for seed in range(seeds):
        try:
            history(seed).run(STEPS)
        except AssertionError:
            return True
    return False


def test_a_segment_that_is_reused_before_the_flush_is_found() -> None:
    assert _is_found(lambda seed: History(seed, releases_early=True))


def test_a_replay_from_one_entry_too_late_is_found() -> None:
    assert _is_found(lambda seed: History(seed, replays_late=True))


@pytest.mark.slow
def test_a_log_without_a_chain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_index_only(
        self: Scan, at: Position | Entry, entry: Entry, header: Header, offset: int
    ) -> bool:
        return entry.index == at.index + 1

    monkeypatch.setattr(Scan, "follows", by_index_only)
    assert _is_found()


def test_a_term_that_is_kept_after_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_term(reading: Reading, log_id: bytes) -> int:
        term = max(reading.highest_term, 1)
        write_identity(reading.disk, reading.folder, reading.identity.slots, log_id, term)
        return term

    monkeypatch.setattr(log_opening, "_take_term", keep_term)
    assert _is_found()


def test_trust_in_the_page_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "tail", lambda self, applied: iter(()))
    assert _is_found()


def test_headers_that_are_written_before_what_they_promise_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = _Copy._begin

    def begin_with_header(self: _Copy, first: int, previous: int) -> None:
        begin(self, first, previous)
        write_header(self._disk, self.segments[-1], self._headers[-1])
        self._disk.fdatasync(self.segments[-1].handle)

    monkeypatch.setattr(_Copy, "_begin", begin_with_header)
    assert _is_found()


def test_a_failed_sync_that_is_tried_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgive(
        self: Log, reached: int, done: Callable[[LogFailed | None], None], error: Exception | None
    ) -> None:
        self._syncs -= 1
        if error is None:
            self.synced_index = max(self.synced_index, reached)
        done(None if error is None else LogFailed("but the next one succeeds"))
        self._close_if_idle()

    monkeypatch.setattr(Log, "_synced", forgive)
    assert _is_found()


def test_a_sync_without_older_segments_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_newest(self: Log, handles: list[int]) -> None:
        self._disk.fdatasync(handles[-1])

    monkeypatch.setattr(Log, "_sync_all", sync_newest)
    assert _is_found()


def test_a_new_file_that_is_not_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_write(self: Spares, segment: Segment) -> None:
        segment.is_written = False
        segment.size = max(segment.size, self.segment_bytes)
        self._disk.write_zeros(segment.handle, segment.size, 0)

    monkeypatch.setattr(Spares, "_write_zeros", only_write)
    assert _is_found()
