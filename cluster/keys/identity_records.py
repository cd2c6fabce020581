"""Users and access keys as they are stored: in a file on a single host, in etcd in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import msgspec

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


class KeyUses(Protocol):
    """Days of use, see `key_uses.py`. All of it may raise IdentitiesUnreadable."""

    def read(self) -> dict[str, int]:
        """The days by key id, without keys of whose use nothing is known."""

    def write(self, days: Mapping[str, int], known: Collection[str]) -> None:
        """Write those that are later than before; `known` are the ids of all keys. Blocks."""


class IdentityRows(Protocol):
    """The users and keys at one moment, and changes of them."""

    def key(self, access_key_id: str) -> StoredKey | None:
        """The key with this id."""

    def all_keys(self) -> list[StoredKey]:
        """All keys, oldest first."""

    def put_key(self, key: StoredKey) -> None:
        """Write a key, whose user exists."""

    def remove_key(self, access_key_id: str) -> None:
        """Remove a key that exists."""

    def note_first_key(self, access_key_id: str) -> None:
        """Of several hosts that make the first key at once, let one succeed."""

    def user(self, account: str, name: str) -> StoredUser | None:
        """The user of that name."""

    def all_users(self) -> list[StoredUser]:
        """All users, by account and name."""

    def put_user(self, user: StoredUser) -> None:
        """Write a user."""

    def remove_user(self, user: StoredUser) -> None:
        """Remove a user; the keys are removed one by one."""


class IdentityRecords(Protocol):
    """Keeps users and keys. All of it may raise IdentitiesUnreadable."""

    uses: KeyUses

    def close(self) -> None:
        """Let go of all resources."""

    def changed(self) -> bool:
        """True if another process changed something since the last call. Takes microseconds."""

    def catch_up(self) -> None:
        """Wait until `changed` and `read` show all that was changed before this call."""

    def look_again(self) -> None:
        """Make the next call of `changed` return True, since the change could not be read."""

    def read(self) -> IdentityRows:
        """For reading only."""

    def change(self, decide: Callable[[IdentityRows], T]) -> T:
        """Make in one transaction the changes that `decide` makes, which may be called again."""
