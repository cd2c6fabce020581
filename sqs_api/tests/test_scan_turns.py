"""Few scans run at once on a host, and fewer of one user."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from pathlib import Path

import msgspec
import pytest

from cluster.tests.virtual_time import virtual
from sqs_api.operators import scan_turns
from sqs_api.operators.browsing import Position, write_token
from sqs_api.operators.scan_turns import (
    AT_ONCE,
    OF_USER_AT_ONCE,
    TURN_S,
    WAIT_ON_S,
    WAIT_S,
    ScanTurns,
)
from sqs_api.tests.operator_client import Operators, make_dead_letters
from sqs_api.tests.served import serving
from visibility.contract.errors import ServiceUnavailable

HOLD_S = 10.0
"""Time for which a shard without a leader is waited for."""
HEALTHY, SICK = 1, 2
"""Queues."""


class Scans:
    """Scans that take a second each, in a queue whose shard has no leader ten."""

    def __init__(self) -> None:
        self.turns = ScanTurns()
        self.begun: list[tuple[str, float]] = []
        self.running = self.most = 0

    def begin(
        self, *users: str, queue: int = HEALTHY, goes_on: bool = False
    ) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._scan(user, queue, goes_on)) for user in users]

    async def _scan(self, user: str, queue: int, goes_on: bool) -> None:
        async with self.turns.turn(user, queue, goes_on=goes_on):
            self.begun.append((user, asyncio.get_running_loop().time()))
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(HOLD_S if queue == SICK else 1)
            self.running -= 1


def refusals(outcomes: list[BaseException | None]) -> int:
    for each in outcomes:
        assert each is None or isinstance(each, ServiceUnavailable)
    return sum(each is not None for each in outcomes)


@virtual
async def test_one_user_leaves_room_for_others() -> None:
    scans = Scans()
    tasks = scans.begin(*"aaaaa", "b", "c", "d")
    await asyncio.gather(*tasks)

    assert scans.begun[:4] == [("a", 0), ("a", 0), ("b", 0), ("c", 0)]
    assert sorted(scans.begun[4:]) == [("a", 1), ("a", 1), ("a", 2), ("d", 1)]
    assert scans.most == AT_ONCE


@virtual
async def test_two_users_with_many_scans_do_not_keep_out_a_third() -> None:
    scans = Scans()
    many = scans.begin(*"ab" * 200)
    await asyncio.sleep(0.5)
    (third,) = scans.begin("c")
    refused = refusals(await asyncio.gather(*many, return_exceptions=True))
    await third

    assert ("c", 1) in scans.begun
    assert refused >= 400 - 2 * (OF_USER_AT_ONCE + 10)


@virtual
async def test_who_waits_too_long_is_refused_and_may_try_again() -> None:
    scans = Scans()
    many = OF_USER_AT_ONCE * (int(WAIT_S) + 1)
    tasks = scans.begin(*"a" * many)
    assert refusals(await asyncio.gather(*tasks, return_exceptions=True)) == OF_USER_AT_ONCE

    assert asyncio.get_running_loop().time() == WAIT_S
    await asyncio.gather(*scans.begin(*"a" * OF_USER_AT_ONCE))
    assert asyncio.get_running_loop().time() == WAIT_S + 1


@virtual
async def test_a_client_that_hangs_up_keeps_no_turn() -> None:
    scans = Scans()
    tasks = scans.begin(*"aaaa")
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    tasks = scans.begin(*"aaa")
    await asyncio.sleep(1)  # the third has its turn, and hangs up before it knows
    tasks[2].cancel()
    await asyncio.wait(tasks)

    await asyncio.gather(*scans.begin(*"aa"))
    assert scans.begun[-2:] == [("a", 1.5)] * 2


@virtual
async def test_a_shard_without_a_leader_takes_no_turns_of_healthy_queues() -> None:
    scans = Scans()
    sick = scans.begin(*"aaaaaabbbbbb", queue=SICK)
    await asyncio.sleep(0)
    healthy = scans.begin(*"aabbc")
    await asyncio.gather(*healthy)

    assert scans.begun[4:] == [(user, TURN_S) for user in "caab"] + [("b", TURN_S + 1)]
    assert refusals(await asyncio.gather(*sick, return_exceptions=True)) == len(sick) - AT_ONCE
    assert asyncio.get_running_loop().time() == HOLD_S
    await asyncio.gather(*scans.begin("a", queue=SICK))  # it has a leader again


@virtual
async def test_a_late_scan_that_is_cancelled_makes_room_for_others_of_its_queue() -> None:
    scans = Scans()
    (late,) = scans.begin("a", queue=SICK)
    await asyncio.sleep(TURN_S + 1)
    (waits,) = scans.begin("b", queue=SICK)
    await asyncio.sleep(0.5)
    late.cancel()
    await waits

    assert scans.begun[-1] == ("b", TURN_S + 1.5)


@virtual
async def test_a_scan_that_goes_on_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_turns, "OF_USER_WAITING_MAX", scan_turns.WAITING_MAX)
    scans = Scans()
    first = scans.begin(*"aa")
    await asyncio.sleep(0.5)
    new = scans.begin(*"a" * OF_USER_AT_ONCE * (int(WAIT_S) + 1))
    goes_on = scans.begin(*"a" * OF_USER_AT_ONCE * int(WAIT_ON_S), goes_on=True)
    await asyncio.gather(*first)

    assert refusals(await asyncio.gather(*new, return_exceptions=True)) == OF_USER_AT_ONCE
    over = OF_USER_AT_ONCE * int(WAIT_S)  # turns of the new ones
    assert refusals(await asyncio.gather(*goes_on, return_exceptions=True)) == over
    assert asyncio.get_running_loop().time() == WAIT_ON_S + 1


@virtual
async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_turns, "WAITING_MAX", 1)
    scans = Scans()
    tasks = scans.begin(*"aaaa") + scans.begin(*"aa", goes_on=True)
    assert refusals(await asyncio.gather(*tasks, return_exceptions=True)) == 2


async def test_searches_counts_and_plans_take_turns_and_a_plain_page_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_turns, "AT_ONCE", 0)
    monkeypatch.setattr(scan_turns, "WAIT_S", 0.0)
    async with serving(tmp_path / "data") as served:
        operators = Operators(served)
        await make_dead_letters(served, "x")
        messages = "queues/dead/messages"

        refused = [
            await operators.post(f"{messages}/matching/count", {"filter": {}}),
            await operators.get(messages, state="visible"),
            await operators.get(messages, text="x"),
            await operators.post("queues/dead/redrives/plan"),
        ]
        page = await operators.get(messages)

        assert page.status == 200
        for each in refused:
            assert each.status == 503, each
            assert each.retry_after == "1"
            assert "Close tabs of yours" in str(each.json)


async def test_a_delete_of_all_that_match_and_a_plan_do_not_end_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_turns, "AT_ONCE", 0)
    monkeypatch.setattr(scan_turns, "WAIT_S", 0.0)
    planned = urlsafe_b64encode(msgspec.msgpack.encode({"at": 1})).decode()
    async with serving(tmp_path / "data") as served:
        operators = Operators(served)
        await make_dead_letters(served, "x")
        delete, plan = "queues/dead/messages/matching/delete", "queues/dead/redrives/plan"
        rest: dict[str, object] = {"filter": {}, "token": write_token(Position(sequence=1))}

        later = asyncio.gather(
            operators.post(delete, rest), operators.post(plan, {"token": planned})
        )
        for first in (await operators.post(delete, {"filter": {}}), await operators.post(plan)):
            assert first.status == 503
        monkeypatch.setattr(scan_turns, "AT_ONCE", 1)
        ended = await operators.post("queues/dead/messages/matching/count", {"filter": {}})

        assert [each.status for each in (ended, *await later)] == [200, 200, 200]
