"""Changes of users, their policies and access keys. A secret is in one answer and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from auth.credentials import AccessKey
from cluster.keys.identity_store import IdentityStore
from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.user_answers import account_of, user_of
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound


class _User(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    account: str | None = None


class _NewUser(_User, forbid_unknown_fields=True):
    tags: dict[str, str] = {}


class _PolicyName(_User, forbid_unknown_fields=True, kw_only=True):
    policy: str


class _Policy(_PolicyName, forbid_unknown_fields=True, kw_only=True):
    document: str


class _NewKey(msgspec.Struct, forbid_unknown_fields=True):
    user: str | None = None
    """None: a key of the account itself."""
    account: str | None = None
    expires_in_s: int | None = None


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    access_key_id: str


class _KeyState(_Key, forbid_unknown_fields=True, kw_only=True):
    enabled: bool


def _noted(desk: Desk, asked: Asked, given: _User) -> str:
    """The account of the user, after a note for the audit log."""
    account = account_of(desk, given.account)
    asked.noted |= {"of_account": account, "of_user": given.name}
    return account


async def add_user(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Make a user, who may do nothing until a policy says so."""
    given = asked.content(_NewUser)
    account = _noted(desk, asked, given)
    user = await desk.people.change(lambda store: store.add_user(account, given.name, given.tags))
    return {"arn": user.arn, "user_id": user.user_id}


async def remove_user(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Forget a user with policies and access keys."""
    given = asked.content(_User)
    account = _noted(desk, asked, given)

    def remove(store: IdentityStore) -> str:
        user = user_of(store, account, given.name)
        store.remove_user(user)
        return user.arn

    return {"removed": await desk.people.change(remove)}


async def put_policy(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Give a user a policy, in the place of one of the same name."""
    given = asked.content(_Policy)
    account = _noted(desk, asked, given)
    asked.noted["policy"] = given.policy
    if not given.policy:
        raise InvalidParameterValue("policy: name the policy.")
    await desk.people.change(
        lambda store: store.put_policy(
            user_of(store, account, given.name), given.policy, given.document
        )
    )
    return {"policy": given.policy}


async def remove_policy(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Take a policy from a user."""
    given = asked.content(_PolicyName)
    account = _noted(desk, asked, given)
    asked.noted["policy"] = given.policy
    was_there = await desk.people.change(
        lambda store: store.remove_policy(user_of(store, account, given.name), given.policy)
    )
    if not was_there:
        raise ResourceNotFound(f"user {given.name} has no policy {given.policy}")
    return {"removed": given.policy}


async def add_key(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Make an access key; only this answer has its secret."""
    given = asked.content(_NewKey)
    account = account_of(desk, given.account)
    asked.noted |= {"of_account": account, "of_user": given.user}
    if given.expires_in_s is not None and given.expires_in_s <= 0:
        raise InvalidParameterValue("expires_in_s must be at least 1.")

    def add(store: IdentityStore) -> AccessKey:
        user = None if given.user is None else user_of(store, account, given.user)
        return store.add_key(account, user, lifetime_s=given.expires_in_s)

    key = await desk.people.change(add)
    asked.noted["made"] = key.access_key_id
    return {"access_key_id": key.access_key_id, "secret_access_key": key.secret_access_key}


async def enable_key(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Refuse or allow a key from now on."""
    given = asked.content(_KeyState)
    asked.noted |= {"of_key": given.access_key_id, "enabled": given.enabled}
    _check_not_own(asked, given.access_key_id)
    is_there = await desk.people.change(
        lambda store: store.set_key_enabled(given.access_key_id, given.enabled)
    )
    _check_there(is_there, given.access_key_id)
    return {"access_key_id": given.access_key_id, "enabled": given.enabled}


async def remove_key(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Forget a key."""
    key_id = asked.content(_Key).access_key_id
    asked.noted["of_key"] = key_id
    _check_not_own(asked, key_id)
    _check_there(await desk.people.change(lambda store: store.remove_key(key_id)), key_id)
    return {"removed": key_id}


def _check_not_own(asked: Asked, access_key_id: str) -> None:
    """Raise InvalidParameterValue for the key that signed: its owner would be locked out."""
    if not asked.is_trusted and access_key_id == asked.caller.access_key_id:
        raise InvalidParameterValue("This key signed the request: use another one to change it.")


def _check_there(is_there: bool, access_key_id: str) -> None:
    if not is_there:
        raise ResourceNotFound(f"no access key {access_key_id}")
