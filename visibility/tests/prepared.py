"""Queues and prepared requests, as the gateway would hand them to a shard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from auth.caller import Caller
from visibility.content.id_digests import deduplication_digest, group_digest
from visibility.content.sealing import AsStored
from visibility.contract import operations
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.errors import KmsDisabled, QueueError
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_values import NotedParts
from visibility.rules.acknowledge import ReturnMessages
from visibility.rules.kept_queues import ContinueQueue, DropQueue, RestoreMessages
from visibility.rules.noted_parts import parts_of
from visibility.rules.queues import ReadCounters

ACCOUNT = "000000000000"
REGION = "us-east-1"
CALLER = Caller(ACCOUNT, REGION, "AIDATEST")
START_MS = 1_700_000_000_000
Part = Content | Receipt | QueueError


class KnownQueues:
    """Definitions in a dict, in place of the catalog."""

    def __init__(self, *queues: QueueDefinition) -> None:
        self.queues = {queue.queue_id: queue for queue in queues}
        self.purged: dict[int, int] = {}
        self.hidden: set[str] = set()
        """ARNs of queues that are deleted for a while."""
        self.removed_at_ms: dict[int, int] = {}
        """See `QueueView`."""
        self.issued = 0
        """Ids up to here count as issued."""

    def define(self, queue: QueueDefinition) -> QueueDefinition:
        """Add or change a queue."""
        self.queues[queue.queue_id] = queue
        return queue

    def all_queues(self) -> list[QueueDefinition]:
        return list(self.queues.values())

    def purge(self, queue: QueueDefinition) -> QueueDefinition:
        """Give a queue a new id, under which it is empty."""
        successor_id = queue.queue_id + 1_000
        self.purged[queue.queue_id] = successor_id
        del self.queues[queue.queue_id]
        return self.define(msgspec.structs.replace(queue, queue_id=successor_id))

    @property
    def highest_queue_id(self) -> int:
        return max([self.issued, *self.queues, *self.purged])

    @property
    def accounts(self) -> int:
        return len({queue.account for queue in self.queues.values()})

    def continued(self) -> list[tuple[int, int]]:
        return sorted(self.purged.items())

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        return self.queues.get(queue_id)

    def queue_of_arn(self, arn: str) -> QueueDefinition | None:
        if arn in self.hidden:
            return None
        found = (queue for queue in self.queues.values() if queue.arn == arn and queue.is_home)
        return next(found, None)

    def queue_of_name(self, name: str) -> QueueDefinition | None:
        found = (queue for queue in self.queues.values() if queue.name == name and queue.is_home)
        return next(found, None)

    def write_back(self, noted: Mapping[bytes, NotedParts]) -> list[QueueDefinition]:
        """See `SharedCatalog.write_back_parts`."""
        written: list[QueueDefinition] = []
        for note in noted.values():
            queue = self.queue_of_name(note.name)
            if queue is not None and note.is_later(parts_of(queue)):
                written.append(
                    msgspec.structs.replace(
                        queue, queue_id=note.queue_id, version=note.version, parts=note.parts
                    )
                )
        for queue in written:
            for part in queue.all_parts():
                self.define(part)
        return written

    def keeps(self, arn: str) -> bool:
        return arn in self.hidden or self.queue_of_arn(arn) is not None

    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        policy = queue.settings.redrive_policy
        return None if policy is None else self.queue_of_arn(policy.dead_letter_target_arn)

    def renewed(self, request: Request) -> Request | None:
        queue_id = request.queue.queue_id
        while queue_id in self.purged:
            queue_id = self.purged[queue_id]
        queue = self.queues.get(queue_id)
        if queue is None:
            return None
        target, to = self.dead_letter_queue(queue), request.destination
        if to is not None:
            to = self.queues.get(to.queue_id, to)
        return msgspec.structs.replace(
            request, queue=queue, dead_letter_queue=target, destination=to
        )


class Keys(AsStored):
    """Seals every message again, readably, but refuses `some` messages, those with an odd number,
    or `all`."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def check(self, queue: QueueDefinition) -> None:
        if self.refuses == "all":
            raise KmsDisabled("disabled")

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        self.check(queue)
        if self.refuses == "some" and is_odd(message.data):
            raise KmsDisabled("disabled")
        return msgspec.structs.replace(message, sealed=message.sealed + 1)

    def opened(self, message: StoredMessage, queues: Sequence[QueueDefinition]) -> bytes | None:
        self.check(queues[0])
        return message.data


def is_odd(body: bytes) -> bool:
    """True if the number after the letter is odd."""
    return int(body[1:]) % 2 == 1


def queue_named(
    name: str,
    queue_id: int,
    *,
    dead_letters_to: QueueDefinition | None = None,
    max_receive_count: int = 1,
    tags: dict[str, str] | None = None,
    **attributes: str,
) -> QueueDefinition:
    """A queue's definition; attributes under AWS's names."""
    if dead_letters_to is not None:
        policy = {
            "deadLetterTargetArn": dead_letters_to.arn,
            "maxReceiveCount": max_receive_count,
        }
        attributes["RedrivePolicy"] = json.dumps(policy)
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    complete = initial_attributes(name, attributes)
    return QueueDefinition(
        queue_id=queue_id,
        account=ACCOUNT,
        region=REGION,
        name=name,
        version=1,
        shard=0,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=queue_id.to_bytes(32, "big"),
        attributes=complete,
        tags=tags or {},
        settings=settings_of(complete, tags),
        deduplication_scope=complete.get("DeduplicationScope", ""),
    )


def content(
    body: str | bytes,
    queue: QueueDefinition | None = None,
    *,
    group: str | None = None,
    deduplication_id: str | None = None,
    at_ms: int = 0,
    ttl_ms: int = 0,
    level: int = 0,
    sent_at_ms: int = 0,
) -> Content:
    """A stored content; for the engine it is opaque, so the body alone will do. FIFO: the body is
    the default id."""
    data = body.encode() if isinstance(body, str) else body
    digest = b""
    if queue is not None and queue.settings.fifo:
        scope = group if queue.deduplication_scope == "messageGroup" else None
        digest = deduplication_digest(scope, deduplication_id or data.decode())
    grouped = b"" if group is None else group_digest(group)
    return Content(
        data,
        len(data),
        "0" * 32,
        group=grouped,
        deduplication=digest,
        deliver_at_ms=at_ms,
        ttl_ms=ttl_ms,
        level=level,
        sent_at_ms=sent_at_ms,
    )


def prepared(
    queue: QueueDefinition,
    operation: operations.Operation,
    parts: Sequence[Part] = (),
    *,
    dead_letter_queue: QueueDefinition | None = None,
) -> Request:
    """Any request."""
    return Request(operation, queue, CALLER, "request", tuple(parts), dead_letter_queue)


def send(
    queue: QueueDefinition,
    body: str | bytes,
    *,
    delay_s: int | None = None,
    group: str | None = None,
    deduplication_id: str | None = None,
    at_ms: int = 0,
    ttl_ms: int = 0,
    level: int = 0,
    sent_at_ms: int = 0,
) -> Request:
    """SendMessage; `at_ms` is the time of a scheduled message, `ttl_ms` its own time to live,
    `level` tells its priority, `sent_at_ms` is the time of its sender's clock."""
    part = content(
        body,
        queue,
        group=group,
        deduplication_id=deduplication_id,
        at_ms=at_ms,
        ttl_ms=ttl_ms,
        level=level,
        sent_at_ms=sent_at_ms,
    )
    return prepared(queue, operations.SendMessage(delay_seconds=delay_s), [part])


def send_batch(
    queue: QueueDefinition,
    bodies: Sequence[str | QueueError],
    *,
    delay_s: int | None = None,
    groups: Sequence[str | None] = (),
) -> Request:
    """SendMessageBatch with entries "0", "1", ...; those that the gateway refused are errors."""
    entries = [
        operations.SendMessageBatchRequestEntry(str(position), delay_seconds=delay_s)
        for position in range(len(bodies))
    ]
    parts = [
        body
        if isinstance(body, QueueError)
        else content(body, queue, group=groups[position] if groups else None)
        for position, body in enumerate(bodies)
    ]
    return prepared(queue, operations.SendMessageBatch(entries=entries), parts)


def receive(
    queue: QueueDefinition,
    most: int | None = None,
    *,
    timeout_s: int | None = None,
    wait_s: int | None = None,
    dead_letter_queue: QueueDefinition | None = None,
    attempt: str | None = None,
) -> Request:
    """ReceiveMessage."""
    operation = operations.ReceiveMessage(
        max_number_of_messages=most,
        visibility_timeout=timeout_s,
        wait_time_seconds=wait_s,
        receive_request_attempt_id=attempt,
    )
    return prepared(queue, operation, dead_letter_queue=dead_letter_queue)


def delete(queue: QueueDefinition, receipt: Receipt) -> Request:
    """DeleteMessage."""
    return prepared(queue, operations.DeleteMessage(receipt_handle="handle"), [receipt])


def delete_batch(queue: QueueDefinition, parts: Sequence[Part]) -> Request:
    """DeleteMessageBatch with entries "0", "1", ..."""
    entries = [
        operations.DeleteMessageBatchRequestEntry(str(position)) for position in range(len(parts))
    ]
    return prepared(queue, operations.DeleteMessageBatch(entries=entries), parts)


def change(queue: QueueDefinition, receipt: Receipt, timeout_s: int) -> Request:
    """ChangeMessageVisibility."""
    operation = operations.ChangeMessageVisibility(
        receipt_handle="handle", visibility_timeout=timeout_s
    )
    return prepared(queue, operation, [receipt])


def change_batch(
    queue: QueueDefinition, parts: Sequence[Part], timeouts_s: Sequence[int]
) -> Request:
    """ChangeMessageVisibilityBatch with entries "0", "1", ..."""
    entries = [
        operations.ChangeMessageVisibilityBatchRequestEntry(
            str(position), visibility_timeout=timeout_s
        )
        for position, timeout_s in enumerate(timeouts_s)
    ]
    return prepared(queue, operations.ChangeMessageVisibilityBatch(entries=entries), parts)


def purge(queue: QueueDefinition, successor: QueueDefinition) -> Request:
    """The internal ContinueQueue."""
    request = prepared(queue, ContinueQueue())
    return msgspec.structs.replace(request, destination=successor)


def restore(
    queue: QueueDefinition,
    successor: QueueDefinition,
    from_sequence: int = 0,
    blocked: frozenset[bytes] = frozenset(),
) -> Request:
    """The internal RestoreMessages."""
    request = prepared(queue, RestoreMessages(from_sequence, blocked))
    return msgspec.structs.replace(request, destination=successor)


def drop(queue: QueueDefinition) -> Request:
    """The internal DropQueue."""
    return prepared(queue, DropQueue())


def counters(queue: QueueDefinition) -> Request:
    """The internal ReadCounters."""
    return prepared(queue, ReadCounters())


def give_back(queue: QueueDefinition, receipts: Sequence[Receipt]) -> Request:
    """The internal ReturnMessages."""
    return prepared(queue, ReturnMessages(), receipts)


def start_move_task(
    source: QueueDefinition, target: QueueDefinition | None, rate: int = 0
) -> Request:
    """StartMessageMoveTask, to each message's own source if there is no target."""
    operation = operations.StartMessageMoveTask(
        source_arn=source.arn,
        destination_arn=target.arn if target else None,
        max_number_of_messages_per_second=rate or None,
    )
    return Request(operation, source, CALLER, "request", destination=target)
