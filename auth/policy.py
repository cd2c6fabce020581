"""Access decisions from a user's policies and a queue's policy. Pure.

    explicit deny > the account's root > the user's policies OR the queue's policy (same account),
                                         AND between accounts
    a request without a signature: the queue's policy, where it names everyone

A queue's policy allows actions of SQS only, also by `*` and NotAction; it can deny all.
A queue's policy that names an account delegates to it: the account's users also need a policy of
their own, as in IAM. A policy that names the user, or everyone, is enough in the same account.
Departure from AWS: the root of a queue's account may always read and repair the queue's attributes,
even where the queue's policy denies it; here there is no AWS support to do it.
Source: IAM, "policy evaluation logic"; SQS developer guide, "custom policies"; wordings as users
report them from SQS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from auth.conditions import Keys, is_unclear
from auth.policy_document import Policy, Principals, Statement
from auth.variables import fill

NEVER_ACROSS_ACCOUNTS = frozenset(
    f"sqs:{name}"
    for name in (
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "ListMessageMoveTasks",
        "ListQueues",
        "ListQueueTags",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    )
)
"""Actions that a queue's policy cannot grant to another account."""
REPAIRS = frozenset(
    ("sqs:GetQueueAttributes", "sqs:SetQueueAttributes", "sqs:RemovePermission", "sqs:DeleteQueue")
)


class Principal(msgspec.Struct, frozen=True):
    """The requester. `arn` is empty for an unsigned request; `user` is None for the root."""

    account: str
    arn: str
    user_id: str
    user: str | None = None

    @property
    def is_anonymous(self) -> bool:
        """True for a request without a signature."""
        return not self.arn


class AccessQuestion(NamedTuple):
    """The requested access. `action` is in AWS's form, `sqs:SendMessage`; `keys` gives the
    condition keys when needed."""

    principal: Principal
    action: str
    resource: str
    resource_account: str
    keys: Callable[[], Keys]


class Rule(Enum):
    """The rule that decided."""

    QUEUE_DENY = "with an explicit deny in a resource-based policy"
    IDENTITY_DENY = "with an explicit deny in an identity-based policy"
    ROOT = "the account's root may do everything in its account"
    IDENTITY_ALLOW = "an identity-based policy allows it"
    QUEUE_ALLOW = "the resource-based policy allows it"
    NO_IDENTITY_ALLOW = "because no identity-based policy allows the {action} action"
    NO_QUEUE_ALLOW = "because no resource-based policy allows the {action} action"


class Decision(msgspec.Struct, frozen=True):
    """The outcome. `source` names the policy and its statement that decided, where one did."""

    allowed: bool
    rule: Rule
    source: str = ""
    message: str = ""
    """AWS's wording of a refusal."""


class NamedPolicy(NamedTuple):
    """A user's policy."""

    name: str
    policy: Policy


def decide(
    asked: AccessQuestion, identity: Sequence[NamedPolicy], queue: Policy | None
) -> Decision:
    """Decide a request. `identity` holds the user's policies, `queue` is the queue's policy."""
    principal = asked.principal
    is_own = principal.account == asked.resource_account
    is_root = principal.user is None and not principal.is_anonymous
    named_queue = [] if queue is None else [NamedPolicy("queue policy", queue)]
    if not (is_own and is_root and asked.action in REPAIRS):
        denied = _first(asked, named_queue, allows=False)
        if denied:
            return _refused(asked, Rule.QUEUE_DENY, denied)
    denied = _first(asked, identity, allows=False)
    if denied:
        return _refused(asked, Rule.IDENTITY_DENY, denied)
    if is_own and is_root:
        return Decision(True, Rule.ROOT)
    own = _first(asked, identity, allows=True)
    if is_own:
        if own:
            return Decision(True, Rule.IDENTITY_ALLOW, own)
        direct = _first(asked, named_queue, allows=True, leaves_to_account=False)
        if direct:
            return Decision(True, Rule.QUEUE_ALLOW, direct)
        return _refused(asked, Rule.NO_IDENTITY_ALLOW)
    given = _first(asked, named_queue, allows=True)
    if asked.action in NEVER_ACROSS_ACCOUNTS or not given:
        return _refused(asked, Rule.NO_QUEUE_ALLOW)
    if principal.is_anonymous or is_root or own:
        return Decision(True, Rule.QUEUE_ALLOW, given)
    return _refused(asked, Rule.NO_IDENTITY_ALLOW)


def _first(
    asked: AccessQuestion,
    policies: Sequence[NamedPolicy],
    *,
    allows: bool,
    leaves_to_account: bool = True,
) -> str:
    """The policy and statement that apply, empty if none do."""
    for name, policy in policies:
        for statement in policy.statements:
            if statement.allows is allows and _applies(asked, statement, leaves_to_account):
                return f"{name}, {statement.label}"
    return ""


def _applies(asked: AccessQuestion, statement: Statement, leaves_to_account: bool) -> bool:
    action = asked.action.lower()
    if not action.startswith(statement.about):
        return False
    if any(matches(action) for matches in statement.actions) is statement.not_actions:
        return False
    if statement.principals is not None:
        named = _names(statement.principals, asked.principal, leaves_to_account)
        if statement.not_principals:
            named = _is_spared(statement.principals, asked.principal)
        if named is statement.not_principals:
            return False
    if not _is_about(asked, statement):
        return False
    return not statement.conditions or all(
        condition.holds(asked.keys(), allows=statement.allows) for condition in statement.conditions
    )


def _is_about(asked: AccessQuestion, statement: Statement) -> bool:
    """True if the statement's resources include the requested one."""
    if statement.tags and is_unclear(statement.tags, asked.keys()):
        return not statement.allows
    fill_in, resource = _filling(asked), asked.resource
    included = any(matches(resource, fill_in) for matches in statement.resources)
    return included is not statement.not_resources


def _filling(asked: AccessQuestion) -> Callable[[str], str | None]:
    return lambda text: fill(text, asked.keys())


def _names(principals: Principals, principal: Principal, leaves_to_account: bool) -> bool:
    if principals.everyone:
        return True
    if principal.is_anonymous:
        return False
    if principal.arn in principals.names or principal.user_id in principals.names:
        return True
    return principal.account in principals.accounts and (
        leaves_to_account or principal.user is None
    )


def _is_spared(principals: Principals, principal: Principal) -> bool:
    """True if NotPrincipal lists the caller: a user must be listed together with its account."""
    if principals.everyone:
        return True
    if principal.is_anonymous or principal.account not in principals.accounts:
        return False
    listed = principal.arn in principals.names or principal.user_id in principals.names
    return principal.user is None or listed


def _refused(asked: AccessQuestion, rule: Rule, source: str = "") -> Decision:
    action = asked.action.lower() if asked.action.startswith("sqs:") else asked.action
    if asked.principal.is_anonymous:
        message = f"Access to the resource {asked.resource} is denied."
    else:
        reason = rule.value.format(action=action)
        message = (
            f"User: {asked.principal.arn} is not authorized to perform: {action} "
            f"on resource: {asked.resource} {reason}"
        )
    return Decision(False, rule, source, message)


class Authorizer:
    """Decides, and caches decisions that did not depend on a condition or a variable. Bounded."""

    def __init__(self, read: Callable[[str], Policy]) -> None:
        """`read` parses the text of a queue's policy."""
        self._read = read
        self._known: dict[tuple[object, ...], Decision] = {}
        self._policies: dict[str, Policy] = {}
        self._policy_characters = 0

    def decide(
        self,
        asked: AccessQuestion,
        identity: tuple[NamedPolicy, ...],
        queue_policy: str | None,
        version: object,
    ) -> Decision:
        """As `decide` above; pass a new object as `version` whenever `identity` may have
        changed."""
        key = (asked.principal, asked.action, asked.resource, queue_policy, version)
        known = self._known.get(key)
        if known is not None:
            return known
        depends = False

        def keys() -> Keys:
            nonlocal depends
            depends = True
            return asked.keys()

        queue = None if queue_policy is None else self._policy(queue_policy)
        decision = decide(asked._replace(keys=keys), identity, queue)
        if not depends and len(asked.resource) <= _KNOWN_RESOURCE_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = decision
        return decision

    def _policy(self, text: str) -> Policy:
        policy = self._policies.get(text)
        if policy is None:
            self._policy_characters += len(text)
            if self._policy_characters > _POLICY_CHARACTERS_MAX:
                self._policies.clear()
                self._known.clear()  # its keys hold the same texts
                self._policy_characters = len(text)
            policy = self._policies[text] = self._read(text)
        return policy


_KNOWN_MAX = 50_000
_KNOWN_RESOURCE_MAX = 256
"""Characters of an ARN: longer than any queue's. A client may send a megabyte instead."""
_POLICY_CHARACTERS_MAX = 4 << 20
"""Characters of all cached policies; in parsed form they can take a hundred times as much."""
