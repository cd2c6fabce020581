"""May somebody do something, and which statement decides: for `holdfast policy check` and for the
console. The decision is `auth.policy.decide`, the one that requests meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from auth.caller import Caller
from auth.conditions import Keys, keys_by_name
from auth.identities import User
from auth.policy import AccessQuestion, Decision, Principal, decide
from auth.policy_document import RENAMED, Kind, Policy, PolicyRefused, read_policy
from cluster.keys.key_owners import OPERATIONS, NamedKey
from sqs_api.admin.routes import QUEUE_ACTIONS, READ_METRICS, SERVICE_ACTIONS
from sqs_api.cloudwatch.requests import MONITORING_ACTIONS
from sqs_api.gateway.condition_keys import said_of_caller
from sqs_api.gateway.key_access import said_to_key
from visibility.contract.actions import ACTIONS
from visibility.contract.naming import parse_arn

KEY_ACTIONS = frozenset(f"kms:{operation}" for operation in OPERATIONS)
FindKey = Callable[[str, str], NamedKey | None]
"""The key that a KmsMasterKeyId names for an account."""


class QuestionRefused(Exception):
    """The question cannot be asked; `option` names the part of it that is wrong."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option = option


class Wanted(NamedTuple):
    """The permission in question, and what it is about. `queue` is None for the service."""

    action: str
    resource: str
    account: str
    region: str
    queue: str | None

    @property
    def is_of_key(self) -> bool:
        """True for a permission on the queue's key."""
        return self.action in KEY_ACTIONS


class Target(NamedTuple):
    """The queue, its key or the service, with its owner and resource-based policy."""

    arn: str
    account: str
    policy: Policy | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    said: Keys = MappingProxyType({})
    """Condition keys beside those of the caller."""


class Verdict(msgspec.Struct, frozen=True):
    """The answer. `decided_by` names policy and statement, empty if none decided."""

    allowed: bool
    who: str
    action: str
    resource: str
    rule: str
    decided_by: str


def wanted(action: str, queue: str | None, account: str, region: str) -> Wanted:
    """The question; `queue` is an ARN, or the name of a queue of the account. Raises
    QuestionRefused."""
    action = RENAMED.get(action, action)
    if action in MONITORING_ACTIONS | SERVICE_ACTIONS:
        return Wanted(action, "*", account, region, None)
    prefix, _, name = action.rpartition(":")
    is_named = action in KEY_ACTIONS or action in QUEUE_ACTIONS or action == READ_METRICS
    if not is_named and (prefix.lower() not in ("", "sqs") or name not in ACTIONS):
        raise QuestionRefused("action", f"there is no action {action}")
    if queue is None:
        raise QuestionRefused("queue", "is needed for this action")
    resource = queue
    if not queue.startswith("arn:"):
        resource = f"arn:aws:sqs:{region}:{account}:{queue}"
    parsed = parse_arn(resource)
    if parsed is None:
        raise QuestionRefused("queue", f"{queue} names no queue")
    single = action if is_named else ACTIONS[name].permission
    return Wanted(single, resource, parsed.account, parsed.region, parsed.name)


def queue_target(
    asked_for: Wanted, attributes: Mapping[str, str], tags: Mapping[str, str]
) -> Target:
    """The queue with its policy. Raises QuestionRefused if that cannot be read."""
    try:
        text = attributes.get("Policy")
        policy = None if text is None else read_policy(text, Kind.QUEUE)
    except PolicyRefused as error:
        raise QuestionRefused("queue", f"the policy of {asked_for.queue}: {error}") from error
    return Target(asked_for.resource, asked_for.account, policy, tags)


def key_target(asked_for: Wanted, reference: str | None, caller: Caller, find: FindKey) -> Target:
    """The key that a queue names; its policy is its grants. Raises QuestionRefused."""
    if reference is None:
        raise QuestionRefused("queue", f"{asked_for.queue} names no key")
    named = find(reference, asked_for.account)
    if named is None:
        raise QuestionRefused(
            "queue", f"{asked_for.queue} names the key {reference}, which there is not"
        )
    if not named.account:
        raise QuestionRefused(
            "queue",
            f"{asked_for.queue} names the built-in key, which is for every caller of its account",
        )
    policy = None if named.policy is None else read_policy(named.policy, Kind.KEY)
    said = said_to_key(caller.account, asked_for.region, asked_for.resource)
    arn = f"arn:aws:kms:{asked_for.region}:{named.account}:key/{named.key_id}"
    return Target(arn, named.account, policy, said=said)


def judge(
    asked_for: Wanted,
    target: Target,
    caller: Caller,
    user: User | None,
    conditions: Iterable[str],
    now_s: float,
) -> Verdict:
    """Decide. `conditions` are texts KEY=VALUE, of what else a request says."""
    principal = Principal(caller.account, caller.arn, caller.principal, caller.user)
    said = said_of_caller(caller, user, target.tags, now_s)
    pairs = (text.partition("=") for text in conditions)
    given = keys_by_name((key.lower(), (value,)) for key, _, value in pairs)
    keys = {**keys_by_name(said), **target.said, **given}
    asked = AccessQuestion(principal, asked_for.action, target.arn, target.account, lambda: keys)
    decision = decide(asked, () if user is None else user.policies, target.policy)
    return _verdict(asked, decision)


def _verdict(asked: AccessQuestion, decision: Decision) -> Verdict:
    source = decision.source
    if asked.action in KEY_ACTIONS:
        source = source.removeprefix("queue policy, ")  # a grant, which names itself
    return Verdict(
        decision.allowed,
        asked.principal.arn,
        asked.action,
        asked.resource,
        decision.rule.value.format(action=asked.action),
        source,
    )
