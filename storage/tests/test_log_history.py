"""Random histories of the log.

Nothing synced is lost, nothing else appears, whatever the disk does.
"""

from __future__ import annotations

import pytest

from storage.tests.log_history import History


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_a_log_holds_what_was_synced_and_nothing_that_was_not_appended(first: int) -> None:
    for seed in range(first, first + 50):
        History(seed).run(80)
