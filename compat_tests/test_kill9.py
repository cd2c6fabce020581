"""Two rounds of each `kill9`; `make kill9` runs fifty."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests import kill9, kill9_fifo, kill9_moves
from compat_tests.node_process import NodeProcess


@pytest.mark.slow
def test_two_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "--aws-waits", "off")
    try:
        verdict = kill9.run(node, rounds=2, seed=9324, visibility_seconds=2)
    finally:
        node.close()

    assert verdict.kept, f"{verdict}\n{node.log_tail()}"


@pytest.mark.slow
@pytest.mark.parametrize("run", [kill9_fifo.run, kill9_moves.run], ids=["fifo", "moves"])
def test_two_kills_leave_order_and_places_right(run: kill9.Run, tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "--aws-waits", "off")
    try:
        summary, broken = run(node, rounds=2, seed=9324, crash=kill9.KILL)
    finally:
        node.close()

    assert not broken, f"{summary}\n{broken[:20]}\n{node.log_tail()}"
