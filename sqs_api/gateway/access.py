"""Access: decides whether a caller may do something, by the policies that apply and the condition
keys of the request.

In the hot path a caller with an account's own key, on a queue of that account without a policy,
costs three comparisons.
Source: service authorization reference of Amazon SQS; StartMessageMoveTask and CreateQueue's tags
from the developer guide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Protocol

import msgspec
import structlog

from auth.auth_errors import AccessDenied, InvalidClientTokenId
from auth.caller import Caller, anonymous
from auth.conditions import Keys, keys_by_name
from auth.credentials import CredentialSet
from auth.identities import Identities, User
from auth.policy import AccessQuestion, Authorizer, Decision, Principal
from auth.policy_document import Kind, Policy, PolicyRefused, read_policy
from cluster.catalog.queue_view import QueueView
from cluster.clock import Clock
from cluster.keys.key_owners import NamedKey
from cluster.keys.keyring import Keyring
from sqs_api.gateway.condition_keys import (
    said_of_caller,
    said_of_headers,
    said_of_tags,
    seen_by_conditions,
)
from sqs_api.gateway.key_access import KeyAccess, KeyAsker, is_own_key, said_to_key
from visibility.contract import operations as op
from visibility.contract.actions import ACTIONS, KEY_TO_RECEIVE, KEY_TO_SEND, MOVE_DESTINATION
from visibility.contract.errors import KmsAccessDenied, QueueDoesNotExist
from visibility.contract.model import QueueDefinition
from visibility.contract.naming import parse_arn, queue_address
from visibility.contract.operations import Operation
from visibility.contract.sender_order_tags import LATE_QUEUE_TAG
from visibility.contract.tags import rights_to_change

_Admitted = tuple[Caller, type[Operation], int]
"""Caller, operation, id of a queue."""
_ADMITTED_MAX = 50_000


class Sender(Protocol):
    """The origin of a request."""

    @property
    def source_ip(self) -> str:
        """The client's address, empty if it is unknown."""

    @property
    def is_secure(self) -> bool:
        """True if it came over TLS."""


class MayWait(Protocol):
    """A receive, which is checked again if something changes while it waits."""

    kept_headers: Mapping[bytes, bytes] | None
    """Those that conditions see, if its permission depends on the request."""


class Asker(msgspec.Struct, frozen=True, gc=False):
    """The caller of a request, its origin, and its headers by lower-case name."""

    caller: Caller
    sender: Sender
    headers: Mapping[bytes, bytes]


class Access:
    """Decides for the gateway."""

    def __init__(
        self, catalog: QueueView, clock: Clock, keyring: Keyring, *, enforced: bool, region: str
    ) -> None:
        """`enforced` False: all is allowed, as in open mode.

        `region` is that of unsigned requests.
        """
        self._keys = KeyAccess(keyring)
        self._catalog = catalog
        self._clock = clock
        self._enforced = enforced
        self._nobody = anonymous(region)
        self._identities = Identities()
        self._credentials: CredentialSet | None = None
        self.changes = 0
        """Grows with each change of users, policies, access keys and queues."""
        catalog.on_changes.append(self._note_change)
        self._authorizer = Authorizer(_read)
        self._admitted: dict[_Admitted, QueueDefinition] = {}
        """Allowed without a look at the request, for the present users and this definition: a
        restored etcd gives ids and versions a second time. Bounded."""
        self.denied = 0
        """Calls that were denied."""

    def replace(self, identities: Identities, credentials: CredentialSet | None = None) -> None:
        """Use these users and policies from now on. With the access keys, `check_waited` checks the
        caller's."""
        self._identities, self._credentials = identities, credentials
        self._note_change()
        self._admitted.clear()

    def _note_change(self) -> None:
        self.changes += 1

    def _admit(self, key: _Admitted, queue: QueueDefinition) -> None:
        if len(self._admitted) >= _ADMITTED_MAX:
            self._admitted.clear()
        self._admitted[key] = queue

    def queue(
        self,
        operation: Operation,
        url: str,
        caller: Caller,
        sender: Sender,
        headers: Mapping[bytes, bytes],
        waits: MayWait | None = None,
    ) -> QueueDefinition:
        """The queue that a QueueUrl names, by its path alone; a bare name is the caller's own.

        Takes the parts of an Asker, which the hot path does not need. A receive that may wait keeps
        the headers that the decision depends on. Raises QueueDoesNotExist, InvalidAddress,
        AccessDenied.
        """
        address = queue_address(url)
        account = address.account or caller.account
        try:
            queue = self._catalog.queue(account, caller.region, address.name)
        except QueueDoesNotExist:
            self._check_missing(operation, account, address.name, Asker(caller, sender, headers))
            raise
        if self._enforced and (
            caller.user is not None or account != caller.account or "Policy" in queue.attributes
        ):
            key = (caller, type(operation), queue.queue_id)
            if self._admitted.get(key) is not queue:
                request = _Request(self, Asker(caller, sender, headers), operation)
                depends = request.check(_permission(operation), queue.arn, account, queue)
                if not depends:
                    self._admit(key, queue)
                elif waits is not None:
                    waits.kept_headers = seen_by_conditions(headers)
        if self._enforced and "KmsMasterKeyId" in queue.attributes:
            action = ACTIONS.get(type(operation).__name__)
            needs = () if action is None else action.key_permissions
            if needs and not is_own_key(queue, caller):
                request = _Request(self, Asker(caller, sender, headers), operation)
                request.check_key(needs, queue)
                if waits is not None:
                    waits.kept_headers = seen_by_conditions(headers)
        return queue

    def check_waited(
        self,
        operation: op.ReceiveMessage,
        caller: Caller,
        sender: Sender,
        headers: Mapping[bytes, bytes],
    ) -> None:
        """Check a receive again that began before the latest change: the caller's access key, and
        the right to receive. Raises InvalidClientTokenId, and the errors of `queue`."""
        if not self._enforced:
            return
        if self._credentials is not None and caller.access_key_id is not None:
            key = self._credentials.find(caller.access_key_id)
            owner = caller.account, caller.user
            if key is None or not key.enabled or (key.account, key.user) != owner:
                self.denied += 1
                raise InvalidClientTokenId
        self.queue(operation, operation.queue_url or "", caller, sender, headers)

    def check_opening(
        self, queue: QueueDefinition, caller: Caller, sender: Sender, named: NamedKey
    ) -> None:
        """Raise KmsAccessDenied unless the caller may read a message of the queue that was sealed
        under this key.

        The queue's own key was checked by `queue`. Conditions on an earlier one see no headers.
        """
        if not self._enforced or (caller.user is None and caller.account == named.account):
            return
        if not self._keys.is_key_of(queue, named):
            request = _Request(self, Asker(caller, sender, {}), op.ReceiveMessage())
            request.check_key(KEY_TO_RECEIVE, queue, named)

    def _check_missing(self, operation: Operation, account: str, name: str, asker: Asker) -> None:
        """Do not reveal whether the queue exists: refuse as for a queue without a policy."""
        caller = asker.caller
        if self._enforced and (caller.user is not None or account != caller.account):
            arn = f"arn:aws:sqs:{caller.region}:{account}:{name}"
            request = _Request(self, asker, operation)
            request.check(_permission(operation), arn, account)

    def admit(self, operation: Operation, asker: Asker) -> None:
        """Check an action of the catalog. Raises AccessDenied, and the errors of `queue`."""
        if not self._enforced:
            return
        needs = ACTIONS[type(operation).__name__].needs
        if needs is None:
            url: str = operation.queue_url or ""  # type: ignore[attr-defined]
            queue = self.queue(operation, url, asker.caller, asker.sender, asker.headers)
            if isinstance(operation, op.TagQueue):
                given = operation.tags or {}
                self._check_tags(operation, asker, queue.arn, queue.tags, queue.tags | given)
                self._check_late_queue(given, operation, asker)
            elif isinstance(operation, op.UntagQueue):
                gone = set(operation.tag_keys or ())
                left = {key: text for key, text in queue.tags.items() if key not in gone}
                self._check_tags(operation, asker, queue.arn, queue.tags, left)
            return
        request = _Request(self, asker, operation)
        for permission, arn in needs(operation, asker.caller):
            self._check_arn(request, permission, arn, asker.caller)
        if isinstance(operation, op.StartMessageMoveTask):
            self._check_move(request, operation, asker.caller)
        elif isinstance(operation, op.CreateQueue):
            given = operation.tags_on_create or {}
            ((_, arn), *_) = needs(operation, asker.caller)
            self._check_tags(operation, asker, arn, {}, given)
            self._check_late_queue(given, operation, asker)

    def _check_tags(
        self,
        operation: Operation,
        asker: Asker,
        arn: str,
        before: Mapping[str, str],
        after: Mapping[str, str],
    ) -> None:
        """Check the further rights that a change of the queue's tags needs."""
        for right in rights_to_change(before, after):
            self._check_arn(_Request(self, asker, operation), right, arn, asker.caller)

    def _check_late_queue(
        self, tags: Mapping[str, str], operation: Operation, asker: Asker
    ) -> None:
        """Check that a caller who names a late queue may send to it."""
        if LATE_QUEUE_TAG in tags:
            request = _Request(self, asker, operation)
            self._check_arn(request, MOVE_DESTINATION, tags[LATE_QUEUE_TAG], asker.caller)

    def _check_move(
        self, request: _Request, operation: op.StartMessageMoveTask, caller: Caller
    ) -> None:
        """Check a move's other needs: sending to the destination, and the keys of all its
        queues."""
        source = self._catalog.queue_of_arn(operation.source_arn or "")
        if source is None:
            return
        if operation.destination_arn is None:
            targets = list(self._catalog.dead_letter_sources(source))
            for target in targets:
                self._check_arn(request, MOVE_DESTINATION, target.arn, caller)
        else:
            named = self._catalog.queue_of_arn(operation.destination_arn)
            targets = [] if named is None else [named]
        for queue, needs in (
            (source, KEY_TO_RECEIVE),
            *((target, KEY_TO_SEND) for target in targets),
        ):
            if "KmsMasterKeyId" in queue.attributes and not is_own_key(queue, caller):
                request.check_key(needs, queue)

    def administer(self, action: str, asker: Asker, account: str) -> None:
        """Raise AccessDenied unless the caller may do this to the service as a whole, which belongs
        to the account."""
        _Request(self, asker, None).check(action, "*", account)

    def check_action(self, action: str, arn: str, account: str, asker: Asker) -> None:
        """Raise AccessDenied unless the caller may do this to a queue of the account."""
        if self._enforced:
            queue = self._catalog.queue_of_arn(arn)
            _Request(self, asker, None).check(action, arn, account, queue)

    def allows_action(self, action: str, arn: str, account: str, asker: Asker) -> bool:
        """True if `check_action` lets the caller pass. Counts no refusal."""
        request = _Request(self, asker, None)
        queue = self._catalog.queue_of_arn(arn)
        return not self._enforced or request.decide(action, arn, account, queue)[0].allowed

    def check_reading(self, queue: QueueDefinition, asker: Asker) -> None:
        """Raise KmsAccessDenied unless the caller may use the queue's key to read messages."""
        if self._enforced and "KmsMasterKeyId" in queue.attributes:
            if not is_own_key(queue, asker.caller):
                request = _Request(self, asker, op.ReceiveMessage())
                request.check_key(KEY_TO_RECEIVE, queue)

    def check_move(self, operation: op.StartMessageMoveTask, asker: Asker) -> None:
        """Raise AccessDenied or KmsAccessDenied unless the caller may send to the destinations of a
        move and use the keys of its queues."""
        if self._enforced:
            request = _Request(self, asker, operation)
            if operation.destination_arn is not None:
                self._check_arn(request, MOVE_DESTINATION, operation.destination_arn, asker.caller)
            self._check_move(request, operation, asker.caller)

    def _check_arn(self, request: _Request, permission: str, arn: str, caller: Caller) -> None:
        """Policies name a queue by one ARN, regardless of the partition in the client's."""
        parsed = parse_arn(arn)
        if parsed is None:
            request.check(permission, arn, caller.account)
            return
        arn = f"arn:aws:sqs:{parsed.region}:{parsed.account}:{parsed.name}"
        request.check(permission, arn, parsed.account, self._catalog.queue_of_arn(arn))

    @property
    def may_admit_unsigned(self) -> bool:
        """True if some queue's policy may let in a request without a signature. Without any, such
        requests are not worth being read: a stranger's may be large."""
        return self._enforced and bool(self._catalog.open_to_everyone)

    def nobody_may(
        self, operation: Operation, sender: Sender, headers: Mapping[bytes, bytes]
    ) -> Caller:
        """The caller of an unsigned request, if a queue's policy lets everyone do this.

        Raises AccessDenied, QueueError.
        """
        if not self._enforced or ACTIONS[type(operation).__name__].needs:
            raise AccessDenied("Access is denied.")
        url: str = operation.queue_url or ""  # type: ignore[attr-defined]
        self.queue(operation, url, self._nobody, sender, headers)
        return self._nobody

    def decide(
        self,
        caller: Caller,
        permission: str,
        arn: str,
        account: str,
        policy: str | None,
        keys: Callable[[], Keys],
    ) -> Decision:
        """The decision of the policies. A removed user may do nothing."""
        principal = Principal(caller.account, caller.arn, caller.principal, caller.user)
        user = self.user_of(caller)
        asked = AccessQuestion(principal, permission, arn, account, keys)
        policies = user.policies if user is not None else ()
        return self._authorizer.decide(asked, policies, policy, self._identities.generation)

    def user_of(self, caller: Caller) -> User | None:
        """The user who signed, or None."""
        return self._identities.find(caller.account, caller.user) if caller.user else None

    def check_key(
        self,
        permissions: tuple[str, ...],
        queue: QueueDefinition,
        named: NamedKey | None,
        caller: Caller,
        keys: Callable[[], Keys],
    ) -> None:
        """Raise KmsAccessDenied unless the caller may use a key for the queue's messages, by
        default the queue's own."""
        asker = KeyAsker(caller, self.user_of(caller), self._identities.generation, keys)
        try:
            if named is None:
                self._keys.check_queue(permissions, queue, asker)
            else:
                self._keys.check_key(permissions, named, queue, asker)
        except KmsAccessDenied:
            self.denied += 1
            raise

    def now_s(self) -> float:
        """The wall clock, for conditions on time."""
        return self._clock.wall_s()


class _Request:
    """A request to be decided on; its condition keys are worked out at most once."""

    def __init__(self, access: Access, asker: Asker, operation: Operation | None) -> None:
        self._access = access
        self._asker = asker
        self._caller = asker.caller
        self._operation = operation

    def check(
        self, permission: str, arn: str, account: str, queue: QueueDefinition | None = None
    ) -> bool:
        """Raise AccessDenied, or return True if another request could be denied."""
        decision, depends = self.decide(permission, arn, account, queue)
        if not decision.allowed:
            self._access.denied += 1
            raise AccessDenied(decision.message)
        return depends

    def decide(
        self, permission: str, arn: str, account: str, queue: QueueDefinition | None
    ) -> tuple[Decision, bool]:
        """The decision, and True if another request could get another one."""
        policy = None if queue is None else queue.attributes.get("Policy")
        keys = lru_cache(maxsize=1)(partial(self._keys, queue))
        decision = self._access.decide(self._caller, permission, arn, account, policy, keys)
        return decision, keys.cache_info().currsize > 0

    def check_key(
        self, permissions: tuple[str, ...], queue: QueueDefinition, named: NamedKey | None = None
    ) -> None:
        keys = lru_cache(maxsize=1)(partial(self._keys_for_key, queue))
        self._access.check_key(permissions, queue, named, self._caller, keys)

    def _keys(self, queue: QueueDefinition | None) -> Keys:
        return keys_by_name(self._said(queue))

    def _keys_for_key(self, queue: QueueDefinition) -> Keys:
        """A key sees this service, and a message of the queue; the queue's tags are not the
        key's."""
        return {**self._keys(None), **said_to_key(self._caller.account, queue.region, queue.arn)}

    def _said(self, queue: QueueDefinition | None) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Condition keys by lower-case name."""
        caller, user = self._caller, self._access.user_of(self._caller)
        yield from said_of_caller(
            caller, user, {} if queue is None else queue.tags, self._access.now_s()
        )
        yield "aws:sourceip", (self._asker.sender.source_ip,)
        yield "aws:securetransport", ("true" if self._asker.sender.is_secure else "false",)
        yield from said_of_headers(self._asker.headers)
        yield from said_of_tags(self._operation)


def _permission(operation: Operation) -> str:
    return ACTIONS[type(operation).__name__].permission


_DENIES_ALL = read_policy(
    '{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}}',
    Kind.QUEUE,
)


def _read(text: str) -> Policy:
    """Read a queue's policy, which was readable when it was set. An unreadable one denies
    everything."""
    try:
        return read_policy(text, Kind.QUEUE)
    except PolicyRefused as error:
        structlog.get_logger("access").error("policy_unreadable", error=str(error))
        return _DENIES_ALL
