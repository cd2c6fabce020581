"""Answers about users and access keys: lists, policies, whether a user may do something, and who
asks."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from auth.caller import Caller, anonymous
from auth.identities import User
from cluster.keys.identity_records import StoredKey, StoredUser, day_text
from cluster.keys.identity_store import IdentityStore
from sqs_api.admin import routes
from sqs_api.admin.asked import Asked
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.permission_answers import (
    QuestionRefused,
    Target,
    Verdict,
    Wanted,
    judge,
    key_target,
    queue_target,
    wanted,
)
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound
from visibility.contract.naming import is_account

_SHOWN_ACTIONS = {
    routes.READ_AUDIT: False,
    routes.READ_USERS: False,
    routes.MANAGE_USERS: True,
    routes.READ_CLUSTER: False,
    routes.READ_FLEET: False,
    routes.CHANGE_FLEET: False,
    routes.DRAIN_HOST: True,
    routes.LIST_DELETED_QUEUES: False,
    routes.RESTORE_QUEUE: False,
    routes.ADD_MARK: False,
}
"""Actions on the service that a caller is shown, and True for those of the root only."""


class ShownCaller(TypedDict):
    """The signer of a request; `is_trusted` in open mode and for local commands. It `may` do these
    actions to the service. `session` is null for a request without a cookie, `grafana_url` if none
    is set."""

    account: str
    region: str
    user: str | None
    is_trusted: bool
    may: list[str]
    has_archive: bool
    session: str | None
    grafana_url: str | None


async def show_caller(context: OperatorContext, asked: Asked) -> ShownCaller:
    """The signer of the request, and what it may do to the service as a whole."""
    may = [
        action
        for action, root_only in _SHOWN_ACTIONS.items()
        if asked.may_administer(action, context.account, root_only=root_only)
    ]
    return {
        "account": asked.caller.account,
        "region": asked.caller.region,
        "user": asked.caller.user,
        "is_trusted": asked.is_trusted,
        "may": [
            *(action for action in (routes.LIST_QUEUES, routes.CREATE) if asked.may(action, "*")),
            *may,
        ],
        "has_archive": context.archive.has_lake,
        "session": None if context.sessions is None else context.sessions.id_of(asked.sent),
        "grafana_url": context.grafana_url,
    }


class ShownKey(TypedDict):
    """An access key, without its secret. `last_used_on` is a day of UTC, null if no use of the key
    is known."""

    access_key_id: str
    created_at_ms: int
    is_enabled: bool
    expires_at_ms: int | None
    has_expired: bool
    is_temporary: bool
    last_used_on: str | None


class ShownAccountKey(ShownKey):
    """An access key of an account itself."""

    account: str


class ShownUser(TypedDict):
    """A user."""

    account: str
    name: str
    arn: str
    user_id: str
    created_at_ms: int
    tags: dict[str, str]


class ListedUser(ShownUser):
    """A user with the names of the policies."""

    policies: list[str]
    keys: list[ShownKey]


class DetailedUser(ShownUser):
    """A user with the texts of the policies, by name."""

    policies: dict[str, str]
    keys: list[ShownKey]


class ListedUsers(TypedDict):
    """All users, and the keys of accounts themselves."""

    users: list[ListedUser]
    account_keys: list[ShownAccountKey]


class WantedUser(msgspec.Struct):
    """A user of an account, by default of the configured one."""

    user: str = ""
    account: str | None = None


async def list_users(context: OperatorContext, asked: Asked) -> ListedUsers:
    """All users with their keys, and the keys of accounts themselves; no secrets."""
    users, keys = context.user_admin.read(IdentityStore.stored)
    shown = _shown_keys(context, keys)
    return {
        "users": [
            {
                **_shown_user(user),
                "policies": sorted(user.policies),
                "keys": [shown[key.access_key_id] for key in keys if _is_of(key, user)],
            }
            for user in users
        ],
        "account_keys": [
            {"account": key.account, **shown[key.access_key_id]} for key in keys if key.user is None
        ],
    }


async def show_user(
    context: OperatorContext, asked: Asked, wanted_user: WantedUser
) -> DetailedUser:
    """One user with the text of each policy."""
    users, keys = context.user_admin.read(IdentityStore.stored)
    owner = (account_of(context, wanted_user.account), wanted_user.user)
    for user in users:
        if (user.account, user.name) == owner:
            return {
                **_shown_user(user),
                "policies": dict(sorted(user.policies.items())),
                "keys": [
                    *_shown_keys(context, [key for key in keys if _is_of(key, user)]).values()
                ],
            }
    raise ResourceNotFound(f"no user {owner[1]} in account {owner[0]}")


def account_of(context: OperatorContext, given: str | None) -> str:
    """The account that was given, or the configured one. Raises InvalidParameterValue."""
    if given is not None and not is_account(given):
        raise InvalidParameterValue("account must be 12 digits.")
    return given or context.account


def user_of(store: IdentityStore, account: str, name: str) -> User:
    """The user of that name. Raises ResourceNotFound."""
    user = store.users().find(account, name)
    if user is None:
        raise ResourceNotFound(f"no user {name} in account {account}")
    return user


def _is_of(key: StoredKey, user: StoredUser) -> bool:
    return (key.account, key.user) == (user.account, user.name)


def _shown_user(user: StoredUser) -> ShownUser:
    return {
        "account": user.account,
        "name": user.name,
        "arn": User(user.account, user.name, user.user_id).arn,
        "user_id": user.user_id,
        "created_at_ms": user.created_at_ms,
        "tags": user.tags,
    }


def _shown_keys(context: OperatorContext, keys: list[StoredKey]) -> dict[str, ShownKey]:
    """The keys as JSON by id, in that order."""
    days, now_ms = context.user_admin.key_uses(), context.now_ms
    return {
        key.access_key_id: {
            "access_key_id": key.access_key_id,
            "created_at_ms": key.created_at_ms,
            "is_enabled": key.enabled,
            "expires_at_ms": key.expires_at_ms,
            "has_expired": key.expires_at_ms is not None and now_ms >= key.expires_at_ms,
            "is_temporary": key.session_token is not None,
            "last_used_on": day_text(days.get(key.access_key_id)),
        }
        for key in keys
    }


# -- may this user? --------------------------------------------------------------------------------


class PermissionQuestion(msgspec.Struct):
    """May a user, the account itself, or an unsigned request do something?"""

    who: Literal["user", "root", "anonymous"] = "user"
    user: str | None = None
    account: str | None = None
    action: str = ""
    queue: Annotated[str | None, Meta(description="Name or ARN of a queue.")] = None
    conditions: Annotated[str, Meta(description="NAME=VALUE of condition keys, one a line.")] = ""


async def check_permission(
    context: OperatorContext, asked: Asked, question: PermissionQuestion
) -> Verdict:
    """The decision that a request would meet, and the statement that made it."""
    account = account_of(context, question.account)
    user = None
    if question.who == "user":
        name = question.user
        if name is None:
            raise InvalidParameterValue("user: name a user.")
        user = context.user_admin.read(lambda store: user_of(store, account, name))
    try:
        asked_for = wanted(question.action, question.queue, context.account, asked.caller.region)
        caller = Caller(account, asked_for.region, "")
        if user is not None:
            caller = Caller(account, asked_for.region, user.user_id, user=user.name)
        elif question.who == "anonymous":
            caller = anonymous(asked_for.region)
        target = _target(context, asked_for, caller)
    except QuestionRefused as refused:
        raise InvalidParameterValue(f"{refused.option}: {refused}") from refused
    conditions = question.conditions.splitlines()
    return judge(asked_for, target, caller, user, conditions, context.wall_s())


def _target(context: OperatorContext, asked_for: Wanted, caller: Caller) -> Target:
    """The queue, key or service that the action is about. Raises QueueError, QuestionRefused."""
    if asked_for.queue is None:
        return Target(asked_for.resource, asked_for.account)
    queue = context.catalog.queue(asked_for.account, asked_for.region, asked_for.queue)
    if asked_for.is_of_key:
        reference = queue.attributes.get("KmsMasterKeyId")
        return key_target(asked_for, reference, caller, context.find_key)
    return queue_target(asked_for, queue.attributes, queue.tags)


ROUTES = (
    routes.Route("GET", "api/caller", None, show_caller),
    routes.Route("GET", "api/users", routes.READ_USERS, list_users),
    routes.Route("GET", "api/users/show", routes.READ_USERS, show_user),
    routes.Route("GET", "api/users/check", routes.READ_USERS, check_permission),
)
