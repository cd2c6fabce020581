"""Transactions: Holdfast.TransactMessages on SQS's endpoint, from the request to its answer.

The gateway asks this service after SQS refused the request, so SQS's requests pay nothing; clients
sign it for `sqs`. Each entry needs the permission of SendMessage or DeleteMessage
on its queue. Names of errors are DynamoDB's, of which TransactWriteItems is the model.

An accepted transaction is answered once all its messages are in their queues (rule 49).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import structlog
from typing_extensions import override

from auth.auth_errors import AuthError
from auth.caller import Caller
from cluster.clock import Clock, Entropy
from cluster.parts.transacting import Entry, Token, Transacting
from cluster.shards.router import Router
from cluster.tasks import start_task
from sqs_api.gateway.access import Access
from sqs_api.gateway.accounting import DENIALS
from sqs_api.gateway.client import Authenticate
from sqs_api.gateway.other_services import OnOtherAnswer, OtherAnswer, OtherRequest, OtherService
from sqs_api.gateway.payload import PAYLOADS, Payload, Payloads
from sqs_api.gateway.rates import Rates
from sqs_api.protocol.codec import Wire, encode_error
from sqs_api.protocol.json_codec import UNREADABLE, refusal
from sqs_api.protocol.large_json import LARGE_BYTES, check_large
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
from visibility.contract import errors
from visibility.contract.actions import Action, AnsweredBy
from visibility.contract.limits import MAXIMUM_MESSAGE_SIZE
from visibility.contract.model import Content, QueueDefinition, Receipt
from visibility.contract.operations import DeleteMessage, SendMessage
from visibility.contract.outcomes import Answer, Transacted
from visibility.contract.validate import check_delete_message, check_send_message
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


def _ignored(answer: Answer | errors.QueueError) -> None:
    """Take the answer of a shard that asks by itself later, if it was not reached."""


class _Canceled(errors.TransactionCanceled):
    """A cancelled transaction, with (code, text) for each entry; empty for one without a fault."""

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        codes = ", ".join(code or "None" for code, _ in reasons)
        super().__init__(
            "Transaction cancelled, please refer cancellation reasons for specific reasons "
            f"[{codes}]"
        )
        self.reasons = reasons


class Transactions(OtherService):
    """Answers the requests."""

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
        self._rates = rates
        self._clock = clock
        self._entropy = entropy
        self._log = structlog.get_logger("transactions")
        self._tasks: set[asyncio.Task[None]] = set()
        self.submit = router.submit_or_refuse
        self.transacting = Transacting(
            router.ask,
            lambda request: router.submit_or_refuse(request, _ignored),
            entropy.bits128,
            lambda: int(clock.wall_s() * 1000),
        )
        self.monotonic_s = clock.monotonic_s

    @override
    def answer(self, request: OtherRequest) -> Awaitable[OtherAnswer] | None:
        if request.headers.get(b"x-amz-target") != _TARGET:
            return None
        answer: asyncio.Future[OtherAnswer] = asyncio.get_running_loop().create_future()
        self.begin(request, answer.set_result)
        return answer

    @override
    def begin(self, request: OtherRequest, on_answer: OnOtherAnswer) -> None:
        _Exchange(self, request, on_answer).begin()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this in a task."""
        start_task(self._tasks, work)

    def read(self, request: OtherRequest) -> tuple[Caller, list[TransactItem], Token]:
        """The caller, the entries and the token of a request. Raises QueueError, AuthError."""
        method, target, headers, body, *_ = request
        caller = request.caller
        if caller is None:
            caller = self._authenticate(method, target, headers, body, self._clock.wall_s())
        if len(body) > LARGE_BYTES:
            check_large(ACTION, body)
        try:
            asked = _decode(body or b"{}")
        except UNREADABLE as failure:
            raise refusal(failure, body) from failure
        items = _checked(asked)
        self._rates.check_account(caller)
        return caller, items, Token(self._name(asked, caller), _digest(b"entries", _encode(items)))

    def _name(self, asked: TransactMessagesRequest, caller: Caller) -> bytes:
        """The token in its account; a request without one is a transaction of its own."""
        if asked.client_request_token is None:
            return self._entropy.bits128().to_bytes(16)
        return _digest(b"token", _encode([caller.account, asked.client_request_token]))

    def refused(self, error: Exception, request: OtherRequest) -> OtherAnswer:
        """The answer to a refused request."""
        request_id = request.request_id
        if not isinstance(error, errors.QueueError | AuthError):
            self._log.error("request_failed", request_id=request_id, exc_info=error)
            error = errors.InternalError()
        elif isinstance(error, errors.ServiceUnavailable):
            self._log.error("unavailable", request_id=request_id, action=_ACTION.name)
        written = encode_error(error, Wire.JSON, request_id)
        body = _with_reasons(written.body, error) if isinstance(error, _Canceled) else written.body
        # Without the header for clients of the query protocol, which has no such action.
        return OtherAnswer(
            _ACTION,
            written.status,
            written.content_type,
            body,
            (),
            error.code,
            is_denied=isinstance(error, DENIALS),
            caller=request.caller,
        )

    def entries(
        self, items: Sequence[TransactItem], caller: Caller, request: OtherRequest
    ) -> list[Entry]:
        """Find the queues, ask for permission, pack and seal. Raises QueueError, AuthError."""
        found: dict[int, Entry] = {}
        faults: dict[int, errors.QueueError] = {}
        sends: dict[str, dict[int, SendMessage]] = {}
        for place, item in enumerate(items):
            try:
                if item.send is not None:
                    check_send_message(item.send)
                    sends.setdefault(item.send.queue_url or "", {})[place] = item.send
                elif item.delete is not None:
                    check_delete_message(item.delete)
                    found[place] = self._delete(item.delete, caller, request)
            except errors.QueueError as error:
                faults[place] = errors.without_frames(error)
        size = 0
        for url, by_place in sends.items():
            to_queue = list(by_place.values())
            try:
                queue, parts = self._sends(url, to_queue, caller, request)
            except errors.QueueError as error:
                faults |= dict.fromkeys(by_place, errors.without_frames(error))
                continue
            for (place, send), part in zip(by_place.items(), parts, strict=True):
                if isinstance(part, Content):
                    found[place] = Entry(queue, part, send.delay_seconds)
                    size += part.size
                else:
                    assert isinstance(part, errors.QueueError)
                    faults[place] = part
        if faults:
            _check([_reason(faults.get(place)) for place in range(len(items))])
        if size > _BYTES_MAX:
            raise errors.BatchRequestTooLong(
                f"Batch requests cannot be longer than {_BYTES_MAX} bytes. "
                f"You have sent {size} bytes."
            )
        if len({each.queue.account for each in found.values()}) > 1:
            raise errors.InvalidParameterValue(
                "The queues of a transaction must be of one account."
            )
        return [found[place] for place in range(len(items))]

    def _delete(self, operation: DeleteMessage, caller: Caller, request: OtherRequest) -> Entry:
        url = operation.queue_url or ""
        queue = self._access.queue(operation, url, caller, request.sender, request.headers)
        self._rates.check_queue(operation, queue)
        (receipt,) = PAYLOADS[DeleteMessage](
            self._payloads, operation, queue, caller, request.headers
        )
        assert isinstance(receipt, Receipt)
        return Entry(queue, receipt)

    def _sends(
        self, url: str, sends: Sequence[SendMessage], caller: Caller, request: OtherRequest
    ) -> tuple[QueueDefinition, Payload]:
        """The sends to one queue, which count as one request, as those of a batch do."""
        queue = self._access.queue(sends[0], url, caller, request.sender, request.headers)
        self._rates.check_queue(sends[0], queue)
        parts = self._payloads.of_sends(sends, queue, caller, request.headers)
        self._rates.check_groups(queue, parts)
        return queue, parts


class _Exchange:
    """One request until its answer, without a task as long as nothing has to be repeated: an answer
    then leaves in the pass of the event loop in which the shard gave it, so that the next Turn
    finds what the client asks next."""

    __slots__ = (
        "_caller",
        "_entries",
        "_items",
        "_on_answer",
        "_request",
        "_sent",
        "_service",
        "_shard",
        "_token",
        "_until_s",
    )

    def __init__(
        self, service: Transactions, request: OtherRequest, on_answer: OnOtherAnswer
    ) -> None:
        self._service = service
        self._request = request
        self._on_answer = on_answer
        self._caller: Caller
        self._items: list[TransactItem]
        self._token: Token
        self._until_s: float
        self._entries: list[Entry]
        self._shard: int
        """The shard that decides."""
        self._sent: list[tuple[str | None, str | None]]
        """The ids that its answer has."""

    def begin(self) -> None:
        """Answer, now or later."""
        service = self._service
        try:
            self._caller, self._items, self._token = service.read(self._request)
            self._until_s = service.monotonic_s() + _LONGEST_S
            self._entries = service.entries(self._items, self._caller, self._request)
            direct = service.transacting.direct(self._entries, self._token, self._caller)
            if direct is None:
                service.start(self._decide(0, _AGAIN_S))
                return
            self._shard = direct.queue.shard
            service.submit(direct, self._on_decided)
        except Exception as error:
            self._refuse(error)

    def _on_decided(self, answer: Answer | errors.QueueError) -> None:
        try:
            if isinstance(answer, errors.Moved | errors.Departing):
                attempt = int(isinstance(answer, errors.Moved))
                self._service.start(self._decide(attempt, _AGAIN_S, is_first=False))
            elif isinstance(answer, errors.QueueError):
                self._refuse(answer)
            else:
                assert isinstance(answer, Transacted)
                self._decided(answer)
        except Exception as error:
            self._refuse(error)

    def _decided(self, done: Transacted) -> None:
        """Answer, or wait until all messages are in their queues. Raises TransactionCanceled,
        RequestThrottled."""
        if done.reasons:
            _check(done.reasons)
        self._sent = done.sent
        if done.is_settled:
            self._succeed()
        else:
            service = self._service
            settling = service.transacting.settling(self._token, self._shard, self._caller)
            service.submit(settling, self._on_settled)

    def _on_settled(self, answer: Answer | errors.QueueError) -> None:
        try:
            if isinstance(answer, errors.QueueError):
                self._refuse(answer)
            elif isinstance(answer, Transacted) and answer.is_settled:
                self._succeed()
            else:
                self._service.start(self._settle())
        except Exception as error:
            self._refuse(error)

    def _succeed(self) -> None:
        body = _encode(TransactMessagesResult(list(map(_result, self._entries, self._sent))))
        self._on_answer(OtherAnswer(_ACTION, 200, CONTENT_TYPE_AWS_JSON, body, (), None))

    def _refuse(self, error: Exception) -> None:
        self._on_answer(self._service.refused(error, self._request))

    # -- what has to be repeated -------------------------------------------------------------------

    async def _decide(self, attempt: int, pause_s: float, *, is_first: bool = True) -> None:
        """Have it decided where the messages are now."""
        service = self._service
        try:
            while True:
                if not is_first:
                    pause_s = await self._pause(pause_s)
                    self._entries = service.entries(self._items, self._caller, self._request)
                try:
                    done, self._shard = await service.transacting.decide(
                        self._entries, self._token, self._caller, attempt
                    )
                    break
                except errors.Moved:
                    attempt += 1
                except errors.Departing:
                    pass  # it is there again soon
                is_first = False
            self._decided(done)
        except Exception as error:
            self._refuse(error)

    async def _settle(self) -> None:
        """Ask again whether all messages are in their queues."""
        service, pause_s, is_settled = self._service, _AGAIN_S, False
        try:
            while not is_settled:
                pause_s = await self._pause(pause_s)
                is_settled = await service.transacting.is_settled(
                    self._token, self._shard, self._caller
                )
            self._succeed()
        except Exception as error:
            self._refuse(error)

    async def _pause(self, pause_s: float) -> float:
        """Wait, and return the next pause. Raises ServiceUnavailable if it took too long."""
        if self._service.monotonic_s() + pause_s >= self._until_s:
            raise errors.ServiceUnavailable()
        await asyncio.sleep(pause_s)
        return min(2 * pause_s, _AGAIN_MAX_S)


def _checked(asked: TransactMessagesRequest) -> list[TransactItem]:
    """The entries, at least one and not too many. Raises QueueError."""
    items = asked.transact_items
    if not items:
        raise errors.EmptyBatchRequest("There should be at least one entry in TransactItems.")
    if len(items) > ENTRIES_MAX:
        raise errors.TooManyEntriesInBatchRequest(
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(items)}."
        )
    if any((item.send is None) is (item.delete is None) for item in items):
        raise errors.InvalidParameterValue(
            "Each entry of TransactItems must have one of Send and Delete."
        )
    token = asked.client_request_token
    if token is not None and not 1 <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise errors.InvalidParameterValue(
            f"ClientRequestToken must have 1 to {TOKEN_CHARACTERS_MAX} characters."
        )
    return items


def _check(reasons: Sequence[tuple[str, str]]) -> None:
    """Raises TransactionCanceled if an entry has a fault; RequestThrottled, which SDKs repeat, if
    that is the only one."""
    faults = dict(each for each in reasons if each[0])
    if faults.keys() == {errors.RequestThrottled.code}:
        raise errors.RequestThrottled(*faults.values())
    if faults:
        raise _Canceled(reasons)


def _reason(fault: errors.QueueError | None) -> tuple[str, str]:
    return ("", "") if fault is None else (fault.code, fault.message)


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
