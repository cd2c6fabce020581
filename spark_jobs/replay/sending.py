"""Send archived messages to a queue through the SQS API: batches, rate, retries.

In a FIFO queue, a request has at most one message of a group. Otherwise, if SQS accepted only part
of a request, a message could end up behind the next one of its group.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.replay.ledger import Named
from storage.lake.archive_schema import attribute_bytes, row_checksum

ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1 << 20
"""Limit of bodies and attributes of a request. Source: SQS quotas."""
_ATTEMPTS = 6
_BACK_OFF_S = 0.2
"""Delay that doubles with each attempt, 6 seconds in all."""
_CONNECTION = Config(
    retries={"mode": "standard", "total_max_attempts": 5}, connect_timeout=10, read_timeout=60
)

_NOT_ANSWERED = {"Code": "InternalError", "Message": "the reply of SQS has no entry for it"}

Attributes = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the archive; `attributes` is {name: {data_type, string_value, binary_value}}."""

    name: Named
    message_id: str
    body: str | None
    attributes: Attributes
    trace_header: str | None
    group: str | None
    checksum: int

    @property
    def size(self) -> int:
        """Size in bytes as SQS counts them."""
        return len((self.body or "").encode()) + sum(
            len(text.encode()) if isinstance(text, str) else len(text or b"")
            for name, value in self.attributes.items()
            for text in (name, *value.values())
        )

    @property
    def damage(self) -> str | None:
        """The reason why the message cannot be sent; None if it can."""
        attributes = attribute_bytes(list(self.attributes.items()))
        if self.checksum != row_checksum(self.message_id, (self.body or "").encode(), attributes):
            return "its checksum in the archive is wrong"
        return None if self.body else "it has no body"


class Destination(NamedTuple):
    """The queue to send to."""

    client: Any
    url: str
    arn: str

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.arn.rsplit(":", 1)[1]

    @property
    def is_fifo(self) -> bool:
        """True for a FIFO queue, by its name."""
        return self.arn.endswith(".fifo")

    @property
    def folder(self) -> str:
        """The ARN as a path. It does not distinguish services that use the same ARN."""
        return "/".join(self.arn.split(":")[3:])


class Outcome(NamedTuple):
    """The outcome of a request. `stopped` is the reason why messages remain; None if none do."""

    sent: list[Message]
    refused: list[tuple[Message, str]]
    stopped: str | None


def find_destination(endpoint: str, queue: str) -> Destination:
    """Find a queue by name, or by URL, which also gives the service's address. Raises JobFailed."""
    parts = urlsplit(queue)
    is_url = parts.scheme in ("http", "https")
    try:
        origin = f"{parts.scheme}://{parts.netloc}" if is_url else endpoint
        client = _client(origin)
        url = queue if is_url else client.get_queue_url(QueueName=queue)["QueueUrl"]
        answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    except (BotoCoreError, ClientError, ValueError) as error:
        raise JobFailed(f"cannot find the queue {queue}: {_reason(error)}") from error
    return Destination(client, url, answer["Attributes"]["QueueArn"])


def has_queue(destination: Destination, name: str) -> bool:
    """True if the service of the destination has a queue of this name."""
    try:
        destination.client.get_queue_url(QueueName=name)
    except (BotoCoreError, ClientError):
        return False
    return True


def _client(origin: str) -> Any:
    """A client with the SDK's region and access key; without a key it sends unsigned requests."""
    session = boto3.session.Session()
    config = _CONNECTION
    if session.get_credentials() is None:
        config = config.merge(Config(signature_version=UNSIGNED))
    region = session.region_name or "us-east-1"
    return session.client("sqs", endpoint_url=origin, region_name=region, config=config)


def batches(
    messages: Iterable[Message], *, entries_max: int, is_fifo: bool
) -> Iterator[list[Message]]:
    """Split the messages into requests, in order, as full as possible."""
    batch: list[Message] = []
    size = 0
    groups: set[str] = set()
    for message in messages:
        is_full = len(batch) == entries_max or size + message.size > BATCH_BYTES_MAX
        if batch and (is_full or (is_fifo and group_of(message) in groups)):
            yield batch
            batch, size, groups = [], 0, set()
        batch.append(message)
        size += message.size
        groups.add(group_of(message))
    if batch:
        yield batch


def group_of(message: Message) -> str:
    """The message group in a FIFO queue; a message without one gets a group of its own."""
    return message.group or message.message_id


def entry(message: Message, entry_id: str, replay: str, *, is_fifo: bool) -> dict[str, Any]:
    """The message as an entry of SendMessageBatch; `replay` is the replay's name."""
    assert message.body
    members: dict[str, Any] = {"Id": entry_id, "MessageBody": message.body}
    if message.attributes:
        members["MessageAttributes"] = {
            name: _attribute(value) for name, value in message.attributes.items()
        }
    if message.trace_header:
        members["MessageSystemAttributes"] = {
            "AWSTraceHeader": {"DataType": "String", "StringValue": message.trace_header}
        }
    if is_fifo:
        members["MessageGroupId"] = group_of(message)
        members["MessageDeduplicationId"] = deduplication_id(message, replay)
    elif message.group:
        members["MessageGroupId"] = message.group
    return members


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    if value["string_value"] is not None:
        return {"DataType": value["data_type"], "StringValue": value["string_value"]}
    return {"DataType": value["data_type"], "BinaryValue": value["binary_value"] or b""}


def deduplication_id(message: Message, replay: str) -> str:
    """The deduplication id, the same each time this replay sends this message."""
    text = "\0".join((replay, *map(str, message.name)))
    return f"replay-{hashlib.sha256(text.encode()).hexdigest()}"


class Rate:
    """A limit of messages a second; None for no limit."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._wait = wait
        self._free_at_s = clock()

    @property
    def entries_max(self) -> int:
        """Most messages in a request, so that no second exceeds the limit."""
        return (
            ENTRIES_MAX
            if self._per_second is None
            else min(ENTRIES_MAX, max(1, int(self._per_second)))
        )

    def wait_for(self, count: int) -> None:
        """Wait until this many messages may be sent."""
        if self._per_second is None:
            return
        if (left_s := self._free_at_s - self._clock()) > 0:
            self._wait(left_s)
        self._free_at_s = max(self._free_at_s, self._clock()) + count / self._per_second


def send(
    destination: Destination,
    batch: list[Message],
    replay: str,
    wait: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Send the messages in one request; retry those that fail temporarily.

    Errors of SQS are part of the outcome, not raised.
    """
    outcome = Outcome([], [], None)
    reason = ""
    waiting = batch
    for attempt in range(_ATTEMPTS):
        if attempt:
            wait(_BACK_OFF_S * 2 ** (attempt - 1))
        try:
            sent, failed = _request(destination, waiting, replay)
        except (BotoCoreError, ClientError) as error:
            return outcome._replace(stopped=_reason(error))
        outcome.sent.extend(sent)
        outcome.refused.extend((message, why) for message, is_final, why in failed if is_final)
        waiting = [message for message, is_final, _ in failed if not is_final]
        if not waiting:
            return outcome
        reason = failed[-1][2]
    return outcome._replace(stopped=reason)


def _request(
    destination: Destination, batch: list[Message], replay: str
) -> tuple[list[Message], list[tuple[Message, bool, str]]]:
    """Send one request; the accepted messages, and the others with: is it final, and the reason."""
    entries = [
        entry(message, str(number), replay, is_fifo=destination.is_fifo)
        for number, message in enumerate(batch)
    ]
    answer = destination.client.send_message_batch(QueueUrl=destination.url, Entries=entries)
    accepted = {int(each["Id"]) for each in answer.get("Successful", [])}
    failures = {int(each["Id"]): each for each in answer.get("Failed", [])}
    sent: list[Message] = []
    failed: list[tuple[Message, bool, str]] = []
    for number, message in enumerate(batch):
        if number in accepted:
            sent.append(message)
        else:
            failure = failures.get(number, _NOT_ANSWERED)
            failed.append((message, _is_final(failure), _failure(failure)))
    return sent, failed


def _is_final(failure: Mapping[str, Any]) -> bool:
    return bool(failure.get("SenderFault")) and "throttl" not in str(failure["Code"]).lower()


def _failure(failure: Mapping[str, Any]) -> str:
    return " ".join(f"{failure['Code']}: {failure.get('Message', '')}".split()).rstrip(": ")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
