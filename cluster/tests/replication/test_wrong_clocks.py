"""Hosts whose clocks are wrong: they lead nothing, and it is said once."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from cluster.tests.replication.stage import Stage, staged


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
def test_a_host_with_a_wrong_clock_does_not_lead(ahead_s: float) -> None:
    """Rule 29."""

    @staged
    async def story(stage: Stage) -> None:
        leader = await stage.leader()
        leader.ahead_s = ahead_s

        other = await stage.leader(but=leader)
        stage.only(leader)
        other.crash(is_power_loss=True)
        served = len(stage.record.served)
        await asyncio.sleep(20)

        assert len(stage.record.served) == served
        leader.ahead_s = 0.0
        assert await stage.leader() is leader

    story()


@staged
async def test_a_host_whose_clock_is_wrong_is_no_heir(stage: Stage) -> None:
    leader = await stage.leader()
    wrong, right = stage.others(leader)
    assert leader.replica is not None
    await stage.until(lambda: len(leader.replica.caught_up) == 2)  # type: ignore[union-attr]

    with capture_logs() as logs:
        wrong.ahead_s = 600.0
        await stage.until(lambda: leader.replica.caught_up == [right.name])  # type: ignore[union-attr]
        await asyncio.sleep(30)
    told = [line for line in logs if line["event"] == "peer_clock_is_off"]
    assert [(line["host"], line["ahead_s"]) for line in told] == [(wrong.name, pytest.approx(600))]
    (ahead_s,) = [p.ahead_s for p in leader.replica.peer_reports() if p.name == wrong.name]
    assert ahead_s == pytest.approx(600, abs=0.1)

    wrong.ahead_s = 0.0
    await stage.until(lambda: len(leader.replica.caught_up) == 2)  # type: ignore[union-attr]
    with capture_logs() as logs:
        wrong.ahead_s = -600.0
        await asyncio.sleep(3)
    assert [line["event"] for line in logs] == ["peer_clock_is_off"]


@staged
async def test_a_host_says_once_why_it_does_not_lead(stage: Stage) -> None:
    leader = await stage.leader()
    wrong = stage.others(leader)[0]
    wrong.ahead_s = 600.0
    stage.only(wrong)
    leader.crash(is_power_loss=False)
    with capture_logs() as logs:
        leader.start()
        await asyncio.sleep(20)

    assert not any(host.serves for host in stage.hosts.values())
    told = [line for line in logs if line["event"] == "clock_is_off"]
    assert [line["replica"] for line in told] == [wrong.name]
    wrong.ahead_s = 0.0
    assert await stage.leader() is wrong


@staged
async def test_of_two_hosts_with_different_clocks_none_leads_and_both_say_so(stage: Stage) -> None:
    """A third one is down: nobody can tell which clock is wrong."""
    leader = await stage.leader()
    wrong, down = stage.others(leader)
    with capture_logs() as logs:
        down.crash(is_power_loss=True)
        wrong.ahead_s = 30.0
        await asyncio.sleep(30)

    assert not any(host.serves for host in stage.hosts.values())
    told = {line["replica"] for line in logs if line["event"] == "clock_is_off"}
    assert told == {leader.name, wrong.name}
    assert leader.replica is not None
    assert wrong.replica is not None
    assert leader.replica.clocks.behind_s == pytest.approx(15, abs=0.1)
    assert wrong.replica.clocks.behind_s == pytest.approx(-15, abs=0.1)

    wrong.ahead_s = 0.0
    assert (await stage.leader()).replica.clocks.behind_s == 0  # type: ignore[union-attr]


@staged
async def test_a_host_that_no_majority_answers_blames_no_clock(stage: Stage) -> None:
    """Status would tell to set a clock, where hosts are down."""
    leader = await stage.leader()
    wrong, down = stage.others(leader)
    down.crash(is_power_loss=True)
    wrong.ahead_s = 30.0
    assert leader.replica is not None
    await stage.until(lambda: leader.replica.clocks.behind_s != 0)  # type: ignore[union-attr]

    wrong.crash(is_power_loss=True)
    await asyncio.sleep(30)

    assert leader.replica.clocks.behind_s == 0


@staged
async def test_the_clock_of_a_voter_that_died_keeps_no_leader(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader)
    await asyncio.sleep(1)
    down = stage.others(leader)[0]
    down.crash(is_power_loss=True)
    await asyncio.sleep(3)

    leader.ahead_s = 86_400.0
    await asyncio.sleep(10)

    assert not leader.serves
    down.start()
    await stage.leader(but=leader)
