"""Gateway: one request from its bytes to its answer.

authenticate -> decode -> check -> find the queue -> prepare -> submit; and back: finish -> encode. Synchronous on the way
down, so the short cut in `http_server.py` needs no task for a message; the answer comes by a callback when the shard
released it. Actions on queues run as tasks of the catalog.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from auth.caller import Caller
from auth.errors import AuthError, MissingAuthenticationToken
from cluster.shards.clock import Clock, Entropy
from cluster.shards.router import Router
from cluster.shards.turn import Ticket
from sqs_api.gateway.access import Access, Sender
from sqs_api.gateway.accounting import Ledger
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway.payload import PREPARE, Preparer, receipts_of
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.rates import Rates
from sqs_api.http.origins import AllowedOrigins
from sqs_api.protocol.codec import (
    Decoded,
    Wire,
    content_type,
    decode_request,
    detect_wire,
    encode_error,
    encode_result,
)
from sqs_api.protocol.json_codec import encode_json
from sqs_api.protocol.reply import HeaderLines, Reply, date_line
from sqs_api.protocol.request import RawRequest
from sqs_api.protocol.wire import CONTENT_TYPE_AWS_JSON
from visibility.contract.actions import ACTIONS, Owner
from visibility.contract.errors import (
    InternalError,
    QueueError,
    RequestThrottled,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation, ReceiveMessage, ReturnMessages
from visibility.contract.outcomes import Answer, Deduplicated, Deliveries
from visibility.contract.results import Result
from visibility.rules.receive import wait_ms

_HOST = re.compile(rb"[A-Za-z0-9._~:\[\]-]{1,255}")
_TOO_MANY_POLLS = "Too many requests wait for messages. Try again later."
_DISK_SHORT = "The service has no space for more messages. Please try again."


class Authenticate(Protocol):
    """Establishes who sent a request: the signature verifier, or the open mode."""

    def __call__(
        self,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Caller:
        """The caller. Raises AuthError."""


class Client(Sender, Protocol):
    """Where a request came from and its answer goes."""

    def write_reply(self, reply: Reply) -> bool:
        """Write the answer; False if the client is gone and did not get it."""


class Exchange(msgspec.Struct):
    """One request that waits for its answer. A msgspec Struct since those are made fastest."""

    gateway: Gateway
    client: Client
    request_id: str
    started_s: float
    wire: Wire = Wire.JSON
    action: str = "-"
    answered: bool = False
    operation: Operation | None = None
    queue: QueueDefinition | None = None
    caller: Caller | None = None
    ticket: Ticket | None = None
    bytes_in: int = 0
    refusal: QueueError | AuthError | None = None
    does_not_wait: bool = False
    """A long poll that is answered at once, since too many wait."""
    letting: HeaderLines = ()
    """Headers of the answer that let a web page read it."""

    def on_answer(self, answer: Answer | QueueError) -> None:
        """The shard released the answer."""
        ticket, self.ticket = self.ticket, None
        gateway = self.gateway
        try:
            if isinstance(answer, QueueError):
                gateway.refuse(self, answer)
            elif type(answer) is Deliveries:
                if (
                    ticket is not None
                ):  # a purge may have given the queue another id while it waited
                    self.queue = ticket.request.queue
                gateway.hand_out(self, answer)
            elif type(answer) is Deduplicated:
                gateway.count_duplicates(self, answer)
            else:
                gateway.succeed(self, answer)
        except Exception:
            gateway.fail(self)


class Gateway:
    """Turns requests into answers. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        authenticate: Authenticate,
        queues: QueueActions,
        router: Router,
        metrics: Metrics,
        clock: Clock,
        entropy: Entropy,
        public_url: str | None,
        preparer: Preparer,
        access: Access,
        disk: DiskSpace,
        waiting_polls_max: int = 100_000,
        origins: AllowedOrigins | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._queues = queues
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._public_url = public_url
        self._preparer = preparer
        self._waiting_polls_max = waiting_polls_max
        self.polls_not_waited = 0
        """Long polls that were answered at once, since too many wait."""
        self._origins = origins or None
        """None without any, so that requests need not look for theirs."""
        self._access = access
        self._disk = disk
        self._rates: Rates | None = None
        self._log = structlog.get_logger("gateway")
        self._date = b""
        """The Date header's value of the second before `_next_second`."""
        self._next_second = 0
        self._tasks: set[asyncio.Task[None]] = set()
        bits = entropy.bits128()
        self._id_prefix = f"{bits >> 96:08x}-{bits >> 80 & 0xFFFF:04x}-4{bits >> 68 & 0xFFF:03x}-8"
        self._id_prefix += f"{bits >> 56 & 0xFFF:03x}-"
        self._ids = 0
        self.ledger: Ledger | None = None
        """Who is told of each answered request."""
        self.empty_receives: dict[int, int] = {}
        """Receives that returned nothing, by queue id."""
        self.duplicates: dict[int, int] = {}
        """Messages that were sent again within five minutes and not stored, by queue id."""
        self.outstanding = 0
        """Requests that were begun and not answered yet."""

    def limit(self, rates: Rates) -> None:
        """Refuse what comes above these rates from now on."""
        self._rates = rates if rates.is_needed else None

    def begin(self, raw: RawRequest, client: Client) -> Exchange:
        """Answer a request through `client`: at once if it is refused, else when its outcome is known."""
        self.outstanding += 1
        exchange = self._exchange(client, raw.headers)
        try:
            self._dispatch(raw, exchange)
        except (QueueError, AuthError) as refusal:
            if exchange.action == "-":
                exchange.wire = detect_wire(raw.method, raw.target, raw.headers)
            self.refuse(exchange, refusal)
        except Exception:
            if exchange.action == "-":
                exchange.wire = detect_wire(raw.method, raw.target, raw.headers)
            self.fail(exchange)
        return exchange

    def refuse_unread(self, client: Client, head: RawRequest, refusal: QueueError) -> None:
        """Answer a request whose body is not read."""
        self.outstanding += 1
        exchange = self._exchange(client, head.headers)
        exchange.wire = detect_wire(head.method, head.target, head.headers)
        self._write_refusal(exchange, refusal)

    def _exchange(self, client: Client, headers: dict[bytes, bytes]) -> Exchange:
        self._ids += 1
        request_id = self._id_prefix + f"{self._ids:012x}"
        exchange = Exchange(self, client, request_id, self._clock.monotonic_s())
        if self._origins is not None:
            exchange.letting = self._origins.headers_of_answer(headers)
        return exchange

    def cancel(self, exchange: Exchange) -> None:
        """The client hung up: a long poll waits no more."""
        if exchange.ticket is not None and self._router.cancel(exchange.ticket):
            exchange.ticket = None
            self.outstanding -= 1

    async def drain(self) -> None:
        """Wait until every request was answered."""
        # An event instead of looking would cost every request; a stop happens once.
        while self.outstanding > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    # -- down -------------------------------------------------------------------------------------------------------------

    def _dispatch(self, raw: RawRequest, exchange: Exchange) -> None:
        headers = raw.headers
        now_s = self._clock.wall_s()
        if now_s >= self._next_second:
            self._next_second = int(now_s) + 1
            self._date = date_line(now_s)
        try:
            caller = self._authenticate(raw.method, raw.target, headers, raw.body, now_s)
            decoded = decode_request(raw.method, raw.target, headers, raw.body)
        except MissingAuthenticationToken as unsigned:
            caller, decoded = self._admit_unsigned(raw, exchange.client, unsigned)
        operation = decoded.operation
        exchange.wire = decoded.wire
        exchange.action = decoded.action
        exchange.operation = operation
        exchange.caller = caller
        exchange.bytes_in = len(raw.body)
        row = ACTIONS[decoded.action]
        row.check(operation)
        if self._rates is not None:
            self._rates.check_account(caller)
        if self._disk.is_short and row.takes_space:
            self._disk.refused += 1
            raise ServiceUnavailable(_DISK_SHORT)
        if row.owner is not Owner.SHARD:
            self._access.admit(operation, caller, exchange.client, headers)
            self._start_task(self._answer_queue_action(exchange, decoded, caller, headers))
            return
        url: str = operation.queue_url  # type: ignore[attr-defined]
        queue = self._access.queue(operation, url, caller, exchange.client, headers)
        if self.outstanding > self._waiting_polls_max and type(operation) is ReceiveMessage:
            operation = exchange.operation = _without_wait(exchange, operation, queue)
        exchange.queue = queue
        if self._rates is not None:
            self._rates.check_queue(operation, queue)
        parts = PREPARE[type(operation)](self._preparer, operation, queue, caller, headers)
        if self._rates is not None:
            self._rates.check_groups(queue, parts)
        target_queue = None
        if queue.settings.redrive_policy is not None:
            target_queue = self._queues.dead_letter_queue(queue)
        request = Request(operation, queue, caller, exchange.request_id, parts, target_queue)
        exchange.ticket = self._router.submit(request, exchange.on_answer)

    def _admit_unsigned(
        self, raw: RawRequest, client: Client, unsigned: MissingAuthenticationToken
    ) -> tuple[Caller, Decoded]:
        """A request that nobody signed, if a queue's policy lets everyone make it. Raises `unsigned` if it does not."""
        try:
            decoded = decode_request(raw.method, raw.target, raw.headers, raw.body)
            ACTIONS[decoded.action].check(decoded.operation)
            return self._access.nobody_may(decoded.operation, client, raw.headers), decoded
        except (QueueError, AuthError):
            raise unsigned from None

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_queue_action(
        self, exchange: Exchange, decoded: Decoded, caller: Caller, headers: dict[bytes, bytes]
    ) -> None:
        """A task of its own, which a client that hangs up does not interrupt."""
        try:
            base_url = self._base_url(headers, exchange.client)
            result = await self._queues.answer(
                decoded.operation, caller, base_url, exchange.request_id
            )
            self.succeed(exchange, result)
        except (QueueError, AuthError) as refusal:
            self.refuse(exchange, refusal)
        except Exception:
            self.fail(exchange)

    def _base_url(self, headers: dict[bytes, bytes], client: Client) -> str:
        """How the client reached us: the configured address, or the Host header."""
        if self._public_url:
            return self._public_url
        host = headers.get(b"host", b"")
        scheme = "https" if client.is_secure else "http"
        return f"{scheme}://{host.decode() if _HOST.fullmatch(host) else 'localhost'}"

    # -- up ---------------------------------------------------------------------------------------------------------------

    def hand_out(self, exchange: Exchange, deliveries: Deliveries) -> None:
        """Answer with received messages; those that cannot be written any more are given back."""
        operation, queue = exchange.operation, exchange.queue
        assert isinstance(operation, ReceiveMessage)
        assert queue is not None
        if not deliveries.leases:
            empty = self.empty_receives
            empty[queue.queue_id] = empty.get(queue.queue_id, 0) + 1
            if exchange.does_not_wait:
                self.polls_not_waited += 1
                self.refuse(exchange, RequestThrottled(_TOO_MANY_POLLS))
                return
        assert exchange.caller is not None
        admit = partial(self._access.check_opening, queue, exchange.caller, exchange.client)
        try:
            received = self._preparer.received(operation, queue, deliveries, admit)
            written = self.succeed(exchange, received)
        except QueueError as refusal:  # a key was disabled meanwhile, or is not for this caller
            self._give_back(exchange, deliveries)
            self.refuse(exchange, refusal)
            return
        if not written and deliveries.leases:
            self._give_back(exchange, deliveries)

    def count_duplicates(self, exchange: Exchange, answer: Deduplicated) -> None:
        """Answer a send of which messages were sent before: the client sees no difference."""
        assert exchange.queue is not None
        queue_id = exchange.queue.queue_id
        self.duplicates[queue_id] = self.duplicates.get(queue_id, 0) + answer.duplicates
        self.succeed(exchange, answer.result)

    def _give_back(self, exchange: Exchange, deliveries: Deliveries) -> None:
        """The messages could not be written to the client: show them to others again."""
        assert exchange.queue is not None
        assert exchange.caller is not None
        request = Request(
            ReturnMessages(),
            exchange.queue,
            exchange.caller,
            exchange.request_id,
            receipts_of(deliveries),
        )
        self._router.submit(request, lambda answer: None)

    def succeed(self, exchange: Exchange, result: Answer) -> bool:
        """Answer with a result; False if the client did not get it."""
        assert result is None or isinstance(result, Result)
        if exchange.wire is Wire.JSON:
            return self._write(exchange, 200, CONTENT_TYPE_AWS_JSON, encode_json(result))
        body = encode_result(exchange.action, exchange.wire, result, exchange.request_id)
        return self._write(exchange, 200, content_type(exchange.wire), body)

    def refuse(self, exchange: Exchange, refusal: QueueError | AuthError) -> None:
        """Answer with an error."""
        if isinstance(refusal, ServiceUnavailable):
            self._log.error("unavailable", request_id=exchange.request_id, action=exchange.action)
        self._write_refusal(exchange, refusal)

    def _write_refusal(self, exchange: Exchange, refusal: QueueError | AuthError) -> None:
        self._metrics.refused(refusal.code)
        exchange.refusal = refusal
        error = encode_error(refusal, exchange.wire, exchange.request_id)
        self._write(exchange, error.status, error.content_type, error.body, error.headers)

    def fail(self, exchange: Exchange) -> None:
        """Answer after a bug of ours; call it in the exception's handler."""
        self._log.exception("request_failed", request_id=exchange.request_id)
        if not exchange.answered:
            self.refuse(exchange, InternalError())

    def _write(
        self,
        exchange: Exchange,
        status: int,
        kind: bytes,
        body: bytes,
        headers: HeaderLines = (),
    ) -> bool:
        self.outstanding -= 1
        exchange.answered = True
        taken_s = self._clock.monotonic_s() - exchange.started_s
        self._metrics.observe(exchange.action, status, taken_s)
        if self.ledger is not None:
            self.ledger.answered(exchange, len(body))
        headers += exchange.letting
        reply = Reply(status, kind, exchange.request_id, self._date, body, headers)
        return exchange.client.write_reply(reply)


def _without_wait(
    exchange: Exchange, operation: ReceiveMessage, queue: QueueDefinition
) -> ReceiveMessage:
    """The receive without its wait. Messages that are there are handed out; if there are none, the client is told to slow
    down (`hand_out`), since an empty answer would make it ask again at once."""
    exchange.does_not_wait = wait_ms(operation, queue.settings) > 0
    return msgspec.structs.replace(operation, wait_time_seconds=0)
