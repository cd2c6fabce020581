"""Transactions: Holdfast.TransactMessages on SQS's endpoint, from the request to its answer.

The gateway asks this service once a request was refused as one of SQS, so that SQS's requests pay
nothing; clients sign it for `sqs`. Each entry needs the permission of SendMessage or DeleteMessage
on its queue. Names of errors are DynamoDB's, of which TransactWriteItems is the model.

One shard decides: that of the messages to delete, else that of the first queue. An accepted
transaction is answered once all its messages are in their queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import structlog
from typing_extensions import override

from auth.auth_errors import AuthError
from auth.caller import Caller
from cluster.clock import Clock, Entropy
from cluster.shards.router import Router
from sqs_api.gateway.access import Access
from sqs_api.gateway.client import Authenticate
from sqs_api.gateway.gateway import OtherAnswer, OtherRequest, OtherService
from sqs_api.gateway.payload import PAYLOADS, Payloads
from sqs_api.gateway.rates import Rates
from sqs_api.protocol.codec import Wire, encode_error
from sqs_api.protocol.json_codec import UNREADABLE, refusal
from sqs_api.protocol.transact_shapes import (
    ACTION,
    ENTRIES_MAX,
    TARGET_PREFIX,
    TOKEN_CHARACTERS_MAX,
    CancellationReason,
    TransactItem,
    TransactItemResult,
    TransactMessagesRequest,
    TransactMessagesResult,
)
from sqs_api.protocol.wire_names import CONTENT_TYPE_AWS_JSON
from visibility.contract.actions import ACTIONS, Action, AnsweredBy
from visibility.contract.errors import (
    BatchRequestTooLong,
    Departing,
    EmptyBatchRequest,
    InternalError,
    InvalidParameterValue,
    Moved,
    QueueError,
    ServiceUnavailable,
    TooManyEntriesInBatchRequest,
    TransactionCanceled,
)
from visibility.contract.limits import MAXIMUM_MESSAGE_SIZE
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import DeleteMessage, Operation, SendMessage
from visibility.contract.outcomes import Transacted
from visibility.rules.archive_batches import the_shard
from visibility.rules.transactions import FindTransaction, TransactedEntry, TransactMessages

_TARGET = f"{TARGET_PREFIX}.{ACTION}".encode()
_BYTES_MAX = MAXIMUM_MESSAGE_SIZE.high
_LONGEST_S = 10.0
"""Time after which a request is answered ServiceUnavailable, as one that waits for a leader is."""
_AGAIN_S, _AGAIN_MAX_S = 0.005, 0.1
"""Pause before a shard is asked again; doubled each time."""
_ACTION = Action(TransactMessages, None, AnsweredBy.BOTH, ())


_decode = msgspec.json.Decoder(TransactMessagesRequest).decode
_encode = msgspec.json.Encoder().encode


class _Entry(NamedTuple):
    """An entry whose queue and content are known."""

    queue: QueueDefinition
    operation: SendMessage | DeleteMessage
    part: Content | Receipt


class _Canceled(TransactionCanceled):
    """A cancelled transaction, with (code, text) for each entry; empty for one without a fault."""

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        codes = ", ".join(code or "None" for code, _ in reasons)
        super().__init__(
            "Transaction cancelled, please refer cancellation reasons for specific reasons "
            f"[{codes}]"
        )
        self.reasons = reasons


class Transactions(OtherService):
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        authenticate: Authenticate,
        access: Access,
        payloads: Payloads,
        router: Router,
        rates: Rates,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._authenticate = authenticate
        self._access = access
        self._payloads = payloads
        self._router = router
        self._rates = rates
        self._clock = clock
        self._entropy = entropy
        self._log = structlog.get_logger("transactions")

    @override
    def answer(self, request: OtherRequest) -> Awaitable[OtherAnswer] | None:
        is_ours = request.headers.get(b"x-amz-target") == _TARGET
        return self._answered(request) if is_ours else None

    async def _answered(self, request: OtherRequest) -> OtherAnswer:
        error: QueueError | AuthError
        try:
            body = await self._done(request)
            return OtherAnswer(_ACTION, 200, CONTENT_TYPE_AWS_JSON, body, (), None)
        except (QueueError, AuthError) as refused:
            error = refused
            if isinstance(error, ServiceUnavailable):
                name = _ACTION.name
                self._log.error("unavailable", request_id=request.request_id, action=name)
        except Exception:
            self._log.exception("request_failed", request_id=request.request_id)
            error = InternalError()
        written = encode_error(error, Wire.JSON, request.request_id)
        body = _with_reasons(written.body, error) if isinstance(error, _Canceled) else written.body
        # Without the header for clients of the query protocol, which has no such action.
        return OtherAnswer(_ACTION, written.status, written.content_type, body, (), error.code)

    async def _done(self, request: OtherRequest) -> bytes:
        """The answer to an accepted transaction. Raises QueueError, AuthError."""
        method, target, headers, body, *_ = request
        caller = self._authenticate(method, target, headers, body, self._clock.wall_s())
        try:
            asked = _decode(body or b"{}")
        except UNREADABLE as failure:
            raise refusal(failure, body) from failure
        items = _checked(asked)
        self._rates.check_account(caller)
        token, digest = self._token(asked, caller), _digest(b"entries", _encode(items))
        until_s = self._clock.monotonic_s() + _LONGEST_S
        pause_s = _AGAIN_S
        for attempt in range(1_000):
            entries = self._entries(items, caller, request)
            try:
                done, at = await self._accepted(entries, caller, token, digest, attempt)
                break
            except (Moved, Departing):
                pause_s = await self._pause(pause_s, until_s)
        else:
            raise ServiceUnavailable()
        if any(code for code, _ in done.reasons):
            raise _Canceled(done.reasons)
        await self._settled(done, at, FindTransaction(token, digest, 0, 0), caller, until_s)
        return _encode(TransactMessagesResult(list(map(_result, entries, done.sent))))

    async def _pause(self, pause_s: float, until_s: float) -> float:
        """Wait, and return the next pause. Raises ServiceUnavailable if it took too long."""
        if self._clock.monotonic_s() + pause_s >= until_s:
            raise ServiceUnavailable()
        await asyncio.sleep(pause_s)
        return min(2 * pause_s, _AGAIN_MAX_S)

    def _token(self, asked: TransactMessagesRequest, caller: Caller) -> bytes:
        """The token in its account; a request without one is a transaction of its own."""
        if asked.client_request_token is None:
            return self._entropy.bits128().to_bytes(16)
        return _digest(b"token", _encode([caller.account, asked.client_request_token]))

    def _entries(
        self, items: Sequence[TransactItem], caller: Caller, request: OtherRequest
    ) -> list[_Entry]:
        """Find the queues, ask for permission, pack and seal. Raises QueueError, AuthError."""
        entries: list[_Entry] = []
        reasons: list[tuple[str, str]] = []
        for item in items:
            operation = item.send or item.delete
            assert operation is not None
            try:
                entries.append(self._entry(operation, caller, request))
                reasons.append(("", ""))
            except QueueError as error:
                reasons.append((error.code, error.message))
        if any(code for code, _ in reasons):
            raise _Canceled(reasons)
        size = sum(each.part.size for each in entries if isinstance(each.part, Content))
        if size > _BYTES_MAX:
            raise BatchRequestTooLong(
                f"Batch requests cannot be longer than {_BYTES_MAX} bytes. "
                f"You have sent {size} bytes."
            )
        if len({each.queue.account for each in entries}) > 1:
            raise InvalidParameterValue("The queues of a transaction must be of one account.")
        return entries

    def _entry(
        self, operation: SendMessage | DeleteMessage, caller: Caller, request: OtherRequest
    ) -> _Entry:
        ACTIONS[type(operation).__name__].check(operation)
        url = operation.queue_url or ""
        queue = self._access.queue(operation, url, caller, request.sender, request.headers)
        self._rates.check_queue(operation, queue)
        make_payload = PAYLOADS[type(operation)]
        (part,) = payload = make_payload(self._payloads, operation, queue, caller, request.headers)
        self._rates.check_groups(queue, payload)
        if isinstance(part, QueueError):
            raise part
        return _Entry(queue, operation, part)

    async def _accepted(
        self, entries: Sequence[_Entry], caller: Caller, token: bytes, digest: bytes, attempt: int
    ) -> tuple[Transacted, int]:
        """Have the shard decide that is responsible; returns its outcome and its number. The places
        of messages that move are tried in turn. Raises QueueError."""
        rows: list[TransactedEntry] = []
        shards: dict[int, None] = {}
        for queue, operation, part in entries:
            delay_s = None
            if isinstance(part, Receipt):
                way = queue.way_of(part.sequence)
                queue = way[attempt % len(way)]
                shards[queue.shard] = None
            elif isinstance(operation, SendMessage):
                delay_s = operation.delay_seconds
            rows.append(TransactedEntry(queue.queue_id, queue.version, delay_s))
        if len(shards) > 1:
            raise InvalidParameterValue(
                "The messages to delete are in different shards of the service, so one transaction "
                "cannot delete all of them."
            )
        at = next(iter(shards), entries[0].queue.shard)
        earlier = await self._earlier(entries[0].queue, at, token, digest, caller)
        if earlier is not None:
            return earlier
        transaction = TransactMessages(rows, token, digest)
        done = await self._ask(transaction, at, caller, [each.part for each in entries])
        assert done is not None
        return done, at

    async def _earlier(
        self, queue: QueueDefinition, at: int, token: bytes, digest: bytes, caller: Caller
    ) -> tuple[Transacted, int] | None:
        """The outcome that a shard gave which decided for the queue before its parts changed."""
        others = {part.shard for part in queue.all_parts()} - {at} if queue.parts else set()
        for shard in sorted(others):
            question = FindTransaction(token, digest, queue.queue_id, queue.version)
            found = await self._ask(question, shard, caller)
            if found is not None:
                return found, shard
        return None

    async def _settled(
        self, done: Transacted, at: int, question: Operation, caller: Caller, until_s: float
    ) -> None:
        """Wait until all messages are in their queues. Raises ServiceUnavailable after a while;
        then they come later."""
        pause_s = _AGAIN_S
        found: Transacted | None = done
        while found is None or not found.is_settled:
            pause_s = await self._pause(pause_s, until_s)
            found = await self._ask(question, at, caller)

    async def _ask(
        self,
        operation: Operation,
        shard: int,
        caller: Caller,
        parts: Iterable[Content | Receipt] = (),
    ) -> Transacted | None:
        request_id = f"{self._entropy.bits128():032x}"
        request = Request(operation, the_shard(shard), caller, request_id, tuple(parts))
        answer = await self._router.ask(request)
        assert answer is None or isinstance(answer, Transacted)
        return answer


def _checked(asked: TransactMessagesRequest) -> list[TransactItem]:
    """The entries, if there may be so many. Raises QueueError."""
    items = asked.transact_items
    if not items:
        raise EmptyBatchRequest("There should be at least one entry in TransactItems.")
    if len(items) > ENTRIES_MAX:
        raise TooManyEntriesInBatchRequest(
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(items)}."
        )
    if any((item.send is None) is (item.delete is None) for item in items):
        raise InvalidParameterValue("Each entry of TransactItems must have one of Send and Delete.")
    token = asked.client_request_token
    if token is not None and not 1 <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise InvalidParameterValue(
            f"ClientRequestToken must have 1 to {TOKEN_CHARACTERS_MAX} characters."
        )
    return items


def _digest(purpose: bytes, text: bytes) -> bytes:
    return blake2b(text, digest_size=16, person=purpose).digest()


def _result(entry: _Entry, sent: tuple[str | None, str | None]) -> TransactItemResult:
    message_id, number = sent
    content = entry.part
    if not isinstance(content, Content):
        return TransactItemResult()
    return TransactItemResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
        number,
    )


def _with_reasons(body: bytes, canceled: _Canceled) -> bytes:
    """The refusal with the reason of each entry."""
    reasons = [
        CancellationReason(code, text) if code else CancellationReason("None")
        for code, text in canceled.reasons
    ]
    return _encode({**msgspec.json.decode(body), "CancellationReasons": reasons})
