"""Random histories of the log: no synced Entry is lost and no other appears, whatever the disk
does.

Each planted bug must be found, or the histories prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from storage.log import Position, Reading
from storage.log.entry import Entry
from storage.log.header import Header
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


def test_trust_in_the_page_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "tail", lambda self, applied: iter(()))
    assert _is_found()
