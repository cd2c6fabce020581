"""Asked: one request of the operators' API: its caller, its parameters, and what it may do."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
import structlog

from auth.auth_errors import AccessDenied
from auth.caller import Caller
from cluster.catalog.queue_view import QueueView
from cluster.keys.key_owners import NamedKey
from sqs_api.admin.admin_access import AdminRequest, Operator
from sqs_api.admin.remembered import Repeatable
from sqs_api.gateway.access import Access, Asker
from visibility.contract.errors import InvalidParameterValue, KmsAccessDenied
from visibility.contract.model import QueueDefinition
from visibility.contract.operations import Operation, SendMessage

_log = structlog.get_logger("operators")
T = TypeVar("T")
Taken = TypeVar("Taken", bound=msgspec.Struct)


class Step(NamedTuple):
    """One of the requests in which a page asks for one thing, for the audit log."""

    of: object
    """The thing; JSON can tell it."""
    is_first: bool
    is_last: bool
    sums: dict[str, int]
    """The sums of this request alone."""


class Asked:
    """A request whose signature is valid. An operator who is trusted may do everything."""

    def __init__(
        self, sent: AdminRequest, operator: Operator, access: Access, queues: QueueView
    ) -> None:
        self.sent = sent
        self.caller: Caller = operator.caller
        self.asker = Asker(self.caller, sent, sent.headers)
        self.is_trusted = operator.is_trusted
        self.access = access
        self.parts = sent.parts
        self.noted: dict[str, Any] = {}
        """Details for the audit log; never the body of a message."""
        self.bodies_read: list[str] = []
        """Ids of the messages whose bodies are in the answer."""
        self.step: Step | None = None
        self.repeatable: Repeatable | None = None
        """The key of a change that may be sent again."""
        self.cookie: str | None = None
        """The Set-Cookie header of the answer."""
        self._queues = queues
        query = sent.target.partition(b"?")[2].decode("latin-1")
        self._steps = Counter[bytes]()
        self._parameters = dict(parse_qsl(query, keep_blank_values=True))

    # -- parameters --------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        """A parameter of the query; None if it is absent or empty."""
        return self._parameters.get(name) or None

    def parameters(self, kind: type[Taken]) -> Taken:
        """The parameters of the query; an empty one counts as absent. Raises
        InvalidParameterValue."""
        given = {name: self.text(name) for name in kind.__struct_fields__}
        present = {name: value for name, value in given.items() if value is not None}
        try:
            return msgspec.convert(present, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidParameterValue(f"The parameters cannot be read: {error}") from error

    def content(self, kind: type[T]) -> T:
        """The body. Raises InvalidParameterValue."""
        try:
            return msgspec.json.decode(self.sent.body or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidParameterValue(f"The request cannot be read: {error}") from error

    @property
    def account(self) -> str:
        """The account that the request is about."""
        return self.text("account") or self.caller.account

    def warn_of_old_name(self, used: str, name: str) -> None:
        """Log that the caller used an old name, which goes with the next release."""
        _log.warning("old_name", used=used, name=name, caller=self.caller.arn)

    # -- repetitions -------------------------------------------------------------------------------

    @property
    def age_ms(self) -> int:
        """The time since the first request that this one repeats; 0 for a first one."""
        return 0 if self.repeatable is None else self.repeatable.age_ms

    def request_id(self, operation: Operation, queue: QueueDefinition) -> str | None:
        """The id under which a shard remembers a step of a change: the same for a repetition. None
        if the change has no key."""
        if self.repeatable is None:
            return None
        said = (self.repeatable.key, self.caller.arn, self.sent.target.decode("latin-1"))
        message = operation if isinstance(operation, SendMessage) else None  # a replay sends many
        step = msgspec.json.encode((*said, queue.arn, type(operation).__name__, message))
        self._steps[step] += 1
        return hashlib.sha256(b"%d" % self._steps[step] + step + self.sent.body).hexdigest()[:32]

    # -- queues and permissions --------------------------------------------------------------------

    def queue(self, name: str) -> QueueDefinition:
        """The queue of that name. Raises QueueDoesNotExist."""
        return self._queues.queue(self.account, self.caller.region, name)

    def arn(self, name: str) -> str:
        """The ARN of a queue, whether it exists or not."""
        return f"arn:aws:sqs:{self.caller.region}:{self.account}:{name}"

    def check(self, action: str, name: str) -> None:
        """Raise AccessDenied unless the caller may do this to the queue of that name."""
        if not self.is_trusted:
            self.access.check_action(action, self.arn(name), self.account, self.asker)

    def administer(self, action: str, account: str, *, root_only: bool) -> None:
        """Raise AccessDenied unless the caller may do this to the service of the account.

        `root_only` refuses users, whatever their policies allow.
        """
        if not self.is_trusted:
            if root_only and self.caller.user is not None:
                raise AccessDenied("This is for the root of the account only.")
            self.access.administer(action, self.asker, account)

    def check_on(self, action: str, queue: QueueDefinition) -> None:
        """Raise AccessDenied unless the caller may do this to the queue, whosever it is."""
        if not self.is_trusted:
            self.access.check_action(action, queue.arn, queue.account, self.asker)

    def may(self, action: str, name: str) -> bool:
        """True if `check` lets the caller pass."""
        return self.is_trusted or self.access.allows_action(
            action, self.arn(name), self.account, self.asker
        )

    def may_administer(self, action: str, account: str, *, root_only: bool = False) -> bool:
        """True if `administer` lets the caller pass."""
        if self.is_trusted:
            return True
        if root_only and self.caller.user is not None:
            return False
        return self.access.allows_action(action, "*", account, self.asker)

    def may_open(self, queue: QueueDefinition) -> bool:
        """True if the caller may use the key of the queue's messages."""
        if self.is_trusted:
            return True
        try:
            self.access.check_reading(queue, self.asker)
        except KmsAccessDenied:
            return False
        return True

    def may_use(self, named: NamedKey, queue: QueueDefinition) -> bool:
        """True if the caller may open messages of the queue that this key, unless it is the queue's
        own, has sealed."""
        if self.is_trusted:
            return True
        try:
            self.access.check_opening(queue, self.caller, self.sent, named)
        except KmsAccessDenied:
            return False
        return True
