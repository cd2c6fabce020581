"""The records of users and access keys.

keys/ID               an access key
users/ACCOUNT/NAME    a user with policies
uses/ID               the day of its latest use
sessions/HASH         a browser that is signed in, see `session_store.py`
challenges/ID         a challenge that a browser answered, until it ends
first                 the id of the access key that the first host made at its first start
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TypeVar

import msgspec

from cluster.coordination.records import Draft, View

PREFIX = "identities/"
"""Prefix of all these records among those of a host or a cluster."""
KEYS, USERS, USES = "keys/", "users/", "uses/"
SESSIONS, CHALLENGES = "sessions/", "challenges/"
_FIRST = "first"

T = TypeVar("T")


class IdentitiesUnreadable(Exception):
    """Users or keys cannot be read or changed; the text gives the reason in one line."""


class StoredKey(msgspec.Struct, frozen=True):
    """An access key; its secret and its session token are encrypted."""

    access_key_id: str
    secret: bytes
    account: str
    principal: str
    created_at_ms: int
    user: str | None = None
    enabled: bool = True
    session_token: bytes | None = None
    expires_at_ms: int | None = None


class StoredUser(msgspec.Struct, frozen=True):
    """A user with policies, name to text."""

    account: str
    name: str
    user_id: str
    created_at_ms: int
    tags: dict[str, str] = {}
    policies: dict[str, str] = {}
    subject: str = ""
    """Issuer and subject at the OpenID Connect provider who made the user; empty without one."""


class StoredSession(msgspec.Struct, frozen=True):
    """A browser that is signed in, with a key or (None) without one. `rights` is a digest of what
    the user might do then."""

    account: str
    region: str
    principal: str
    rights: str
    created_at_ms: int
    expires_at_ms: int
    user: str | None = None
    access_key_id: str | None = None
    source_ip: str = ""
    user_agent: str = ""


class IdentityRows:
    """The users and keys at one moment, and changes of them. Reads raise IdentitiesUnreadable."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def key(self, access_key_id: str) -> StoredKey | None:
        """The key with this id."""
        return _decoded(KEYS + access_key_id, self._draft.value(KEYS + access_key_id), StoredKey)

    def all_keys(self) -> list[StoredKey]:
        """All keys, oldest first."""
        keys = self._below(KEYS, StoredKey).values()
        return sorted(keys, key=lambda key: (key.created_at_ms, key.access_key_id))

    def put_key(self, key: StoredKey) -> None:
        """Write a key, whose user exists."""
        self._draft.put(KEYS + key.access_key_id, msgspec.json.encode(key))
        if key.user is not None:
            # A removal of the user at the same time must see this key.
            place = _place(key.account, key.user)
            self._draft.put(place, self._draft.value(place))

    def remove_key(self, access_key_id: str) -> None:
        """Remove a key, and its day of use."""
        self._draft.put(KEYS + access_key_id, None)
        _remove_use(self._draft, access_key_id)

    def note_first_key(self, access_key_id: str) -> None:
        """Let one of several hosts succeed that make the first key at once."""
        self._draft.put(_FIRST, access_key_id.encode())

    def user(self, account: str, name: str) -> StoredUser | None:
        """The user of that name."""
        place = _place(account, name)
        return _decoded(place, self._draft.value(place), StoredUser)

    def all_users(self) -> list[StoredUser]:
        """All users, by account and name."""
        users = self._below(USERS, StoredUser).values()
        return sorted(users, key=lambda user: (user.account, user.name))

    def put_user(self, user: StoredUser) -> None:
        """Write a user."""
        self._draft.put(_place(user.account, user.name), msgspec.json.encode(user))

    def remove_user(self, user: StoredUser) -> None:
        """Remove a user; the keys are removed one by one."""
        self._draft.put(_place(user.account, user.name), None)

    def put_use(self, access_key_id: str, day: int) -> None:
        """Write the day of a key's latest use, unless it was used later on another host; that of a
        key that is gone goes too."""
        if self._draft.value(KEYS + access_key_id) is None:
            _remove_use(self._draft, access_key_id)
            return
        before = day_of(self._draft.value(USES + access_key_id))
        if day > (-1 if before is None else before):
            self._draft.put(USES + access_key_id, b"%d" % day)

    def session(self, name: str) -> StoredSession | None:
        """The session of this hash."""
        return _decoded(SESSIONS + name, self._draft.value(SESSIONS + name), StoredSession)

    def all_sessions(self) -> dict[str, StoredSession]:
        """All sessions by hash, also those that have ended."""
        return self._below(SESSIONS, StoredSession)

    def put_session(self, name: str, session: StoredSession | None) -> None:
        """Write a session, or remove it."""
        self._draft.put(SESSIONS + name, None if session is None else msgspec.json.encode(session))

    def challenges(self) -> dict[str, int]:
        """The ends in milliseconds of challenges that were answered, by id."""
        return self._below(CHALLENGES, int)

    def _below(self, prefix: str, kind: type[T]) -> dict[str, T]:
        """The records of a kind by the rest of their keys."""
        found = self._draft.view.below(prefix).items()
        return {name: _decode(prefix + name, value, kind) for name, value in found}

    def put_challenge(self, name: str, until_ms: int | None) -> None:
        """Note that a challenge was answered, or forget it."""
        self._draft.put(CHALLENGES + name, None if until_ms is None else b"%d" % until_ms)


def days_in(view: View) -> dict[str, int]:
    """The days of latest use by key, without keys of whose use nothing is known."""
    found = view.below(USES).items()
    return {key_id: day for key_id, value in found if (day := day_of(value)) is not None}


def _remove_use(draft: Draft, key_id: str) -> None:
    """Remove a key's day of use; one that another host writes meanwhile is a conflict."""
    if draft.value(USES + key_id) is not None:
        draft.put(USES + key_id, None)


def _place(account: str, name: str) -> str:
    return f"{USERS}{account}/{name}"


def _decoded(key: str, value: bytes | None, kind: type[T]) -> T | None:
    return None if value is None else _decode(key, value, kind)


def _decode(key: str, value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise IdentitiesUnreadable(f"{PREFIX}{key} cannot be read: {reason}") from error


_DAY_DIGITS = 5
"""Later days are damage."""


def day_of(value: bytes | None) -> int | None:
    """A day, numbered since 1970, from its digits; None if there is none, or if it is damage."""
    return int(value) if value and value.isdigit() and len(value) <= _DAY_DIGITS else None


def day_text(day: int | None) -> str | None:
    """A day as text, such as 2026-11-23; None if there is none."""
    return None if day is None else (date(1970, 1, 1) + timedelta(day)).isoformat()
