"""The webhook: dead letters and redrives that are announced, how they are signed and repeated."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import pytest_asyncio
from aiohttp import web

from cluster.catalog.catalog_records import name_of, queue_key
from cluster.catalog.queue_view import QueueView
from cluster.shards.shard_report import COUNTS, QueueReport
from cluster.tests.virtual_time import virtual
from sqs_api.settings.config import ConfigRefused, load
from sqs_api.tests.operator_client import Operators, latest_redrive, make_dead_letters
from sqs_api.tests.served import Served, serving
from sqs_api.webhook.announcements import Look
from sqs_api.webhook.announcer import Announcer, Watch
from sqs_api.webhook.dead_letter_watch import DeadLetterWatch
from sqs_api.webhook.redrive_watch import RedriveWatch
from sqs_api.webhook.webhook_delivery import WebhookDelivery
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MoveTask

KEY = b"a key of twenty-four bytes"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """A server that takes webhooks, and answers as it is told."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        """Of the next answers, then 204."""
        self.arrived = asyncio.Event()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if self.statuses else 204
        if status == 204:
            body = await request.read()
            check_signature(request.headers, body)
            self.taken.append(json.loads(body))
            self.arrived.set()
        return web.Response(status=status)

    async def next(self) -> dict[str, Any]:
        """The next one that is taken."""
        async with asyncio.timeout(60):
            await self.arrived.wait()
        self.arrived.clear()
        return self.taken[-1]


def check_signature(headers: Mapping[str, str], body: bytes) -> None:
    """Verify as the specification of Standard Webhooks says, from the header's parts alone."""
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    made = base64.b64encode(hmac.new(KEY, text, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{made}"
    assert headers["content-type"] == "application/json"


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    taking = Receiver()
    app = web.Application()
    app.router.add_post("/hook", taking.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    taking.url = f"http://{host}:{port}/hook"
    yield taking
    await runner.cleanup()


@pytest.fixture(autouse=True)
def _looks_of_the_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqs_api.webhook.announcements.WATCH_S", 3600.0)


def looks(served: Served) -> list[Look]:
    """The looks at the queues of the service; none without a webhook."""
    repeated = [each for feature in served.node.worker.features for each in feature.periodic]
    return [each.work for each in repeated if isinstance(each.work, Look)]


async def look(served: Served, kind: type[Watch] = DeadLetterWatch) -> int:
    """Look for dead letters or redrives alone now; the number of announcements."""
    (both,) = looks(served)
    (watch,) = (each for each in both.watches if isinstance(each, kind))
    announce = Announcer.announce
    with patch.object(Announcer, "announce", autospec=True, side_effect=announce) as announced:
        await Look(both.queues, [watch])()
    return announced.call_count


async def test_the_first_dead_letter_is_announced_once(data: Path, receiver: Receiver) -> None:
    where = {"webhook_url": receiver.url, "public_url": "https://queues.example"}
    async with serving(data, webhook_secret=SECRET, **where) as served:
        await make_dead_letters(served, "a", "b")
        assert await look(served) == 1
        first = await receiver.next()
        assert await look(served) == 0  # it still holds them
        await served.call("SendMessage", QueueUrl="dead", MessageBody="c")
        assert await look(served) == 0
        for handle in (await served.receive("dead")).values():
            await served.delete(handle, "dead")
        assert await look(served) == 0  # it is empty
        await served.call("SendMessage", QueueUrl="dead", MessageBody="d")
        (handle,) = (await served.receive("dead")).values()
        await served.delete(handle, "dead")
        assert await look(served) == 1  # one came and went
        second = await receiver.next()
        await served.send("no dead letter", queue="source")
        assert await look(served) == 0

    arn = "arn:aws:sqs:us-east-1:000000000000:"
    assert first["type"] == "dead_letters.first"
    console = "https://queues.example/_holdfast/console#/queues/dead"
    assert first["text"] == (
        "dead has 2 dead letters, from source (2 received too often). "
        f"What they failed for: {console}"
    )
    assert second["text"] == f"dead got dead letters from source, which have gone. {console}"
    assert first["data"] == {
        "queue": f"{arn}dead",
        "account": "000000000000",
        "region": "us-east-1",
        "name": "dead",
        "messages": 2,
        "sources": [f"{arn}source"],
        "causes": {"max-receives": 2},
    }
    assert (second["data"]["messages"], second["data"]["causes"]) == (0, {})
    assert len(receiver.taken) == 2


async def test_a_queue_that_holds_messages_is_announced_after_a_start(
    data: Path, receiver: Receiver
) -> None:
    async with serving(data) as served:
        assert not looks(served)
        await make_dead_letters(served, "a")
    async with serving(data, webhook_url=receiver.url, webhook_secret=SECRET) as served:
        assert await look(served) == 1
        assert (await receiver.next())["data"]["messages"] == 1


async def test_a_redrive_that_waits_or_fails_is_announced_once(
    data: Path, receiver: Receiver
) -> None:
    where = {"webhook_url": receiver.url, "public_url": "https://queues.example"}
    async with serving(data, webhook_secret=SECRET, **where) as served:
        operators = Operators(served)
        await make_dead_letters(served, '{"n": 1}', "no JSON")
        wanted = {"canary": 1, "reason": "T-1 <!channel>", "edit": {"n": 2}}
        await operators.done("queues/dead/redrives", wanted)
        redrive = await latest_redrive(operators)
        assert redrive["paused"] == "canary"
        assert await look(served, RedriveWatch) == 1
        waits = await receiver.next()
        assert await look(served, RedriveWatch) == 0  # it is known
        await operators.done("queues/dead/redrives/resume", {"handle": redrive["handle"]})
        assert (await latest_redrive(operators))["status"] == "FAILED"
        assert await look(served, RedriveWatch) == 1
        failed = await receiver.next()
        assert await look(served, RedriveWatch) == 0
    async with serving(data, webhook_secret=SECRET, **where) as served:
        assert await look(served, RedriveWatch) == 1  # a minute is not over: who knows who heard

    console = "https://queues.example/_holdfast/console#/queues/dead/redrive"
    assert (waits["type"], failed["type"]) == ("redrive.waits", "redrive.failed")
    assert waits["text"] == (
        f"dead: a redrive waits for someone to look at it: 1 of 2 messages moved. {console}"
    )
    assert failed["text"] == (
        "dead: a redrive failed: 1 of 2 messages moved, 1 could not be moved (BodyIsNoObject). "
        f"{console}"
    )
    assert failed["data"] == {
        "queue": "arn:aws:sqs:us-east-1:000000000000:dead",
        "account": "000000000000",
        "region": "us-east-1",
        "name": "dead",
        "id": redrive["id"],
        "started_by": redrive["started_by"],
        "reason": "T-1 <!channel>",
        "undoes": None,
        "moved": 1,
        "to_move": 2,
        "came_back": 0,
        "stayed": 1,
        "failure": "BodyIsNoObject",
    }


async def test_a_redrive_that_stops_by_itself_is_announced_each_time(
    data: Path, receiver: Receiver
) -> None:
    """And not one that someone paused or cancelled."""
    async with serving(data, webhook_secret=SECRET, webhook_url=receiver.url) as served:
        operators = Operators(served)
        await make_dead_letters(served, *map(str, range(60)))
        await operators.done("queues/dead/redrives", {"rate": 1, "stop_after": 1})
        while (redrive := await latest_redrive(operators, settles=False))["paused"] is None:
            await served.call("ReceiveMessage", QueueUrl="source", MaxNumberOfMessages=10)
        assert await look(served, RedriveWatch) == 1
        assert (await receiver.next())["type"] == "redrive.stopped"
        handle = {"handle": redrive["handle"]}
        for change in ("pause", "resume", "pause", "cancel"):
            await operators.done(f"queues/dead/redrives/{change}", handle)
            assert await look(served, RedriveWatch) == 0, change

    text = receiver.taken[0]["text"]
    assert text.startswith("dead: a redrive stopped by itself, since messages came back: ")
    assert text.endswith(" 1 came back.")
    assert receiver.taken[0]["data"]["came_back"] == 1


class Redrives:
    """A router that leads one queue, with these redrives."""

    def __init__(self, *tasks: MoveTask) -> None:
        self.tasks = list(tasks)

    def tasks_since(
        self, queues: Sequence[QueueDefinition], since_ms: int
    ) -> dict[int, list[MoveTask]]:
        shown = [each for each in self.tasks if each.is_active or each.ended_at_ms >= since_ms]
        return {queue.queue_id: shown for queue in queues if queue.name == "dead-1"}


async def test_a_redrive_that_stops_again_is_announced_again() -> None:
    told = list[Any]()
    shards = Redrives(task(paused="came back", came_back=7), task("other", paused="operator"))
    announcer = Announcer(
        lambda _, body: told.append(json.loads(body)), lambda: 0.0, lambda: 0, public_url=None
    )
    watch = RedriveWatch(cast("Any", shards), announcer, lambda: 1000.0)
    look_again = Look(dead_letter_pairs(), [watch])

    changes: list[dict[str, Any]]
    changes = [{}, {"paused": ""}, {}, {}, {"status": "COMPLETED", "ended_at_ms": 999_000}]
    for change in changes:
        shards.tasks[0] = task(**{"paused": "came back", "came_back": 7, **change})
        await look_again()
    shards.tasks = [
        task("undo", undoes="first", status="FAILED", ended_at_ms=940_000),
        task("old", status="FAILED", ended_at_ms=939_999),
    ]
    await look_again()

    kinds = [(each["type"], each["data"]["id"]) for each in told]
    assert kinds == [("redrive.stopped", "first")] * 2 + [("redrive.failed", "undo")]
    assert told[0]["text"] == (
        "dead-1: a redrive stopped by itself, since messages came back: "
        "1,200 of 4,200 messages moved, 7 came back."
    )
    assert told[2]["text"] == "dead-1: the undo of a redrive failed: 1,200 of 4,200 messages moved."


def task(task_id: str = "first", **changed: Any) -> MoveTask:
    return MoveTask(1, task_id, "arn", None, 0, 0, 4200, 1, **{"moved": 1200, **changed})


async def test_nothing_waits_for_a_receiver_that_does_not_answer(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel connects, nothing reads
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with serving(data, webhook_url=url, webhook_secret=SECRET) as served:
            await make_dead_letters(served, "a")
            assert await look(served) == 1
            await served.send("b", queue="dead")
            assert len(await served.receive("dead")) == 2


QUEUES = 10_000


class Shards:
    """A router whose dead-letter queues hold a message each; notes the size of each question."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def queues(self, queues: Sequence[QueueDefinition]) -> list[QueueReport]:
        self.asked.append(len(queues))
        counts: Any = dict.fromkeys(("in_flight", "delayed", "quarantined", *COUNTS), 0)
        return [QueueReport(queue.queue_id, visible=1, **counts) for queue in queues]


def definition(number: int, name: str, **given: str) -> QueueDefinition:
    attributes = initial_attributes(name, given)
    place = ("000000000000", "us-east-1", name)
    settings = settings_of(attributes)
    return QueueDefinition(number, *place, 0, 0, 0, 0, bytes(32), attributes, {}, settings)


def dead_letter_pairs() -> QueueView:
    """A view of QUEUES queues: sources, and a dead-letter queue of each."""
    targets = [definition(number, f"dead-{number}") for number in range(QUEUES // 2)]
    sources = [
        definition(
            QUEUES + target.queue_id,
            f"source-{target.queue_id}",
            RedrivePolicy=json.dumps({"deadLetterTargetArn": target.arn, "maxReceiveCount": 1}),
        )
        for target in targets
    ]
    view = QueueView(0)
    view.load(1, {queue_key(name_of(queue)): (1, queue) for queue in (*targets, *sources)})
    return view


async def test_a_look_at_many_queues_gives_the_loop_back() -> None:
    """Other work runs after each slice, and each queue is announced once."""
    shards, announced, turns = Shards(), list[str](), 0
    bits = iter(range(QUEUES))
    announcer = Announcer(
        lambda event_id, _: announced.append(event_id),
        lambda: 0.0,
        lambda: next(bits),
        public_url=None,
    )
    queues = dead_letter_pairs()
    watch = DeadLetterWatch(queues, cast("Any", shards), announcer)

    looking = asyncio.ensure_future(Look(queues, [watch])())
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    await looking

    assert len(set(announced)) == len(announced) == QUEUES // 2
    assert max(shards.asked) <= 100
    assert turns >= QUEUES // 100


class Clock:
    """Posts on virtual time, and what became of them."""

    def __init__(self, *outcomes: int | Exception) -> None:
        self.outcomes = list(outcomes)
        self.posts: list[tuple[float, dict[str, str]]] = []

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        check_signature(headers, body)
        self.posts.append((self.now_s(), dict(headers)))
        outcome = self.outcomes.pop(0) if self.outcomes else 500
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@virtual
async def test_a_failed_delivery_is_repeated_ever_later_under_the_same_id() -> None:
    clock = Clock(500, OSError("refused"), TimeoutError(), 302, 200)
    delivery = WebhookDelivery(clock.post, KEY, clock.now_s)

    delivery.deliver("msg_1", b"{}")
    await asyncio.sleep(3600)

    assert [at_s for at_s, _ in clock.posts] == [0, 2, 6, 14, 30]
    assert {headers["webhook-id"] for _, headers in clock.posts} == {"msg_1"}
    assert [headers["webhook-timestamp"] for _, headers in clock.posts][-1] == "30"
    assert delivery.pending == 0


@virtual
async def test_a_delivery_is_given_up_after_hours() -> None:
    clock = Clock()
    delivery = WebhookDelivery(clock.post, KEY, clock.now_s)

    delivery.deliver("msg_1", b"{}")
    await asyncio.sleep(24 * 3600)

    assert len(clock.posts) == 30
    assert 4 * 3600 < clock.posts[-1][0] < 8 * 3600
    assert max(b[0] - a[0] for a, b in zip(clock.posts, clock.posts[1:], strict=False)) == 900
    assert delivery.pending == 0


@virtual
async def test_a_stop_ends_deliveries() -> None:
    clock = Clock()
    delivery = WebhookDelivery(clock.post, KEY, clock.now_s)
    for number in range(1001):
        delivery.deliver(f"msg_{number}", b"{}")
    assert delivery.pending == 1000  # one too many is given up

    await asyncio.sleep(1)
    await delivery.stop()
    await asyncio.sleep(3600)

    assert (delivery.pending, len(clock.posts)) == (0, 1000)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"webhook_url": "http://localhost/x"}, "HOLDFAST_WEBHOOK_SECRET"),
        ({"webhook_secret": SECRET}, "HOLDFAST_WEBHOOK_SECRET"),
        ({"webhook_url": "localhost/x", "webhook_secret": SECRET}, "webhook_url: must be"),
        ({"webhook_url": "http://a/", "webhook_secret": "whsec_short"}, "webhook_secret: must be"),
        ({"webhook_url": "http://a/", "webhook_secret": SECRET[6:]}, "webhook_secret: must be"),
    ],
)
def test_wrong_settings_stop_the_start(flags: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigRefused, match=part):
        load(flags, None)


def test_the_secret_does_not_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(f'webhook_url = "http://a/"\nwebhook_secret = "{SECRET}"\n')

    with pytest.raises(ConfigRefused, match="comes from HOLDFAST_WEBHOOK_SECRET only"):
        load({}, file)
