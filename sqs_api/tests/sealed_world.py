"""A shard with real sealing, a dead-letter queue, and a view of its disk."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from auth.envelope import BUILT_IN_KEY
from cluster.clock import SystemEntropy
from cluster.keys.keyring import Keyring
from cluster.tests.driver import Driver
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.row_consistency import check_rows, rows_by_queue
from cluster.tests.virtual_time import SettableClock
from sqs_api.gateway.sealer import Sealer
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import ListMessageMoveTasks
from visibility.contract.results import ListMessageMoveTasksResult, ListMessageMoveTasksResultEntry
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import MESSAGE
from visibility.rules.message_events import MessagesMoved
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

BODY = b"a body that nobody may read"
PLAIN, MANAGED, ORDERS, BILLS = None, BUILT_IN_KEY, "orders", "bills"
"""The keys that seal a queue's messages."""


T = TypeVar("T")


def now(work: Coroutine[Any, Any, T]) -> T:
    """The result of some work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


def memory_keyring(clock: SettableClock) -> Keyring:
    """A keyring whose changes are made at once."""
    return now(Keyring.open(MemoryCoordination(), bytes(32), clock, SystemEntropy()))


def queue_of(
    name: str, number: int, key: str | None, dead: QueueDefinition | None = None
) -> QueueDefinition:
    if key is None:
        return prepared.queue_named(
            name, number, dead_letters_to=dead, SqsManagedSseEnabled="false"
        )
    if key == BUILT_IN_KEY:
        return prepared.queue_named(name, number, dead_letters_to=dead)
    return prepared.queue_named(name, number, dead_letters_to=dead, KmsMasterKeyId=key)


def sealed(sealer: Sealer, content: Content, queue: QueueDefinition) -> Content:
    """The content as a send stores it."""
    key = sealer.key_of(queue)
    if key is None:
        return content
    return msgspec.structs.replace(content, data=key.seal(content.data), sealed=key.number)


class World:
    """A shard with a real sealer: queue `source` and its dead-letter queue `dead`."""

    def __init__(self, source: str | None, dead: str | None, suffix: str = "") -> None:
        self.clock = SettableClock()
        self.suffix = suffix
        self.keyring = memory_keyring(self.clock)
        for name in ("orders", "bills"):
            now(self.keyring.add(name, prepared.ACCOUNT))
        self.sealer = Sealer(self.keyring, self.clock, makes_keys=False)
        self.store = MemoryStore()
        self.dead = queue_of("dead" + suffix, 1, dead)
        self.source = queue_of("source" + suffix, 2, source, self.dead)
        self.known = KnownQueues(self.dead, self.source)
        now(self.sealer.prepare([self.dead, self.source]))
        self.moves: list[MessagesMoved] = []
        self.driver = Driver(self.known, store=self.store, sealing=self.sealer, on_event=self._note)

    def _note(self, event: object) -> None:
        if isinstance(event, MessagesMoved):
            self.moves.append(event)

    def forget_keys(self) -> None:
        """Have no data keys to seal with, as after another start."""
        self.sealer = Sealer(self.keyring, self.clock, makes_keys=False)
        self.driver.state.sealing = self.sealer

    def define(self, name: str, number: int, key: str | None) -> QueueDefinition:
        queue = self.known.define(queue_of(name + self.suffix, number, key, self.dead))
        now(self.sealer.prepare([queue]))
        return queue

    def send(self, queue: QueueDefinition, body: bytes = BODY, count: int = 1) -> None:
        for number in range(count):
            plain = prepared.content(
                body,
                queue,
                group="g" if self.suffix else None,
                deduplication_id=f"{queue.name} {number} {self.driver.turns}",
            )
            content = sealed(self.sealer, plain, queue)
            request = prepared.send(queue, BODY, group="g" if self.suffix else None)
            assert isinstance(content, Content)
            self.driver.submit(msgspec.structs.replace(request, parts=(content,)))

    def receive(self, queue: QueueDefinition, most: int = 10) -> list[bytes | None]:
        """The bodies that can be opened; each message is visible again at once."""
        target = self.known.dead_letter_queue(queue)
        request = prepared.receive(queue, most, timeout_s=0, dead_letter_queue=target)
        messages = self.driver.submit(request).deliveries.messages
        return [self.sealer.open(message) for message in messages]

    def let_die(self, queue: QueueDefinition, body: bytes = BODY, count: int = 1) -> None:
        self.send(queue, body, count)
        self.receive(queue)
        self.receive(queue)

    def stored(self, queue: QueueDefinition) -> list[StoredMessage]:
        """The messages on disk, in order."""
        check_rows(self.store, self.driver.state)
        rows = rows_by_queue(self.store).get(queue.queue_id)
        found = {} if rows is None else rows.of_kind(MESSAGE, StoredMessage)
        return [m for _, m in sorted(found.items()) if isinstance(m, StoredMessage)]

    def key_of(self, message: StoredMessage) -> str | None:
        return self.keyring.data_key(message.sealed)[0].name if message.sealed else None

    def keys(self, queue: QueueDefinition) -> list[str | None]:
        """The names of the keys that seal the queue's messages; each opens to its body."""
        stored = self.stored(queue)
        assert {self.sealer.open(message) for message in stored} <= {BODY}
        assert all((BODY in message.data) is not bool(message.sealed) for message in stored)
        return [self.key_of(message) for message in stored]

    def move(self, to: QueueDefinition | None = None) -> ListMessageMoveTasksResultEntry:
        """Run a task on the dead-letter queue to its end; how it ended."""
        self.driver.submit(prepared.start_move_task(self.dead, to))
        return self.task()

    def task(self) -> ListMessageMoveTasksResultEntry:
        listed = self.driver.submit(prepared.prepared(self.dead, ListMessageMoveTasks())).answer
        assert isinstance(listed, ListMessageMoveTasksResult)
        assert listed.results is not None
        return listed.results[0]
