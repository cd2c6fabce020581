"""A host is removed only if the others can go on without it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from cluster.members.member_operations import remove, set_drained
from cluster.members.member_records import MembershipRefused
from cluster.members.removal import change_of, reason_to_keep
from cluster.replication.contract import PeerReport, ReplicaReport
from cluster.replication.leadership import TermRecord
from cluster.tests.members.joining import SimulatedWorld
from cluster.tests.virtual_time import virtual

LOG_ID = b"l" * 16
ABC = {"a-0": "a", "b-0": "b", "c-0": "c"}
RECORD = TermRecord(3, LOG_ID, ABC)


def report_of(replica_id: str) -> ReplicaReport:
    return ReplicaReport(
        role="follower",
        replica_id=replica_id,
        term=3,
        leader_id="a-0",
        is_voter=True,
        commit=7,
        applied=7,
        last_index=7,
        needs_checkpoint=False,
        damage="",
        has_no_good_copy=False,
        peers=[],
    )


def _reports(*ids: str) -> dict[str, dict[int, ReplicaReport]]:
    return {replica_id[0]: {0: report_of(replica_id)} for replica_id in ids}


def _kept(reports: dict[str, dict[int, ReplicaReport]], record: TermRecord = RECORD) -> str:
    return reason_to_keep("b", sorted(set(record.voters.values())), {0: record}, reports)


def test_a_host_may_go_if_the_others_are_a_majority() -> None:
    assert _kept(_reports("a-0", "b-0", "c-0")) == ""
    assert _kept(_reports("a-0", "c-0")) == "", "it may have stopped"


NO_MAJORITY = "without host b shard 0 would have no majority: "
WAIT_FOR_C = NO_MAJORITY + "wait until the copy on host c runs and counts"


@pytest.mark.parametrize(
    "c", [report_of("c-1"), replace(report_of("c-0"), damage="row 7"), None], ids=str
)
def test_a_host_stays_while_another_s_copy_does_not_count(c: ReplicaReport | None) -> None:
    reports = _reports("a-0", "b-0")
    if c is not None:
        reports["c"] = {0: c}

    assert _kept(reports) == WAIT_FOR_C


def test_a_host_stays_while_the_voters_before_need_it() -> None:
    changing = TermRecord(4, LOG_ID, {**ABC, "c-1": "c"}, ("a-0", "b-0"))

    assert _kept(_reports("a-0", "b-0", "c-0"), changing).startswith(NO_MAJORITY)


def test_one_of_two_hosts_goes_after_another_came() -> None:
    two = TermRecord(3, LOG_ID, {"a-0": "a", "b-0": "b"})

    kept = _kept(_reports("a-0", "b-0"), two)

    assert kept == NO_MAJORITY + (
        "add a host first, and wait until its copy counts, or go on with a single host: restore a "
        "backup with --single"
    )


def test_a_host_that_was_just_removed_does_not_count_although_it_still_answers() -> None:
    kept = reason_to_keep("b", ["a", "b"], {0: RECORD}, _reports("a-0", "b-0", "c-0"))

    assert kept == NO_MAJORITY + "wait until host c, just removed, counts no more"


def test_a_host_that_counts_nowhere_may_go() -> None:
    assert reason_to_keep("x", "abcx", {0: RECORD}, _reports("a-0")) == ""
    assert "are not known" in reason_to_keep("b", "abc", {0: None}, _reports("a-0"))


def _leader(*peers: str, silent: str = "", **changes: object) -> ReplicaReport:
    seen = [
        PeerReport(each[0], each, 7, is_voter=True, heard_s=9.0 if each == silent else 0.1)
        for each in peers
    ]
    return replace(report_of("a-0"), role="leader", peers=seen, **changes)


GOES_ON = "; its leader, host a, goes on"
STILL = "host b, removed, still counts; "


@pytest.mark.parametrize(
    ("hosts", "record", "leader", "copy", "change"),
    [
        ("abc", RECORD, "a", _leader("b-0", "c-0"), ""),
        ("abcd", RECORD, "a", _leader("b-0", "c-0", "d-0"), ""),
        ("abc", None, "a", _leader(), "its voters are not known"),
        ("ac", RECORD, "a", _leader("c-0"), f"{STILL}its leader, host a, goes on"),
        ("ac", RECORD, None, None, f"{STILL}it waits for a leader"),
        ("ac", RECORD, "a", None, f"{STILL}its leader, host a, is not reached"),
        (
            "ac",
            RECORD,
            "a",
            _leader("c-0", silent="c-0"),
            f"{STILL}its leader, host a, does not hear host c",
        ),
        (
            "ac",
            TermRecord(3, LOG_ID, {"a-0": "a", "c-0": "c"}, tuple(ABC)),
            "a",
            _leader("c-0"),
            f"the voters before still count{GOES_ON}",
        ),
        (
            "abc",
            RECORD,
            "a",
            _leader("b-0", "c-0", "d-0"),
            f"its leader has not heard that host d is removed{GOES_ON}",
        ),
        (
            "abc",
            RECORD,
            "a",
            _leader("b-0", "c-0", is_changing_voters=True),
            f"another term is being taken{GOES_ON}",
        ),
        (
            "abc",
            RECORD,
            "a",
            _leader("b-0", "c-0", term=4),
            f"another term is being taken{GOES_ON}",
        ),
    ],
)
def test_a_change_of_voters_is_named_until_it_has_ended(
    hosts: str, record: TermRecord | None, leader: str | None, copy: ReplicaReport, change: str
) -> None:
    assert change_of(record, leader, copy, hosts) == change


@virtual
async def test_a_removal_can_be_repeated() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await set_drained(hosts[2].records, "b", is_drained=True)
    await remove(hosts[2].records, "b", "abc")
    records = await world.records()

    await remove(hosts[2].records, "b", "ac")

    assert await world.records() == records
    with pytest.raises(MembershipRefused, match="there is no host x"):
        await remove(hosts[2].records, "x", "ac")
    await world.close()


@virtual
async def test_of_two_hosts_that_are_removed_at_once_one_stays() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    for name in "ab":
        await set_drained(hosts[2].records, name, is_drained=True)

    ended = await asyncio.gather(
        *(remove(hosts[2].records, name, "abc") for name in "ab"), return_exceptions=True
    )
    assert [str(each) for each in ended if each is not None] == [
        "another host came or went a moment ago: try again"
    ]
    await world.close()
