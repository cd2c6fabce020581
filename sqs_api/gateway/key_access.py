"""Use of KMS keys: whether a caller may use the key of a queue. Policies decide as for queues.

As on AWS the caller needs the permission, whichever account owns the queue: kms:GenerateDataKey and
kms:Decrypt to send, kms:Decrypt to receive. A key's owner needs no grant for its root, and a policy
for its users; another account needs a grant, and a policy for its users. The built-in key
(alias/aws/sqs) is for all callers of the queue's own account.
Source: SQS developer guide, "Key management"; KMS developer guide, "Allowing users in other
accounts to use a KMS key".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from auth.caller import Caller
from auth.conditions import Keys
from auth.identities import User
from auth.policy import AccessQuestion, Authorizer, Principal, Rule
from auth.policy_document import Kind, Policy, read_policy
from cluster.keys.key_owners import NamedKey, key_place
from cluster.keys.keyring import Keyring
from visibility.contract.errors import KmsAccessDenied
from visibility.contract.model import QueueDefinition

_NOT_GRANTED = (
    "because the resource does not exist in this Region, no resource-based policies allow access, "
    "or a resource-based policy explicitly denies access"
)


class KeyAsker(NamedTuple):
    """The caller; `keys` gives the condition keys when needed, `generation` changes with the user's
    policies."""

    caller: Caller
    user: User | None
    generation: int
    keys: Callable[[], Keys]


def is_own_key(queue: QueueDefinition, caller: Caller) -> bool:
    """True for the root of the key's account, which no policy can exclude from using it."""
    if caller.user is not None:
        return False
    return caller.account == (
        key_place(queue.attributes["KmsMasterKeyId"]).account or queue.account
    )


def said_to_key(account: str, region: str, queue_arn: str) -> Keys:
    """The condition keys by which a key knows the service, the caller's account and the queue."""
    return {
        "aws:viaawsservice": ("true",),
        "kms:viaservice": (f"sqs.{region}.amazonaws.com",),
        "kms:calleraccount": (account,),
        "kms:encryptioncontext:aws:sqs:arn": (queue_arn,),
    }


class KeyAccess:
    """Decides for the gateway."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._authorizer = Authorizer(_read)

    def is_key_of(self, queue: QueueDefinition, named: NamedKey) -> bool:
        """True if new messages of the queue are sealed under this key."""
        reference = queue.attributes.get("KmsMasterKeyId")
        if reference is None:
            return False
        found = self._keyring.find(reference, queue.account)
        return found is not None and found.key_id == named.key_id

    def check_queue(
        self, permissions: tuple[str, ...], queue: QueueDefinition, asker: KeyAsker
    ) -> None:
        """Raise KmsAccessDenied unless the queue's key may be used.

        A key that is missing in the queue's own account is left to the sealer to report.
        """
        reference = queue.attributes["KmsMasterKeyId"]
        named = self._keyring.find(reference, queue.account)
        if named is not None:
            self.check_key(permissions, named, queue, asker)
            return
        owner = key_place(reference).account or queue.account
        if owner != asker.caller.account:
            raise _denied(asker.caller, permissions[0], reference)

    def check_key(
        self, permissions: tuple[str, ...], named: NamedKey, queue: QueueDefinition, asker: KeyAsker
    ) -> None:
        """Raise KmsAccessDenied unless a key may be used for messages of the queue."""
        caller, user = asker.caller, asker.user
        arn = f"arn:aws:kms:{queue.region}:{named.account or queue.account}:key/{named.key_id}"
        if not named.account:
            if caller.account != queue.account:
                raise _denied(caller, permissions[0], arn)
            return
        principal = Principal(caller.account, caller.arn, caller.principal, caller.user)
        policies = () if user is None else user.policies
        for permission in permissions:
            asked = AccessQuestion(principal, permission, arn, named.account, asker.keys)
            decision = self._authorizer.decide(asked, policies, named.policy, asker.generation)
            if decision.rule is Rule.NO_QUEUE_ALLOW:
                raise _denied(caller, permission, arn)
            if not decision.allowed:
                raise KmsAccessDenied(decision.message)


def _denied(caller: Caller, permission: str, resource: str) -> KmsAccessDenied:
    """The refusal if no grant allows the use; it does not reveal whether the key exists."""
    who = f"User: {caller.arn or 'anonymous'} is not authorized to perform: {permission}"
    return KmsAccessDenied(f"{who} on resource: {resource} {_NOT_GRANTED}")


def _read(text: str) -> Policy:
    return read_policy(text, Kind.KEY)
