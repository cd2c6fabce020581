"""A short version of each long run: kills, power cuts, failing disks, damage, fuzzed requests.

The make targets run much more.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compat_tests import wire_fuzz
from compat_tests.conftest import NodeFactory
from compat_tests.faults import disk_faults, full_disks, power_loss
from compat_tests.faults import folder_damage as damage
from compat_tests.faults.full_disk_policies import policies_on_a_full_disk
from compat_tests.faults.kill9 import KILL
from compat_tests.faults.loop_disk import why_not
from compat_tests.faults.run import Result, run
from compat_tests.faults.small_disk import why_no_small_disk
from compat_tests.node_process import NodeProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
SEED = 9324

needs_loop_disk = pytest.mark.skipif(why_not("ext4") is not None, reason=str(why_not("ext4")))


def check(result: Result) -> None:
    assert not result.broken, f"{result.summary}\n{result.broken[:20]}"


def test_two_kills_break_no_promise(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "--aws-waits", "off")
    try:
        check(run(node, KILL, rounds=2, seed=SEED))
    finally:
        node.close()


@needs_loop_disk
def test_power_loss_breaks_no_promise() -> None:
    check(power_loss.cut("ext4", rounds=1, seed=SEED))


@needs_loop_disk
def test_power_loss_takes_what_was_not_synced() -> None:
    """Repeats if everything was on disk by chance: a slow machine may send little before the
    cut."""
    for seed in range(SEED, SEED + 10):
        result = power_loss.cut("ext4", rounds=1, seed=seed, kinds=("standard",), durability="os")
        if power_loss.shows_loss(result):
            return
    pytest.fail("nothing was lost without a sync, so the other test proves nothing")


@pytest.mark.skipif(why_no_small_disk() is not None, reason=str(why_no_small_disk()))
def test_full_disk_loses_nothing_and_needs_no_restart() -> None:
    check(disk_faults.full(1, SEED))


_SHORT = ("list", "add", "verify", "backup", "serve")
"""A word of each command that the short version runs."""


@pytest.mark.skipif(why_no_small_disk() is not None, reason=str(why_no_small_disk()))
@pytest.mark.parametrize("state", full_disks.STATES, ids=lambda state: state.name)
def test_disk_that_takes_no_writes_is_not_called_damage(state: full_disks.State) -> None:
    assert full_disks.at_rest(state, _SHORT) == []


@pytest.mark.skipif(why_no_small_disk() is not None, reason=str(why_no_small_disk()))
def test_service_on_a_full_disk_and_commands_beside_it_say_so() -> None:
    assert full_disks.beside_a_service(full_disks.STATES[0], _SHORT) == []


@pytest.mark.skipif(why_no_small_disk() is not None, reason=str(why_no_small_disk()))
def test_full_disk_takes_messages_again_once_all_are_deleted() -> None:
    assert full_disks.refused_until_deleted() == []


@pytest.mark.skipif(why_no_small_disk() is not None, reason=str(why_no_small_disk()))
def test_policies_hold_on_a_full_disk() -> None:
    assert policies_on_a_full_disk() == []


@pytest.mark.skipif(
    disk_faults.why_no_libfiu() is not None, reason=str(disk_faults.why_no_libfiu())
)
def test_failed_syncs_lose_nothing_and_need_no_restart() -> None:
    check(disk_faults.failing(1, SEED))


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_damaged_folder_is_refused_or_served_right(tmp_path: Path, is_killed: bool) -> None:
    folder = damage.make_folder(tmp_path / "made", random.Random(SEED), is_killed)

    def outcome(kind: str) -> tuple[damage.Harm, damage.Finding]:
        return damage.one_round(tmp_path, folder, random.Random(f"{SEED} {kind}"), kind)

    kinds = ("SST data", "log records" if is_killed else "SST index", "format")
    with ThreadPoolExecutor(len(kinds)) as pool:  # each waits nine seconds for what is hidden
        for harm, finding in pool.map(outcome, kinds):
            assert finding.outcome in damage.ALLOWED, f"{harm.text}: {finding}"


def test_fuzzed_requests_end_in_4xx_or_success(start_node: NodeFactory) -> None:
    node = start_node("--aws-waits", "off", "--durability", "os")

    outcome = wire_fuzz.fuzz_node(node, "sigv4", 1000, SEED)

    assert outcome.answered.total() > 100
    assert not outcome.broken
    assert not wire_fuzz.failures_logged(node)
