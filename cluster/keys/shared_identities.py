"""Users and access keys of a cluster, in records that its hosts share.

keys/ID               an access key
users/ACCOUNT/NAME    a user with policies
uses/ID               the day of its latest use
first                 the id of the access key that the first host made at its first start
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from cluster.coordination.coordination import Record
from cluster.coordination.shared_records import Draft, SharedRecords, View
from cluster.keys.identity_records import (
    IdentitiesUnreadable,
    IdentityRows,
    KeyUses,
    StoredKey,
    StoredUser,
)
from cluster.keys.key_uses import day_of

PREFIX = "identities/"
"""Prefix of all these records among those of the cluster."""
_KEYS, _USERS, _USES, _FIRST = "keys/", "users/", "uses/", "first"
_USES_WRITTEN_AT_ONCE = 50
"""Days of one transaction, each with its key: etcd has a limit."""

T = TypeVar("T")


def identities_in(
    records: Mapping[str, bytes],
) -> tuple[list[StoredUser], list[StoredKey], dict[str, int]]:
    """The users, access keys and days of use in a copy of a cluster's records. Raises
    IdentitiesUnreadable."""
    own = {
        key.removeprefix(PREFIX): Record(key, value, 1)
        for key, value in records.items()
        if key.startswith(PREFIX)
    }
    view = View(1, own)
    rows = _Rows(Draft(view))
    return rows.all_users(), rows.all_keys(), _days_in(view)


class SharedIdentities:
    """See IdentityRecords."""

    def __init__(self, records: SharedRecords) -> None:
        """`records` raise IdentitiesUnreadable, and are closed with this."""
        self._records = records
        records.quiet = _USES
        self.uses: KeyUses = _SharedKeyUses(records)

    def close(self) -> None:
        """See IdentityRecords."""
        self._records.close()

    def changed(self) -> bool:
        """See IdentityRecords."""
        return self._records.changed()

    def catch_up(self) -> None:
        """See IdentityRecords."""
        self._records.catch_up()

    def look_again(self) -> None:
        """See IdentityRecords."""
        self._records.look_again()

    def read(self) -> IdentityRows:
        """See IdentityRecords."""
        return _Rows(Draft(self._records.view))

    def change(self, decide: Callable[[IdentityRows], T]) -> T:
        """See IdentityRecords."""
        return self._records.change(lambda draft: decide(_Rows(draft)))


class _Rows:
    """See IdentityRows."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def key(self, access_key_id: str) -> StoredKey | None:
        return _decoded(_KEYS + access_key_id, self._draft.value(_KEYS + access_key_id), StoredKey)

    def all_keys(self) -> list[StoredKey]:
        found = self._draft.view.below(_KEYS).items()
        keys = [_decode(_KEYS + name, value, StoredKey) for name, value in found]
        return sorted(keys, key=lambda key: (key.created_at_ms, key.access_key_id))

    def put_key(self, key: StoredKey) -> None:
        self._draft.put(_KEYS + key.access_key_id, msgspec.json.encode(key))
        if key.user is not None:
            # A removal of the user at the same time must see this key.
            place = _place(key.account, key.user)
            self._draft.put(place, self._draft.value(place))

    def remove_key(self, access_key_id: str) -> None:
        self._draft.put(_KEYS + access_key_id, None)
        _remove_use(self._draft, access_key_id)

    def note_first_key(self, access_key_id: str) -> None:
        self._draft.put(_FIRST, access_key_id.encode())

    def user(self, account: str, name: str) -> StoredUser | None:
        place = _place(account, name)
        return _decoded(place, self._draft.value(place), StoredUser)

    def all_users(self) -> list[StoredUser]:
        found = self._draft.view.below(_USERS).items()
        users = [_decode(_USERS + name, value, StoredUser) for name, value in found]
        return sorted(users, key=lambda user: (user.account, user.name))

    def put_user(self, user: StoredUser) -> None:
        self._draft.put(_place(user.account, user.name), msgspec.json.encode(user))

    def remove_user(self, user: StoredUser) -> None:
        self._draft.put(_place(user.account, user.name), None)


class _SharedKeyUses:
    """See KeyUses: a record for each key, which has the latest day of all hosts."""

    def __init__(self, records: SharedRecords) -> None:
        self._records = records

    def read(self) -> dict[str, int]:
        return _days_in(self._records.view)

    def write(self, days: Mapping[str, int], known: Collection[str]) -> None:
        there, view = self.read(), self._records.view
        later = {key_id for key_id, day in days.items() if day > there.get(key_id, -1)}
        ownerless = {key_id for key_id in view.below(_USES) if view.value(_KEYS + key_id) is None}
        todo = sorted(later | ownerless)
        for begin in range(0, len(todo), _USES_WRITTEN_AT_ONCE):
            batch = todo[begin : begin + _USES_WRITTEN_AT_ONCE]
            some = {each: days.get(each, -1) for each in batch}
            self._records.change(partial(_put, some))


def _days_in(view: View) -> dict[str, int]:
    found = view.below(_USES).items()
    return {key_id: day for key_id, value in found if (day := day_of(value)) is not None}


def _put(days: Mapping[str, int], draft: Draft) -> None:
    """Write the days of keys that were not used later on another host; those of keys that are gone
    go too."""
    for key_id, day in days.items():
        if draft.value(_KEYS + key_id) is None:
            _remove_use(draft, key_id)
            continue
        before = day_of(draft.value(_USES + key_id))
        if day > (-1 if before is None else before):
            draft.put(_USES + key_id, b"%d" % day)


def _remove_use(draft: Draft, key_id: str) -> None:
    """Remove a key's day of use; one that another host writes meanwhile is a conflict."""
    if draft.value(_USES + key_id) is not None:
        draft.put(_USES + key_id, None)


def _place(account: str, name: str) -> str:
    return f"{_USERS}{account}/{name}"


def _decoded(key: str, value: bytes | None, kind: type[T]) -> T | None:
    return None if value is None else _decode(key, value, kind)


def _decode(key: str, value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise IdentitiesUnreadable(f"{PREFIX}{key} cannot be read: {reason}") from error
