"""History of metrics by the minute, and statistics of it, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.cloudwatch.history import History
from sqs_api.cloudwatch.metric_statistics import Datapoint, Window, datapoints
from sqs_api.cloudwatch.metric_table import ACTIVE, METRICS
from sqs_api.cloudwatch.series import HOURS_KEPT, MINUTES_KEPT, Points, Series
from sqs_api.tests.serving import ACCOUNT, REGION, Service, running

FIRST = 60_000_000
"""The minute at which a test begins, long after the messages are sent."""
SENT = "NumberOfMessagesSent"
VISIBLE = "ApproximateNumberOfMessagesVisible"
SIZE = "SentMessageSize"


class Watched:
    """A service whose history goes on with the test's minutes."""

    def __init__(self, service: Service, queues_max: int = 10) -> None:
        self.service = service
        self.now_s = FIRST * 60.0
        samples = QueueSamples(service.catalog, service.router, service.counts)
        self.history = History(service.catalog, samples, lambda: self.now_s, queues_max)

    async def minutes_pass(self, minutes: int = 1) -> None:
        for _ in range(minutes):
            self.now_s += 60
            await self.history.look()

    async def send(self, name: str, *bodies: str) -> None:
        for body in bodies:
            await self.service.call("SendMessage", QueueUrl=name, MessageBody=body)

    async def points(self, metric: str, name: str = "q", hours: int = 0) -> dict[int, Datapoint]:
        """Datapoints by minute or hour since the first one."""
        window = Window(0, int(self.now_s) + 60, 3600 if hours else 60)
        asked = [metric, SENT]
        found = await self.history.points(
            {(ACCOUNT, REGION, name): asked}, 0, window.end, with_hours=window.with_hours
        )
        values = datapoints(metric, [found[ACCOUNT, REGION, name]], window, self.history.minute)
        begin_s = FIRST // 60 * 3600 if hours else FIRST * 60
        return {(at_s - begin_s) // window.period_s: point for at_s, point in values.items()}

    async def sums(self, metric: str, name: str = "q") -> dict[int, float]:
        return {minute: point.total for minute, point in (await self.points(metric, name)).items()}


@pytest_asyncio.fixture
async def watched() -> AsyncIterator[Watched]:
    async with running() as service:
        await service.make_queue("q")
        yield Watched(service)


async def test_events_count_in_their_minute_and_states_at_its_end(watched: Watched) -> None:
    await watched.send("q", "a", "bb")
    await watched.minutes_pass()
    await watched.minutes_pass()
    await watched.send("q", "c")
    await watched.service.call("ReceiveMessage", QueueUrl="q")
    await watched.service.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10)
    await watched.minutes_pass()

    assert await watched.sums(SENT) == {0: 2, 1: 0, 2: 1, 3: 0}
    assert await watched.sums(VISIBLE) == {0: 2, 1: 2, 2: 0, 3: 0}
    assert await watched.sums("ApproximateNumberOfMessagesNotVisible") == {0: 0, 1: 0, 2: 3, 3: 3}
    assert await watched.sums("NumberOfMessagesReceived") == {0: 0, 1: 0, 2: 3, 3: 0}
    assert await watched.points(SIZE) == {
        0: Datapoint(2, 3, 1.5, 1.5),
        2: Datapoint(1, 1, 1, 1),
    }


async def test_the_minute_under_way_is_shown_so_far(watched: Watched) -> None:
    await watched.send("q", "a")
    assert await watched.sums(SENT) == {0: 1}
    await watched.send("q", "b")
    assert await watched.sums(SENT) == {0: 2}
    await watched.minutes_pass()
    assert await watched.sums(SENT) == {0: 2, 1: 0}
    await watched.send("q", "c")
    assert await watched.sums(SENT) == {0: 2, 1: 1}


async def test_a_queue_without_messages_has_points_for_six_hours(watched: Watched) -> None:
    await watched.service.call("ReceiveMessage", QueueUrl="q")
    await watched.minutes_pass(400)

    found = await watched.sums("NumberOfEmptyReceives")
    visible = await watched.sums(VISIBLE)
    assert sum(found.values()) == 0  # its only minute is older than those that are kept
    assert max(visible) == 360
    assert await watched.sums(VISIBLE, "never") == {}
    hours = await watched.points("NumberOfEmptyReceives", hours=15)
    assert sum(point.total for point in hours.values()) == 1
    assert sum(point.count for point in hours.values()) == 361


async def test_an_unused_queue_has_no_points(watched: Watched) -> None:
    await watched.minutes_pass(3)
    assert await watched.sums(VISIBLE) == {}
    assert watched.history.names(ACCOUNT, REGION, 0) == set()


async def test_a_purge_goes_on_with_the_counts(watched: Watched) -> None:
    await watched.send("q", "a", "b")
    await watched.minutes_pass()
    await watched.service.call("PurgeQueue", QueueUrl="q")
    await watched.send("q", "c")
    for _ in range(3):
        await watched.service.call("ReceiveMessage", QueueUrl="q")
    await watched.minutes_pass()

    assert await watched.sums("NumberOfEmptyReceives") == {0: 0, 1: 2, 2: 0}
    assert await watched.sums(SENT) == {0: 2, 1: 1, 2: 0}
    assert await watched.sums(VISIBLE) == {0: 2, 1: 0, 2: 0}


async def test_a_queue_that_is_made_anew_goes_on_with_the_history(watched: Watched) -> None:
    await watched.send("q", "a", "b")
    await watched.minutes_pass()
    await watched.service.call("DeleteQueue", QueueUrl="q")
    await watched.minutes_pass()
    await watched.service.make_queue("q")
    await watched.send("q", "c", "d", "e")
    await watched.minutes_pass()

    assert (await watched.sums(SENT)) == {0: 2, 2: 3, 3: 0}


async def test_the_idlest_queue_gives_way_to_a_new_one(watched: Watched) -> None:
    watched = Watched(watched.service, queues_max=2)
    for name in ("one", "two", "three"):
        await watched.service.make_queue(name)
        await watched.send(name, "x")
        received = await watched.service.call("ReceiveMessage", QueueUrl=name)
        handle = received["Messages"][0]["ReceiptHandle"]
        await watched.service.call("DeleteMessage", QueueUrl=name, ReceiptHandle=handle)
        await watched.minutes_pass()

    assert await watched.sums(SENT, "one") == {}
    assert (await watched.sums(SENT, "two"))[1] == 1
    assert (await watched.sums(SENT, "three"))[2] == 1


async def test_ages_are_known_of_every_queue_with_a_history(watched: Watched) -> None:
    watched = Watched(watched.service, queues_max=1)
    await watched.send("q", "a")
    await watched.minutes_pass()
    await watched.service.make_queue("fuller")
    await watched.send("fuller", "a", "b", "c")
    await watched.minutes_pass()

    ages = await watched.sums("ApproximateAgeOfOldestMessage")
    assert ages[0] > 0
    assert ages[1] == ages[0] + 60
    assert ages[2] == ages[1]  # the minute under way has just begun
    assert (await watched.sums("ApproximateAgeOfOldestMessage", "fuller"))[2] > 0


async def test_a_fair_queue_has_its_metrics_once_it_has_groups(watched: Watched) -> None:
    metric = "ApproximateNumberOfMessagesVisibleInQuietGroups"
    await watched.send("q", "a")
    assert await watched.sums(metric) == {}
    for body in "ab":
        sent: dict[str, Any] = {"MessageBody": body, "MessageGroupId": body}
        await watched.service.call("SendMessage", QueueUrl="q", **sent)
    await watched.service.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=2)
    await watched.minutes_pass()

    assert (await watched.sums(metric))[0] == 1


# -- series and statistics -------------------------------------------------------------------------


def test_a_series_keeps_minutes_for_hours_and_hours_for_days() -> None:
    series = Series()
    last = HOURS_KEPT * 60 + 1000
    for minute in range(0, last, 30):
        series.add(minute, minute % 60 + 1)

    points = series.points(0, last, with_hours=True)
    minutes = [minute for minute, _ in points.minutes]
    assert minutes == list(range(last - MINUTES_KEPT + 20, last, 30))
    assert len(points.hours) == HOURS_KEPT
    assert points.hours[:1] == [(last // 60 - HOURS_KEPT + 1, 2, 32, 1, 31)]
    assert not series.points(0, last, with_hours=False).hours
    assert series.points(last - 40, last - 10, with_hours=False).minutes == points.minutes[-2:-1]


def test_parts_of_hosts_become_one() -> None:
    window = Window(0, 600, 300)
    leader = {ACTIVE: Points([(0, 1), (1, 1)]), VISIBLE: Points([(0, 7)]), SENT: Points([(0, 2)])}
    successor = {ACTIVE: Points([(2, 1), (5, 1)]), VISIBLE: Points([(2, 3)])}
    other = {"NumberOfEmptyReceives": Points([(0, 4), (2, 1)])}
    parts = [leader, successor, other]

    assert datapoints(VISIBLE, parts, window, 6) == {
        0: Datapoint(3, 10, 0, 7),
        300: Datapoint(1, 0, 0, 0),
    }
    assert datapoints("NumberOfEmptyReceives", [*parts, other], window, 6)[0] == Datapoint(
        3, 10, 0, 8
    )
    assert datapoints(SENT, parts, window, 6)[0].statistic("Average") == pytest.approx(2 / 3)


def test_hours_come_before_the_minutes_that_are_kept() -> None:
    now = 10_000
    hour = (now - MINUTES_KEPT) // 60
    part = {
        ACTIVE: Points([(now - 1, 1.0)], [(hour, 60, 60, 1, 1), (hour - 1, 30, 30, 1, 1)]),
        VISIBLE: Points([(now - 1, 5.0)], [(hour, 60, 120, 2, 2), (hour - 1, 10, 40, 4, 4)]),
    }

    found = datapoints(VISIBLE, [part], Window(0, now * 60, 3600), now)

    assert found == {
        (hour - 1) * 3600: Datapoint(30, 40, 0, 4),
        hour * 3600: Datapoint(60, 120, 2, 2),
        (now - 1) // 60 * 3600: Datapoint(1, 5, 5, 5),
    }
    assert datapoints(VISIBLE, [part], Window(0, now * 60, 300), now).keys() == {
        (now - 1) * 60 // 300 * 300
    }


def test_every_metric_of_the_table_is_cloudwatchs() -> None:
    assert len(METRICS) == 16
    units = {name: row.unit for name, row in METRICS.items() if row.unit != "Count"}
    assert units == {
        "ApproximateAgeOfOldestMessage": "Seconds",
        "ApproximateAgeOfOldestMessageInQuietGroups": "Seconds",
        "SentMessageSize": "Bytes",
    }
