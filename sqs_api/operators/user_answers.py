"""Answers about users and access keys: lists, policies, and whether a user may do something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auth.caller import Caller, anonymous
from auth.identities import User
from cluster.keys.identity_records import StoredKey, StoredUser
from cluster.keys.identity_store import IdentityStore
from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.permissions import (
    QuestionRefused,
    Target,
    Wanted,
    judge,
    key_target,
    queue_target,
    wanted,
)
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound
from visibility.contract.naming import is_account


async def list_users(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """All users with their keys, and the keys of accounts themselves; no secrets."""
    users, keys = desk.people.read(IdentityStore.stored)
    return {
        "users": [
            {
                **_shown_user(user),
                "policies": sorted(user.policies),
                "keys": [_shown_key(key, desk.now_ms) for key in keys if _is_of(key, user)],
            }
            for user in users
        ],
        "account_keys": [
            {"account": key.account, **_shown_key(key, desk.now_ms)}
            for key in keys
            if key.user is None
        ],
    }


async def show_user(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """One user with the text of each policy."""
    users, keys = desk.people.read(IdentityStore.stored)
    owner = (account_of(desk, asked.text("account")), asked.text("user"))
    for user in users:
        if (user.account, user.name) == owner:
            return {
                **_shown_user(user),
                "policies": dict(sorted(user.policies.items())),
                "keys": [_shown_key(key, desk.now_ms) for key in keys if _is_of(key, user)],
            }
    raise ResourceNotFound(f"no user {owner[1]} in account {owner[0]}")


def account_of(desk: Desk, given: str | None) -> str:
    """The account that was given, or the configured one. Raises InvalidParameterValue."""
    if given is not None and not is_account(given):
        raise InvalidParameterValue("account must be 12 digits.")
    return given or desk.account


def user_of(store: IdentityStore, account: str, name: str) -> User:
    """The user of that name. Raises ResourceNotFound."""
    user = store.users().find(account, name)
    if user is None:
        raise ResourceNotFound(f"no user {name} in account {account}")
    return user


def _is_of(key: StoredKey, user: StoredUser) -> bool:
    return (key.account, key.user) == (user.account, user.name)


def _shown_user(user: StoredUser) -> dict[str, Any]:
    return {
        "account": user.account,
        "name": user.name,
        "arn": User(user.account, user.name, user.user_id).arn,
        "user_id": user.user_id,
        "created_at_ms": user.created_at_ms,
        "tags": user.tags,
    }


def _shown_key(key: StoredKey, now_ms: int) -> dict[str, Any]:
    return {
        "access_key_id": key.access_key_id,
        "created_at_ms": key.created_at_ms,
        "is_enabled": key.enabled,
        "expires_at_ms": key.expires_at_ms,
        "has_expired": key.expires_at_ms is not None and now_ms >= key.expires_at_ms,
        "is_temporary": key.session_token is not None,
    }


# -- may this user? --------------------------------------------------------------------------------


async def check_permission(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Decide if a user, the account itself, or an unsigned request may do something."""
    account = account_of(desk, asked.text("account"))
    name, who = asked.text("user"), asked.one_of("who", ("user", "root", "anonymous"))
    user = None
    if who == "user":
        if name is None:
            raise InvalidParameterValue("user: name a user.")
        user = desk.people.read(lambda store: user_of(store, account, name))
    try:
        asked_for = wanted(
            asked.text("action") or "", asked.text("queue"), desk.account, asked.caller.region
        )
        caller = Caller(account, asked_for.region, "")
        if user is not None:
            caller = Caller(account, asked_for.region, user.user_id, user=user.name)
        elif who == "anonymous":
            caller = anonymous(asked_for.region)
        target = _target(desk, asked_for, caller)
    except QuestionRefused as refused:
        raise InvalidParameterValue(f"{refused.option}: {refused}") from refused
    conditions = (asked.text("conditions") or "").splitlines()
    return judge(asked_for, target, caller, user, conditions, desk.wall_s())._asdict()


def _target(desk: Desk, asked_for: Wanted, caller: Caller) -> Target:
    """The queue, key or service that the action is about. Raises QueueError, QuestionRefused."""
    if asked_for.queue is None:
        return Target(asked_for.resource, asked_for.account)
    queue = desk.catalog.queue(asked_for.account, asked_for.region, asked_for.queue)
    if asked_for.is_of_key:
        reference = queue.attributes.get("KmsMasterKeyId")
        return key_target(asked_for, reference, caller, desk.find_key)
    return queue_target(asked_for, queue.attributes, queue.tags)
