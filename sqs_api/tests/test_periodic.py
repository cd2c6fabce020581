"""Periodic work continues after a failure, ends with the node, and is never cancelled halfway."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from itertools import pairwise
from typing import Any

import uvloop

from cluster.tests.virtual_time import virtual
from sqs_api.gateway.measures import STALL_CHECK_S, StallWatch
from sqs_api.periodic import Every, Periodic


@virtual
async def test_work_is_repeated_also_after_a_failure() -> None:
    periodic = Periodic()
    done: list[float] = []

    def work() -> None:
        done.append(asyncio.get_running_loop().time())
        raise RuntimeError("one of many")

    periodic.begin(Every(10.0, work, first_s=0.0))
    await asyncio.sleep(25.0)
    await periodic.stop(1.0)
    await asyncio.sleep(100.0)

    assert done == [0.0, 10.0, 20.0]


@virtual
async def test_what_is_due_at_about_the_same_time_begins_in_one_pass() -> None:
    loop = asyncio.get_running_loop()
    periodic = Periodic()
    begun: dict[str, list[float]] = {"fast": [], "slow": [], "long": []}

    async def long() -> None:
        begun["long"].append(loop.time())
        await asyncio.sleep(1.8)

    for name, period_s in (("fast", 0.1), ("slow", 2.0)):
        await asyncio.sleep(0.033)
        periodic.begin(Every(period_s, partial(_note, begun[name])))
    periodic.begin(Every(1.0, long))
    await asyncio.sleep(10.0)
    await periodic.stop(10.0)

    assert 95 <= len(begun["fast"]) <= 101
    assert [round(at_s, 6) for at_s in begun["slow"]] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert {*begun["slow"], *begun["long"]} <= {*begun["fast"]}
    rests_s = [later - at_s - 1.8 for at_s, later in pairwise(begun["long"])]
    assert min(rests_s) >= 0.5, "work that takes long rests, too"


@virtual
async def test_work_that_is_the_only_one_and_takes_long_is_repeated() -> None:
    loop = asyncio.get_running_loop()
    periodic = Periodic()
    begun: list[float] = []

    async def work() -> None:
        begun.append(loop.time())
        await asyncio.sleep(0.3)

    periodic.begin(Every(1.0, work))
    await asyncio.sleep(4.5)
    await periodic.stop(1.0)

    assert begun == [1.0, 2.0, 3.0, 4.0]


def _note(begun: list[float]) -> None:
    begun.append(asyncio.get_running_loop().time())


@virtual
async def test_a_stop_waits_for_work_that_is_under_way() -> None:
    periodic = Periodic()
    ended: list[str] = []

    async def work() -> None:
        await asyncio.sleep(5.0)
        ended.append("work")

    periodic.begin(Every(1.0, work))
    await asyncio.sleep(1.5)
    await periodic.stop(10.0)

    assert ended == ["work"]


@virtual
async def test_work_that_never_ends_is_cancelled_after_a_while() -> None:
    periodic = Periodic()
    periodic.begin(Every(1.0, asyncio.Event().wait))
    await asyncio.sleep(2.0)
    before_s = asyncio.get_running_loop().time()

    await periodic.stop(10.0)

    assert asyncio.get_running_loop().time() - before_s == 10.0


def test_a_loop_that_is_late_is_noticed() -> None:
    now_s = [100.0]
    stalls = StallWatch(lambda: now_s[0])

    for step_s in (0.0, STALL_CHECK_S, STALL_CHECK_S + 0.3, STALL_CHECK_S):
        now_s[0] += step_s
        stalls.look()

    assert 0.29 < stalls.longest_s < 0.31
    assert stalls.late_s.count == 3


def test_work_that_ends_while_other_work_is_overdue_is_repeated() -> None:
    """The timer of uvloop that is due at once has no time, as the service's loop showed when it
    had stalled."""
    failures: list[dict[str, Any]] = []
    begun: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        periodic = Periodic()

        async def long() -> None:
            begun.append(loop.time())
            await asyncio.sleep(0)
            periodic.begin(Every(-1.0, partial(_note, []), first_s=-1.0))  # overdue

        periodic.begin(Every(0.01, long, first_s=0.0))
        await asyncio.sleep(0.1)
        await periodic.stop(1.0)
        gc.collect()

    uvloop.run(run())

    assert not failures
    assert len(begun) > 1
