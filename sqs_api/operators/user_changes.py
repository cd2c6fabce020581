"""Changes of users, their policies and access keys. A secret is in one answer and nowhere else."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from auth.credentials import AccessKey
from auth.identities import User
from cluster.keys.identity_store import IdentityStore
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import MANAGE_USERS, Route
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.role_policies import ROLES, role_of
from sqs_api.operators.user_answers import account_of, user_of
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound

_EXPIRES_S_MAX = 100 * 366 * 86_400
_OVERLAP_S_MAX = 366 * 86_400


_POLICY_BYTES = 512 << 10
"""A policy's 64 Ki characters, each escaped."""


class NamedUser(msgspec.Struct, forbid_unknown_fields=True):
    """A user of an account, by default of the configured one."""

    name: str
    account: str | None = None


class NewUser(NamedUser, forbid_unknown_fields=True):
    """A user to make, with the policy of a role and an access key if these are asked for."""

    tags: dict[str, str] = {}
    role: Annotated[str | None, Meta(description="The name of one of `roles`.")] = None
    with_key: bool = False


class NamedPolicy(NamedUser, forbid_unknown_fields=True, kw_only=True):
    """A policy of a user."""

    policy: str


class NewPolicy(NamedPolicy, forbid_unknown_fields=True, kw_only=True):
    """A policy with its text, a JSON document."""

    document: str


class NewRole(NamedUser, forbid_unknown_fields=True, kw_only=True):
    """A user, and the role that it gets in the place of any other one."""

    role: Annotated[str | None, Meta(description="The name of one of `roles`; null for none.")]


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """An access key to make."""

    user: str | None = None
    """None: a key of the account itself."""
    account: str | None = None
    expires_in_s: Annotated[int, Meta(ge=1, le=_EXPIRES_S_MAX)] | None = None


class NamedKey(msgspec.Struct, forbid_unknown_fields=True):
    """An access key."""

    access_key_id: str


class KeyState(NamedKey, forbid_unknown_fields=True, kw_only=True):
    """An access key that is to be accepted, or refused."""

    enabled: bool


class ReplacedKey(NamedKey, forbid_unknown_fields=True, kw_only=True):
    """An access key that is to end after `overlap_s`; 0 disables it at once."""

    overlap_s: Annotated[int, Meta(ge=0, le=_OVERLAP_S_MAX)] = 3600


class AddedKey(TypedDict):
    """An access key with its secret."""

    access_key_id: str
    secret_access_key: str


class AddedUser(TypedDict):
    """A user that was made, and the access key that was asked for with its secret."""

    arn: str
    user_id: str
    key: AddedKey | None


class Removed(TypedDict):
    """The ARN of the user, the name of the policy or the id of the key that is gone."""

    removed: str


class PutPolicy(TypedDict):
    """The name of a policy that holds now."""

    policy: str


class GivenRole(TypedDict):
    """The role that a user has now."""

    role: str | None


class ChangedKey(TypedDict):
    """An access key, and whether requests with it are accepted."""

    access_key_id: str
    enabled: bool


def _noted(context: OperatorContext, asked: Asked, given: NamedUser) -> str:
    """The account of the user, after a note for the audit log."""
    account = account_of(context, given.account)
    asked.noted |= {"of_account": account, "of_user": given.name}
    return account


async def add_user(context: OperatorContext, asked: Asked, given: NewUser) -> AddedUser:
    """Make a user, who may do nothing until a policy says so: a role's, or one that follows."""
    account = _noted(context, asked, given)
    role = None if given.role is None else role_of(given.role)

    async def add(store: IdentityStore) -> tuple[User, AccessKey | None]:
        user = await store.add_user(account, given.name, given.tags)
        if role is not None:
            await store.put_policy(user, role["name"], role["document"])
        key = await store.add_key(account, user) if given.with_key else None
        return user, key

    if role is not None:
        asked.noted["role"] = role["name"]
    user, key = await context.user_admin.change(add)
    if key is not None:
        asked.noted["made"] = key.access_key_id
    return {"arn": user.arn, "user_id": user.user_id, "key": None if key is None else _shown(key)}


def _shown(key: AccessKey) -> AddedKey:
    return {"access_key_id": key.access_key_id, "secret_access_key": key.secret_access_key}


async def remove_user(context: OperatorContext, asked: Asked, given: NamedUser) -> Removed:
    """Forget a user with policies and access keys."""
    account = _noted(context, asked, given)

    async def remove(store: IdentityStore) -> str:
        user = user_of(store, account, given.name)
        await store.remove_user(user)
        return user.arn

    return {"removed": await context.user_admin.change(remove)}


async def put_policy(context: OperatorContext, asked: Asked, given: NewPolicy) -> PutPolicy:
    """Give a user a policy, in the place of one of the same name."""
    account = _noted(context, asked, given)
    asked.noted["policy"] = given.policy
    if not given.policy:
        raise InvalidParameterValue("policy: name the policy.")
    await context.user_admin.change(
        lambda store: store.put_policy(
            user_of(store, account, given.name), given.policy, given.document
        )
    )
    return {"policy": given.policy}


async def put_role(context: OperatorContext, asked: Asked, given: NewRole) -> GivenRole:
    """Give a user the policy of a role, in the place of those of other roles. Policies with other
    names stay."""
    account = _noted(context, asked, given)
    asked.noted["role"] = given.role or "none"
    role = None if given.role is None else role_of(given.role)
    policies = {} if role is None else {role["name"]: role["document"]}
    await context.user_admin.change(
        lambda store: store.replace_policies(
            user_of(store, account, given.name), [each["name"] for each in ROLES], policies
        )
    )
    return {"role": given.role}


async def remove_policy(context: OperatorContext, asked: Asked, given: NamedPolicy) -> Removed:
    """Take a policy from a user."""
    account = _noted(context, asked, given)
    asked.noted["policy"] = given.policy
    was_there = await context.user_admin.change(
        lambda store: store.remove_policy(user_of(store, account, given.name), given.policy)
    )
    if not was_there:
        raise ResourceNotFound(f"user {given.name} has no policy {given.policy}")
    return {"removed": given.policy}


async def add_key(context: OperatorContext, asked: Asked, given: NewKey) -> AddedKey:
    """Make an access key; only this answer has its secret."""
    account = account_of(context, given.account)
    asked.noted |= {"of_account": account, "of_user": given.user}

    async def add(store: IdentityStore) -> AccessKey:
        user = None if given.user is None else user_of(store, account, given.user)
        return await store.add_key(account, user, lifetime_s=given.expires_in_s)

    key = await context.user_admin.change(add)
    asked.noted["made"] = key.access_key_id
    return _shown(key)


async def rotate_key(context: OperatorContext, asked: Asked, given: ReplacedKey) -> AddedKey:
    """Make a successor of a key for the same owner; only this answer has its secret."""
    old_id, overlap_s = given.access_key_id, given.overlap_s
    asked.noted |= {"of_key": old_id, "overlap_s": overlap_s}
    if not overlap_s:
        _check_not_own(asked, old_id)
    key = await context.user_admin.change(lambda store: store.rotate_key(old_id, overlap_s))
    if key is None:
        raise _no_key(old_id)
    asked.noted["made"] = key.access_key_id
    return _shown(key)


async def enable_key(context: OperatorContext, asked: Asked, given: KeyState) -> ChangedKey:
    """Refuse or allow a key from now on."""
    asked.noted |= {"of_key": given.access_key_id, "enabled": given.enabled}
    _check_not_own(asked, given.access_key_id)
    is_there = await context.user_admin.change(
        lambda store: store.set_key_enabled(given.access_key_id, given.enabled)
    )
    _check_there(is_there, given.access_key_id)
    return {"access_key_id": given.access_key_id, "enabled": given.enabled}


async def remove_key(context: OperatorContext, asked: Asked, given: NamedKey) -> Removed:
    """Forget a key."""
    key_id = given.access_key_id
    asked.noted["of_key"] = key_id
    _check_not_own(asked, key_id)
    _check_there(await context.user_admin.change(lambda store: store.remove_key(key_id)), key_id)
    return {"removed": key_id}


def _check_not_own(asked: Asked, access_key_id: str) -> None:
    """Raise InvalidParameterValue for the key that signed: its owner would be locked out."""
    if not asked.is_trusted and access_key_id == asked.caller.access_key_id:
        raise InvalidParameterValue("This key signed the request: use another one to change it.")


def _check_there(is_there: bool, access_key_id: str) -> None:
    if not is_there:
        raise _no_key(access_key_id)


def _no_key(access_key_id: str) -> ResourceNotFound:
    return ResourceNotFound(f"no access key {access_key_id}")


ROUTES = (
    Route("POST", "api/users", MANAGE_USERS, add_user, root_only=True),
    Route("POST", "api/users/remove", MANAGE_USERS, remove_user, root_only=True),
    Route(
        "POST",
        "api/users/policies",
        MANAGE_USERS,
        put_policy,
        body_bytes_max=_POLICY_BYTES,
        root_only=True,
    ),
    Route("POST", "api/users/role", MANAGE_USERS, put_role, root_only=True),
    Route("POST", "api/users/policies/remove", MANAGE_USERS, remove_policy, root_only=True),
    Route("POST", "api/access-keys", MANAGE_USERS, add_key, root_only=True),
    Route("POST", "api/access-keys/rotate", MANAGE_USERS, rotate_key, root_only=True),
    Route("POST", "api/access-keys/enable", MANAGE_USERS, enable_key, root_only=True),
    Route("POST", "api/access-keys/remove", MANAGE_USERS, remove_key, root_only=True),
)
