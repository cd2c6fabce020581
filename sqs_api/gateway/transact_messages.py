"""Transactions: Holdfast.TransactMessages on SQS's endpoint, from the request to its answer.

The gateway asks this service once a request was refused as one of SQS, so that SQS's requests pay
nothing; clients sign it for `sqs`. Each entry needs the permission of SendMessage or DeleteMessage
on its queue. Names of errors are DynamoDB's, of which TransactWriteItems is the model.

An accepted transaction is answered once all its messages are in their queues (rule 49).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from hashlib import blake2b
from itertools import count

import msgspec
import structlog
from typing_extensions import override

from auth.auth_errors import AuthError
from auth.caller import Caller
from cluster.clock import Clock, Entropy
from cluster.parts.transacting import Entry, Token, Transacting
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
    RequestThrottled,
    ServiceUnavailable,
    TooManyEntriesInBatchRequest,
    TransactionCanceled,
)
from visibility.contract.limits import MAXIMUM_MESSAGE_SIZE
from visibility.contract.model import Content
from visibility.contract.operations import DeleteMessage, SendMessage
from visibility.rules.transactions import TransactMessages

_TARGET = f"{TARGET_PREFIX}.{ACTION}".encode()
_BYTES_MAX = MAXIMUM_MESSAGE_SIZE.high
_LONGEST_S = 10.0
"""Time after which a request is answered ServiceUnavailable, as one that waits for a leader is."""
_AGAIN_S, _AGAIN_MAX_S = 0.005, 0.1
"""Pause before a shard is asked again; doubled each time."""
_ACTION = Action(TransactMessages, None, AnsweredBy.BOTH, ())


_decode = msgspec.json.Decoder(TransactMessagesRequest).decode
_encode = msgspec.json.Encoder().encode


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

    targets = frozenset((_TARGET,))

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
        self._transacting = Transacting(
            router.ask, entropy.bits128, lambda: int(clock.wall_s() * 1000)
        )
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
        caller = request.caller
        if caller is None:
            caller = self._authenticate(method, target, headers, body, self._clock.wall_s())
        try:
            asked = _decode(body or b"{}")
        except UNREADABLE as failure:
            raise refusal(failure, body) from failure
        items = _checked(asked)
        self._rates.check_account(caller)
        token = Token(self._name(asked, caller), _digest(b"entries", _encode(items)))
        until_s = self._clock.monotonic_s() + _LONGEST_S
        pause_s = _AGAIN_S
        for attempt in count():
            entries = self._entries(items, caller, request)
            try:
                done, shard = await self._transacting.decide(entries, token, caller, attempt)
                break
            except (Moved, Departing):
                pause_s = await self._pause(pause_s, until_s)
        _check(done.reasons)
        is_settled = done.is_settled
        while not is_settled:
            pause_s = await self._pause(pause_s, until_s)
            is_settled = await self._transacting.is_settled(token, shard, caller)
        return _encode(TransactMessagesResult(list(map(_result, entries, done.sent))))

    async def _pause(self, pause_s: float, until_s: float) -> float:
        """Wait, and return the next pause. Raises ServiceUnavailable if it took too long."""
        if self._clock.monotonic_s() + pause_s >= until_s:
            raise ServiceUnavailable()
        await asyncio.sleep(pause_s)
        return min(2 * pause_s, _AGAIN_MAX_S)

    def _name(self, asked: TransactMessagesRequest, caller: Caller) -> bytes:
        """The token in its account; a request without one is a transaction of its own."""
        if asked.client_request_token is None:
            return self._entropy.bits128().to_bytes(16)
        return _digest(b"token", _encode([caller.account, asked.client_request_token]))

    def _entries(
        self, items: Sequence[TransactItem], caller: Caller, request: OtherRequest
    ) -> list[Entry]:
        """Find the queues, ask for permission, pack and seal. Raises QueueError, AuthError."""
        entries: list[Entry] = []
        reasons: list[tuple[str, str]] = []
        for item in items:
            operation = item.send or item.delete
            assert operation is not None
            try:
                entries.append(self._entry(operation, caller, request))
                reasons.append(("", ""))
            except QueueError as error:
                reasons.append((error.code, error.message))
        _check(reasons)
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
    ) -> Entry:
        ACTIONS[type(operation).__name__].check(operation)
        url = operation.queue_url or ""
        queue = self._access.queue(operation, url, caller, request.sender, request.headers)
        self._rates.check_queue(operation, queue)
        make_payload = PAYLOADS[type(operation)]
        (part,) = payload = make_payload(self._payloads, operation, queue, caller, request.headers)
        self._rates.check_groups(queue, payload)
        if isinstance(part, QueueError):
            raise part
        delay_s = operation.delay_seconds if isinstance(operation, SendMessage) else None
        return Entry(queue, part, delay_s)


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


def _check(reasons: Sequence[tuple[str, str]]) -> None:
    """Raises TransactionCanceled if an entry has a fault; RequestThrottled, which SDKs repeat, if
    that is the only one."""
    faults = dict(each for each in reasons if each[0])
    if faults.keys() == {RequestThrottled.code}:
        raise RequestThrottled(*faults.values())
    if faults:
        raise _Canceled(reasons)


def _digest(purpose: bytes, text: bytes) -> bytes:
    return blake2b(text, digest_size=16, person=purpose).digest()


def _result(entry: Entry, sent: tuple[str | None, str | None]) -> TransactItemResult:
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
