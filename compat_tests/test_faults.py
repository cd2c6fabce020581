"""A little of each long run: damaged folders, failing disks, fuzzed requests. The make targets run much more."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from compat_tests import damage, disk_faults, kill9, wire_fuzz
from compat_tests.conftest import NodeFactory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]


def test_damaged_folder_is_refused_or_served_right(tmp_path: Path) -> None:
    chance = random.Random(9324)
    made = damage.make_folder(tmp_path / "made", chance, clean_end=False)

    for kind in ("table", "write-ahead log", "format"):
        harm, finding = damage.one_round(tmp_path, made, chance, kind)
        assert finding.outcome in damage.ALLOWED, f"{harm.text}: {finding}"


@pytest.mark.skipif(
    disk_faults.why_no_small_disk() is not None, reason=str(disk_faults.why_no_small_disk())
)
def test_full_disk_loses_nothing_and_needs_no_restart() -> None:
    summary, broken = disk_faults.full(kill9.run_and_tell, 1, 9324)

    assert not broken, f"{summary}\n{broken[:20]}"


@pytest.mark.skipif(
    disk_faults.why_no_libfiu() is not None, reason=str(disk_faults.why_no_libfiu())
)
def test_failed_syncs_lose_nothing_and_need_no_restart() -> None:
    summary, broken = disk_faults.failing(kill9.run_and_tell, 1, 9324)

    assert not broken, f"{summary}\n{broken[:20]}"


def test_fuzzed_requests_end_in_4xx_or_success(start_node: NodeFactory) -> None:
    node = start_node("--aws-waits", "off", "--durability", "os")

    outcome = wire_fuzz.fuzz_node(node, "sigv4", 1000, 9324)

    assert outcome.answered.total() > 100
    assert not outcome.broken
    assert not wire_fuzz.failures_logged(node)
