"""The promise of each policy of `visibility/POLICIES.md` with several workers, on three hosts, and
in queues of several parts; and what `kill -9` of leaders leaves of those that are about loss and
repeats. Every client is boto3 as it is.

The policies of a world are tried at the same time: most of them wait.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from compat_tests.facade import eventually
from compat_tests.policy_worlds import PARTS, World, worlds
from compat_tests.test_transactions import delete, send

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
NAMES = ("workers", "hosts", "parts")
_NO_RETRIES = {"total_max_attempts": 1}
CAUSE = "HoldfastDeadLetterCause"
_CAUSE_TOO: dict[str, Any] = {"WaitTimeSeconds": 20, "MessageSystemAttributeNames": [CAUSE]}
YEAR_MS = 365 * 86_400_000
POLICIES: dict[str, Callable[[World], None]] = {}


def policy(check: Callable[[World], None]) -> Callable[[World], None]:
    """Try this in each world."""
    POLICIES[check.__name__] = check
    return check


def number_of(name: str, value: int) -> dict[str, Any]:
    """A message attribute of ours."""
    return {f"holdfast.{name}": {"DataType": "Number", "StringValue": str(value)}}


def redrive(world: World, letters: str, receives: int) -> str:
    """The RedrivePolicy of a queue with these dead letters."""
    policy = {"deadLetterTargetArn": world.arn(letters), "maxReceiveCount": receives}
    return json.dumps(policy)


def refused(call: Callable[..., Any], **members: Any) -> str:
    """The code of a refusal."""
    with pytest.raises(ClientError) as caught:
        call(**members)
    return str(caught.value.response["Error"]["Code"])


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


# -- the policies ----------------------------------------------------------------------------------


@policy
def retry_backoff(world: World) -> None:
    url = world.queue("retry", {"retry-min": "2", "retry-max": "2"})
    world.send(url, "a")
    (message,) = world.receive(url, WaitTimeSeconds=5, VisibilityTimeout=0)

    assert world.receive(url) == []
    assert world.counts(url) == (0, 0, 1)
    (again,) = world.receive(url, WaitTimeSeconds=20)
    assert again["MessageId"] == message["MessageId"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


@policy
def receive_rate(world: World) -> None:
    url = world.queue("rate", {"receive-rate": "100"})
    world.send(url, *map(str, range(250)))
    begun, found = time.monotonic(), 0
    while found < 250:
        found += len(world.receive(url, WaitTimeSeconds=5))
        seconds = time.monotonic() - begun
        assert found <= 100 * (seconds + 1) + PARTS, "one second's messages at once, then the rate"


@policy
def max_in_flight(world: World) -> None:
    most = 1000 if world.is_split else 3
    url = world.queue("flight", {"max-in-flight": str(most)})
    world.send(url, *map(str, range(most + 60)))
    found = world.receive_all(url)

    taken = len(found)
    assert taken == most or (world.is_split and most / 2 < taken < most)
    assert world.counts(url) == (most + 60 - taken, taken, 0)
    for message in found:
        world.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert world.receive(url, WaitTimeSeconds=5)


@policy
def throttle(world: World) -> None:
    once = world.place.client(retries=_NO_RETRIES)
    deep = world.queue("deep", {"throttle-depth": "40"})
    old = world.queue("old", {"throttle-age": "1"})
    for url, most in ((deep, 40), (old, 100)):
        sent = 0
        try:
            while sent <= most:
                once.send_message(QueueUrl=url, MessageBody="x")
                sent += 1
                time.sleep(0.1 if url == old else 0)
        except ClientError as error:
            answer = error.response
        assert answer["Error"]["Code"] == "RequestThrottled"
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 403
        assert 1 <= sent <= most
        for message in world.receive_all(url):
            world.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        once.send_message(QueueUrl=url, MessageBody="x")


@policy
def guarded_deletion(world: World) -> None:
    url = world.queue("kept", {"deletion-protection": "on"})
    world.send(url, "a")
    assert refused(world.sqs.delete_queue, QueueUrl=url) == "AccessDenied"
    world.sqs.tag_queue(QueueUrl=url, Tags={"holdfast:protect": "on"})
    assert refused(world.sqs.purge_queue, QueueUrl=url) == "AccessDenied"
    assert bodies(world.receive(url, WaitTimeSeconds=5)) == ["a"]
    keys = ["holdfast:protect", "holdfast:deletion-protection"]
    world.sqs.untag_queue(QueueUrl=url, TagKeys=keys)
    world.sqs.delete_queue(QueueUrl=url)


@policy
def scheduled(world: World) -> None:
    url = world.queue("scheduled", {"deliver-at": "on"})
    now_ms = int(time.time() * 1000)
    at_ms = now_ms + 2_000
    world.send(url, "soon", MessageAttributes=number_of("deliver-at", at_ms))
    world.send(url, "in a year", MessageAttributes=number_of("deliver-at", now_ms + YEAR_MS))
    assert world.counts(url) == (0, 0, 2)

    (message,) = world.receive(url, WaitTimeSeconds=20)

    assert time.time() * 1000 >= at_ms - 1
    assert message["Body"] == "soon"
    assert world.counts(url) == (0, 1, 1)


@policy
def time_to_live(world: World) -> None:
    letters = world.queue("expired")
    policy = redrive(world, letters, 5)
    url = world.queue("ttl", {"ttl": "1", "expired": "dead-letter"}, RedrivePolicy=policy)
    gone = world.queue("discarded", {"ttl": "600"})
    world.send(gone, "brief", MessageAttributes=number_of("ttl", 1))
    world.send(gone, "long")
    world.send(url, *map(str, range(8)))
    time.sleep(1.1)

    assert world.receive(url) == []
    assert bodies(world.receive(gone, WaitTimeSeconds=5)) == ["long"]
    found: list[str] = []
    while len(found) < 8:
        found += bodies(world.receive(letters, WaitTimeSeconds=20))
    assert sorted(found) == sorted(map(str, range(8)))
    assert world.counts(url) == (0, 0, 0)


@policy
def priority(world: World) -> None:
    strict = world.queue("strict", {"priority": "strict"})
    weighted = world.queue("weighted", {"priority": "weighted"})
    for url in (strict, weighted):
        world.send(url, *["low"] * 60, MessageAttributes=number_of("priority", 0))
        world.send(url, *["high"] * 60, MessageAttributes=number_of("priority", 9))
    found = {url: [bodies(world.receive(url, WaitTimeSeconds=5))] for url in (strict, weighted)}
    for url, answers in found.items():
        while some := bodies(world.receive(url, WaitTimeSeconds=1)):
            answers.append(some)

    for some in found[strict]:  # each of one part, which chooses among its own messages
        assert some == sorted(some)
    if not world.is_split:
        assert found[strict][:6] == [["high"] * 10] * 6
        first = [body for answer in found[weighted][:3] for body in answer]
        assert first.count("high") == 27, "ten times as often as low ones"
    for answers in found.values():
        assert Counter(chain.from_iterable(answers)) == {"low": 60, "high": 60}


@policy
def rejected(world: World) -> None:
    url = world.queue("full", {"max-messages": "20"})
    taken = 0
    for each in range(4):
        entries = [{"Id": str(place), "MessageBody": f"{each}-{place}"} for place in range(10)]
        answer = world.sqs.send_message_batch(QueueUrl=url, Entries=entries)
        taken += len(answer.get("Successful", []))
        assert {each["Code"] for each in answer.get("Failed", [])} <= {"OverLimit"}
    assert taken == 20, "also of parts, each of which has room for 5"
    assert world.counts(url) == (taken, 0, 0)
    assert len(world.receive_all(url)) == taken, "those in flight count"
    assert sum(world.counts(url)) == taken


@policy
def oldest_dropped(world: World) -> None:
    tags = {"max-messages": "40", "overflow": "drop-oldest"}
    url = world.queue("dropping", tags)
    for each in range(12):
        world.send(url, *(f"{each}-{place}" for place in range(10)))
        assert sum(world.counts(url)) <= 40

    found = bodies(world.receive_all(url))

    assert {f"11-{place}" for place in range(10)} <= {*found}
    if not world.is_split:  # a part may have had no message since
        assert len(found) == 40
        assert not any(body.startswith("0-") for body in found)


@policy
def oldest_become_dead_letters(world: World) -> None:
    letters = world.queue("pushed-out")
    tags = {"max-messages": "80", "overflow": "dead-letter"}
    url = world.queue("brim", tags, RedrivePolicy=redrive(world, letters, 9))
    sent, codes = set[str](), set[str]()
    while len(sent) < 160:  # what is on its way to another shard still counts
        body = str(len(sent))
        try:
            world.sqs.send_message(QueueUrl=url, MessageBody=body)
            sent.add(body)
        except ClientError as error:
            codes.add(error.response["Error"]["Code"])
            time.sleep(0.05)
        assert sum(world.counts(url)) <= 80
    assert codes <= {"OverLimit"}
    left, dead = bodies(world.receive_all(url)), list[str]()
    while len(left) + len(dead) < len(sent):
        for message in world.receive(
            letters, WaitTimeSeconds=20, MessageSystemAttributeNames=[CAUSE]
        ):
            assert json.loads(message["Attributes"][CAUSE])["cause"] == "over-length"
            dead.append(message["Body"])
    assert sorted(left + dead) == sorted(sent)
    if not world.is_split:
        assert max(map(int, dead)) < min(map(int, left)), "the oldest"


@policy
def messages_of_a_deleted_queue(world: World) -> None:
    letters = world.queue("bequeathed")
    policy = redrive(world, letters, 9)
    url = world.queue("deleted", {"on-delete": "dead-letter"}, RedrivePolicy=policy)
    world.send(url, *map(str, range(20)))
    world.send(url, *map(str, range(20, 30)), DelaySeconds=900)
    world.sqs.delete_queue(QueueUrl=url)

    found: list[str] = []
    while len(found) < 30:
        for message in world.receive(
            letters, WaitTimeSeconds=20, MessageSystemAttributeNames=[CAUSE]
        ):
            assert json.loads(message["Attributes"][CAUSE])["cause"] == "queue-deleted"
            found.append(message["Body"])
    assert sorted(found) == sorted(map(str, range(30)))


@policy
def order_by_the_senders_clock(world: World) -> None:
    if world.is_split:  # refused, see `visibility/POLICIES.md`
        return
    late = world.queue("late")
    tags = {"order": "sender-clock", "order-window": "4000", "late-queue": world.arn(late)}
    url = world.queue("by-clock", tags)
    now_ms = int(time.time() * 1000)
    for number in (3, 1, 2, 0):
        world.send(url, str(number), MessageAttributes=number_of("sent-at", now_ms - 100 + number))
    found: list[str] = []
    while len(found) < 4:
        found += bodies(world.receive(url, WaitTimeSeconds=20))
    assert found == ["0", "1", "2", "3"]

    world.send(url, "late", MessageAttributes=number_of("sent-at", now_ms - 60_000))
    (message,) = world.receive(late, **_CAUSE_TOO)
    assert json.loads(message["Attributes"][CAUSE])["cause"] == "late"


@policy
def dead_letters_that_do_not_fit(world: World) -> None:
    letters = world.queue("little", {"max-messages": str(PARTS)})
    source = world.queue("spent", VisibilityTimeout="0", RedrivePolicy=redrive(world, letters, 1))
    world.send(source, *map(str, range(12)))
    dead: set[str] = set()

    def are_all_dead() -> bool:
        world.receive(source)
        assert sum(world.counts(letters)) <= PARTS
        if found := world.receive(letters):
            dead.update(bodies(found))
            for each in found:
                world.sqs.delete_message(QueueUrl=letters, ReceiptHandle=each["ReceiptHandle"])
        return len(dead) == 12

    eventually(are_all_dead)
    eventually(lambda: world.counts(source) == (0, 0, 0))


@policy
def at_most_once(world: World) -> None:
    url = world.queue("once", {"delivery": "at-most-once"}, VisibilityTimeout="0")
    world.send(url, *map(str, range(20)))

    found = world.receive_all(url)

    assert sorted(bodies(found)) == sorted(map(str, range(20)))
    handles = [
        {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
        for place, message in enumerate(found[:10])
    ]
    assert len(world.sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 10
    change = {"QueueUrl": url, "ReceiptHandle": found[0]["ReceiptHandle"], "VisibilityTimeout": 5}
    assert refused(world.sqs.change_message_visibility, **change).endswith("MessageNotInflight")
    eventually(lambda: world.counts(url) == (0, 0, 0))


@policy
def transactions(world: World) -> None:
    orders, bills, mails = world.queue("orders"), world.queue("bills"), world.queue("mails")
    world.send(orders, *map(str, range(8)))
    for order in world.receive_all(orders):
        items = delete(orders, order), send(bills, order["Body"]), send(mails, order["Body"])
        world.holdfast.transact_messages(TransactItems=list(items))
        with pytest.raises(world.holdfast.exceptions.TransactionCanceledException):
            world.holdfast.transact_messages(TransactItems=list(items))

    assert world.counts(orders) == (0, 0, 0)
    for url in (bills, mails):
        assert sorted(bodies(world.receive_all(url))) == sorted(map(str, range(8)))


# -- the table -------------------------------------------------------------------------------------


class Table:
    """The outcomes of all policies in all worlds."""

    def __init__(self, worlds: dict[str, World], pool: ThreadPoolExecutor) -> None:
        self.worlds = worlds
        self._pool = pool
        self._begun: dict[str, dict[str, Future[None]]] = {}

    def outcome(self, world: str, policy: str) -> None:
        """Wait for it; raises what it raised."""
        if world not in self._begun:
            of = self.worlds[world]
            begun = {name: self._pool.submit(check, of) for name, check in POLICIES.items()}
            self._begun[world] = begun
        self._begun[world][policy].result()

    def wait(self) -> None:
        """Wait for all that are tried."""
        wait([each for of in self._begun.values() for each in of.values()])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with worlds(tmp_path_factory.mktemp("policies")) as made, ThreadPoolExecutor(8) as pool:
        yield Table(made, pool)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("world", NAMES)
def test_the_policy_holds(table: Table, world: str, policy: str) -> None:
    table.outcome(world, policy)


# -- kill -9 of leaders ----------------------------------------------------------------------------


class Load:
    """Clients of queues of a world, each with a connection of its own; they work until the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, *works: Callable[[Any], None], **config: Any) -> None:
        """Do each of these again and again with a client."""
        for work in works:
            thread = threading.Thread(
                target=self._work, args=(work, self.world.place.client(**config))
            )
            self._threads.append(thread)
            thread.start()

    def _work(self, work: Callable[[Any], None], client: Any) -> None:
        try:
            while not self._ended.is_set():
                work(client)
        except Exception as error:  # the test shows it
            self.failures.append(repr(error))
        finally:
            client.close()

    def stop(self) -> None:
        """Wait for all."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """Wait for all, of which none may have failed."""
        self.stop()
        assert not self.failures


class Sent:
    """Bodies that were sent at least once and at most once: no send is repeated."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.begun = 0
        self.acknowledged: set[str] = set()
        self._ended = threading.Event()

    def end(self) -> None:
        """Send no more. One may be under way."""
        self._ended.set()

    def send(self, client: Any) -> None:
        """Send the next one."""
        if self._ended.is_set():
            time.sleep(0.2)
            return
        self.begun += 1
        body = str(self.begun)
        try:
            client.send_message(QueueUrl=self._url, MessageBody=body)
        except (ClientError, BotoCoreError):
            time.sleep(0.2)
        else:
            self.acknowledged.add(body)
            time.sleep(0.05)


class OnceLoad(Load):
    """Messages that are delivered at most once."""

    consumers = 2

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = "once-killed"
        self.url = world.queue(self.name, {"delivery": "at-most-once"})
        self.sent = Sent(self.url)
        self.received: Counter[str] = Counter()
        self.run(self.sent.send, retries=_NO_RETRIES)
        self.run(*[self.receive] * self.consumers)

    def receive(self, client: Any) -> None:
        """Receive one message."""
        found = client.receive_message(QueueUrl=self.url, WaitTimeSeconds=1)
        self.received.update(bodies(found.get("Messages", [])))

    def judge(self, kills: int) -> None:
        """None came twice, and no more are lost than were under way when a leader was killed."""
        self.sent.end()
        eventually(lambda: self.world.counts(self.url)[0] == 0)
        self.end()
        assert self.received.total() == len(self.received)
        assert len(self.sent.acknowledged) > kills
        lost = self.sent.acknowledged - self.received.keys()
        assert len(lost) <= 2 * kills * self.consumers


class OrdersLoad(Load):
    """Orders that are consumed in transactions that produce bills and mails."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = "orders-killed"
        self.orders = world.queue(self.name, VisibilityTimeout="2")
        self.made = [world.queue(f"{name}-killed") for name in ("bills", "mails")]
        self.sent = Sent(self.orders)
        self.canceled = world.holdfast.exceptions.TransactionCanceledException
        self.run(self.sent.send, retries=_NO_RETRIES)
        self.run(self.produce, self.produce)

    def produce(self, client: Any) -> None:
        """Consume orders."""
        found = client.receive_message(QueueUrl=self.orders, WaitTimeSeconds=1)
        for order in found.get("Messages", []):
            items = [delete(self.orders, order), *(send(url, order["Body"]) for url in self.made)]
            with suppress(self.canceled):
                self.world.holdfast.transact_messages(TransactItems=items)

    def judge(self, kills: int) -> None:
        """Each order gave one bill and one mail."""
        acknowledged = self.sent.acknowledged
        self.sent.end()
        eventually(lambda: self.world.counts(self.orders) == (0, 0, 0))
        self.end()
        bills, mails = (Counter(bodies(self.world.receive_all(url))) for url in self.made)
        assert bills == mails
        assert bills.total() == len(bills)
        assert acknowledged <= bills.keys()
        assert len(acknowledged) > kills


class FullLoad(Load):
    """A queue that more is sent to than it holds, and dead letters that do not fit."""

    most = 20
    spent = 12

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = "full-killed"
        self.url = world.queue(self.name, {"max-messages": str(self.most)})
        self.letters = world.queue("little-killed", {"max-messages": str(PARTS)})
        policy = redrive(world, self.letters, 1)
        self.source = world.queue("spent-killed", VisibilityTimeout="0", RedrivePolicy=policy)
        world.send(self.source, *map(str, range(self.spent)))
        self.highest = 0
        self.run(*[Sent(self.url).send] * 3, retries=_NO_RETRIES)
        self.run(self.consume, self.look)

    def consume(self, client: Any) -> None:
        """Make room for a message, and dead letters."""
        for message in client.receive_message(QueueUrl=self.url).get("Messages", []):
            client.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
        client.receive_message(QueueUrl=self.source, MaxNumberOfMessages=10)
        time.sleep(0.2)

    def look(self, client: Any) -> None:
        """Neither queue is above its limit."""
        self.highest = max(self.highest, sum(self.world.counts(self.url)))
        assert self.highest <= self.most
        assert sum(self.world.counts(self.letters)) <= PARTS
        time.sleep(0.05)

    def judge(self, kills: int) -> None:
        """The queue was full, never more, and all dead letters are somewhere."""
        self.end()
        assert self.highest > self.most / 2
        found = self.world.receive_all(self.url)
        assert len({each["MessageId"] for each in found}) <= self.most
        both = self.source, self.letters
        eventually(lambda: sum(sum(self.world.counts(url)) for url in both) == self.spent)
        dead = [each for url in both for each in self.world.receive_all(url)]
        assert {*bodies(dead)} == {*map(str, range(self.spent))}


@pytest.mark.parametrize("names", [("workers",), ("hosts", "parts")], ids=["workers", "hosts"])
def test_the_policy_survives_its_leader(table: Table, names: tuple[str, ...]) -> None:
    table.wait()
    of = [table.worlds[name] for name in names]
    loads: list[OnceLoad | OrdersLoad | FullLoad] = []
    place = of[0].place
    try:
        loads += (kind(world) for world in of for kind in (OnceLoad, OrdersLoad, FullLoad))
        killed = {shard for load in loads[:3] for shard in place.shards(f"whole-{load.name}")}
        for shard in killed:
            time.sleep(1.0)
            place.kill_leader(shard)
        time.sleep(1.0)
        for load in loads:
            load.judge(len(killed))
    finally:
        for load in loads:
            load.stop()
