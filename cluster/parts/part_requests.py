"""The requests that a request on a queue of several parts becomes, and the answer to it: pure.

Each has an id of its own: a shard may keep several parts of a queue, and remembers answers by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from cluster.catalog.catalog_records import QueueName
from visibility.contract.errors import OverLimit, QueueError
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.operations import (
    ChangeMessageVisibilityBatch,
    DeleteMessageBatch,
    Operation,
    SendMessageBatch,
)
from visibility.contract.outcomes import Answer, batch_failure
from visibility.contract.queue_parts import Part
from visibility.contract.results import (
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
    SendMessageBatchResult,
)
from visibility.state.waiters import OnAnswer

_Batch = DeleteMessageBatch | ChangeMessageVisibilityBatch
_BatchResult = DeleteMessageBatchResult | ChangeMessageVisibilityBatchResult
_Successful = DeleteMessageBatchResultEntry | ChangeMessageVisibilityBatchResultEntry
_RESULTS: dict[type[Operation], Callable[..., _BatchResult]] = {
    DeleteMessageBatch: DeleteMessageBatchResult,
    ChangeMessageVisibilityBatch: ChangeMessageVisibilityBatchResult,
}


class View(Protocol):
    """The queues as this host knows them."""

    def find(self, name: QueueName) -> QueueDefinition | None:
        """The queue of that name, None if there is none."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call this soon, when the view shows what was committed before."""


class Answered(NamedTuple):
    """The answer of one part to its entries of a batch."""

    request: Request
    answer: Answer | QueueError


def to_part(
    request: Request, definition: QueueDefinition, operation: Operation | None = None
) -> Request:
    """The request as the part gets it; `definition` is that of the part, or of an unsplit
    queue."""
    return msgspec.structs.replace(
        request,
        operation=operation or request.operation,
        queue=definition,
        request_id=f"{request.request_id}/{definition.part_number}",
    )


def by_receipts(request: Request) -> list[Request]:
    """A request whose receipts name messages, cut by the parts that have these. Entries that are
    refused go with the first part."""
    queue = request.queue
    if not queue.parts:
        return [to_part(request, queue)]
    named: dict[Part, list[int]] = {}
    refused: list[int] = []
    for place, receipt in enumerate(request.parts):
        if isinstance(receipt, Receipt):
            named.setdefault(_first_of(queue, receipt.sequence), []).append(place)
        else:
            refused.append(place)
    if len(named) <= 1:
        part = next(iter(named), queue.parts[0])
        return [to_part(request, queue.of_part(part))]
    next(iter(named.values())).extend(refused)
    return [
        of_places(request, queue.of_part(part), sorted(places)) for part, places in named.items()
    ]


def by_sequences(
    queue: QueueDefinition, sequences: Iterable[int]
) -> list[tuple[QueueDefinition, list[int]]]:
    """The parts that may have the messages of these sequences, each with its own; an unsplit queue
    has all. A sequence of a FIFO queue is named to several parts, see `that_may_have`."""
    if not queue.parts:
        return [(queue, list(sequences))]
    named: dict[Part, list[int]] = {}
    for sequence in sequences:
        for part in _that_may_have(queue, sequence):
            named.setdefault(part, []).append(sequence)
    if queue.settings.fifo:
        named = dict(sorted(named.items(), key=lambda each: each[0].number))
    return [(queue.of_part(part), each) for part, each in named.items()]


def that_may_have(queue: QueueDefinition, sequence: int) -> tuple[QueueDefinition, ...]:
    """The parts to look for the message of a sequence in, in this order. It is in the part that
    issued it, or the first of its heirs that is there. Messages of a FIFO queue go to later parts
    under their sequences: it is in one of these, or on its way."""
    return tuple(map(queue.of_part, _that_may_have(queue, sequence))) or (queue,)


def _that_may_have(queue: QueueDefinition, sequence: int) -> tuple[Part, ...]:
    parts = queue.parts_of(sequence)
    return parts if queue.settings.fifo else parts[:1]


def _first_of(queue: QueueDefinition, sequence: int) -> Part:
    """The part that issued a sequence, or the first of its heirs that is there."""
    return queue.parts_of(sequence)[0]


def one_by_one(request: Request) -> list[Request]:
    """A batch for a part, cut into batches of one entry."""
    operation = request.operation
    assert isinstance(operation, _Batch)
    return [
        msgspec.structs.replace(
            request,
            operation=msgspec.structs.replace(operation, entries=[entry]),
            parts=(request.parts[place],),
        )
        for place, entry in enumerate(operation.entries or [])
    ]


def of_places(request: Request, part: QueueDefinition, places: Sequence[int]) -> Request:
    """The request to a part for those of its entries, or messages, that are at these places."""
    return to_part(only(request, places), part)


def only(request: Request, places: Sequence[int]) -> Request:
    """The request for those of its entries, or messages, that are at these places."""
    operation = request.operation
    if isinstance(operation, _Batch | SendMessageBatch):
        entries = operation.entries or []
        operation = msgspec.structs.replace(operation, entries=[entries[at] for at in places])
    parts = tuple(request.parts[at] for at in places)
    return msgspec.structs.replace(request, operation=operation, parts=parts)


def without_room(request: Request, answer: SendMessageBatchResult) -> list[int]:
    """The places of the entries for which a part had no room."""
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    refused = {each.id for each in answer.failed or () if each.code == OverLimit.code}
    entries = enumerate(operation.entries or ()) if refused else ()
    return [place for place, entry in entries if entry.id in refused]


def with_rest(
    request: Request,
    first: SendMessageBatchResult,
    places: Sequence[int],
    rest: Answer | QueueError,
) -> SendMessageBatchResult:
    """The answer to a batch of which one part answered first, and others the entries at these
    places, for which it had no room."""
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    ids = [entry.id or "" for entry in operation.entries or ()]
    sent = {entry.id: entry for entry in first.successful or ()}
    failed = {entry.id: entry for entry in first.failed or ()}
    if isinstance(rest, SendMessageBatchResult):
        sent |= {entry.id: entry for entry in rest.successful or ()}
        failed |= {entry.id: entry for entry in rest.failed or ()}
    elif isinstance(rest, QueueError) and not isinstance(rest, OverLimit):
        failed |= {ids[place]: batch_failure(ids[place], rest) for place in places}
    return SendMessageBatchResult(
        [sent[name] for name in ids if name in sent] or None,
        [failed[name] for name in ids if name in failed and name not in sent] or None,
    )


def gathering(
    request: Request, cut: Sequence[Request], on_answer: OnAnswer
) -> Callable[[int, Answer | QueueError], None]:
    """Takes the answers to the requests that a request was cut into, by their places; the last one
    makes the answer to all."""
    answers: dict[int, Answered] = {}

    def answered(place: int, answer: Answer | QueueError) -> None:
        answers[place] = Answered(cut[place], answer)
        if len(answers) == len(cut):
            on_answer(merged(request, [answers[at] for at in range(len(cut))]))

    return answered


def merged(request: Request, answered: Sequence[Answered]) -> Answer | QueueError:
    """The answer to a request that was cut, in the order of its entries. Those of a part that did
    not answer failed; if none answered, the whole request did."""
    refusals = [each.answer for each in answered if isinstance(each.answer, QueueError)]
    if len(refusals) == len(answered):
        return refusals[0]
    operation = request.operation
    if not isinstance(operation, _Batch):
        return None
    successful: dict[str, _Successful] = {}
    failed: dict[str, BatchResultErrorEntry] = {}
    for part in answered:
        answer = part.answer
        if isinstance(answer, QueueError):
            assert isinstance(part.request.operation, _Batch)
            ids = [entry.id or "" for entry in part.request.operation.entries or ()]
            failed |= {name: batch_failure(name, answer) for name in ids}
        else:
            assert isinstance(answer, _BatchResult)
            successful |= {entry.id: entry for entry in answer.successful or ()}
            failed |= {entry.id: entry for entry in answer.failed or ()}
    ids = [entry.id or "" for entry in operation.entries or ()]
    return _RESULTS[type(operation)](
        [successful[name] for name in ids if name in successful] or None,
        [failed[name] for name in ids if name in failed] or None,
    )


def sum_of(counters: Iterable[QueueCounters]) -> QueueCounters:
    """The counters of all parts together."""
    each = list(counters)
    return QueueCounters(
        sum(part.visible for part in each),
        sum(part.in_flight for part in each),
        sum(part.delayed for part in each),
    )


def parts_with_tasks(queue: QueueDefinition) -> list[QueueDefinition]:
    """The home of a queue, which any of its parts may name, and the parts that may have been it."""
    return [part for part in queue.all_parts() if part.is_home or not part.part.is_open]
