"""Keyring: the keys of a data folder or of a cluster, each wrapped under the one above it.

    master key           a file or the environment; never in here
      secrets            keys of secrets and digests
      versions           of each named key (KmsMasterKeyId); the newest wraps new data keys
        data keys        seal messages; a message names its key by number

So a new master key changes a few records, a rotated named key one, and no message is ever
rewritten. A process makes its own data keys, since only their maker counts their seals. They are
read when a message first needs them, and cached: a message may still be sealed under each of them.

Named keys belong to accounts (`key_owners.py`); the built-in key is the service's own. Here is what
requests read; `sqlite_keyring.py` and `shared_keyring.py` keep it, in a file and in etcd.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from auth.envelope import BUILT_IN_KEY, KEY_BYTES, NONCE_BYTES, DataKey, WrappingKey
from cluster.clock import Clock, Entropy
from cluster.keys.key_owners import Grant, NamedKey, check_grant, key_place
from cluster.keys.master_key import KeysUnusable

DIGESTS = "digests of ids"
CREDENTIALS = "credentials"
_DATA_KEYS_KEPT = 4096


class KeysAway(KeysUnusable):
    """Keys cannot be read or changed now; a retry may succeed."""


class Secrets:
    """Encrypts small secrets for the records beside the keys."""

    def __init__(self, wrapping: WrappingKey, entropy: Entropy) -> None:
        self._wrapping = wrapping
        self._entropy = entropy

    def encrypt(self, secret: bytes, purpose: str) -> bytes:
        """The secret in its stored form, bound to a purpose, which `decrypt` needs again."""
        return self._wrapping.wrap(secret, purpose, self._entropy.secret(NONCE_BYTES))

    def decrypt(self, stored: bytes, purpose: str) -> bytes:
        """The secret. Raises SealBroken."""
        return self._wrapping.unwrap(stored, purpose)


class Keyring(ABC):
    """The keys, by name and by number. Any thread may use it."""

    digest_key: bytes
    """Key of the hashes of group and deduplication ids."""
    secrets: Secrets
    writes_take_long = False
    """True if changes, and `new_data_key`, wait for other machines."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._lock = threading.RLock()
        self._wrapping: dict[int, tuple[NamedKey, WrappingKey]] = {}
        """By version."""
        self._keys: dict[str, NamedKey] = {}
        """By row."""
        self._names: dict[tuple[str, str], NamedKey] = {}
        """By account and name."""
        self._data_keys: OrderedDict[int, tuple[NamedKey, DataKey]] = OrderedDict()

    # -- read --------------------------------------------------------------------------------------

    def names(self) -> list[NamedKey]:
        """Every named key, including the built-in one, by account and name."""
        there = dict(self._names)  # a thread may be adding to them
        return [there[place] for place in sorted(there)]

    def find(self, reference: str, account: str) -> NamedKey | None:
        """The key of a KmsMasterKeyId for an account: one of its own, or of the account that an ARN
        names."""
        place = key_place(reference)
        owner = place.account or account
        found = self._names.get((owner, place.name)) or self._names.get(("", place.name))
        if found is None:
            there = list(self._keys.values())  # a thread may be adding to them
            found = next((key for key in there if key.key_id == place.name), None)
            if found is not None and found.account not in (owner, ""):
                return None
        return found

    def named(self, name: str, account: str | None = None) -> NamedKey:
        """The key of that name or id, of the given account or the only one with it. Raises
        KeyError."""
        there = [key for key in self.names() if name in (key.name, key.key_id)]
        own = [key for key in there if account is None or key.account in (account, "")]
        if len(own) != 1:
            raise KeyError(name)
        return own[0]

    @abstractmethod
    def close(self) -> None:
        """Let go of all resources."""

    @abstractmethod
    def reload_if_changed(self) -> bool:
        """Load the changes of another process; False if there are none. Takes microseconds.

        Raises sqlite3.Error, SealBroken; then the next call retries.
        """

    @abstractmethod
    def catch_up(self) -> None:
        """Wait until all is loaded that was changed before this call, but for what
        `reload_if_changed` finds. Blocks, in any thread. Raises KeysAway."""

    # -- named keys: changes raise SealBroken, sqlite3.Error, KeysAway if they cannot be made ------

    @abstractmethod
    def add(self, name: str, account: str) -> NamedKey:
        """Make a key of an account. Raises ValueError if the name is taken, SealBroken if the
        master key was changed meanwhile."""

    @abstractmethod
    def rotate(self, name: str, account: str | None = None) -> None:
        """Give a key a new version for new data keys; older ones stay readable.

        See `named`. Raises KeyError, and SealBroken if the master key was changed meanwhile.
        """

    @abstractmethod
    def rewrap(self, name: str, account: str | None = None) -> int:
        """Wrap all data keys of a named key under its newest version, and forget the others.
        Returns the number of records wrapped. Raises KeyError."""

    @abstractmethod
    def set_enabled(self, name: str, enabled: bool, account: str | None = None) -> None:
        """Refuse or allow the key's use. Raises KeyError, and ValueError for the built-in key."""

    @abstractmethod
    def grant(self, name: str, grant: Grant, account: str | None = None) -> None:
        """Let another account, or one user, use the key, replacing an earlier grant to it. Raises
        KeyError, ValueError."""

    @abstractmethod
    def revoke(self, name: str, grantee: str, account: str | None = None) -> None:
        """Revoke a grant. Raises KeyError, ValueError if there is none."""

    @abstractmethod
    def change_master(self, master: bytes, keep: Callable[[], None] = lambda: None) -> None:
        """Wrap everything under another master key, in one transaction; `keep` stores that key
        before it ends.

        Raises SealBroken, before `keep`, if another process changed it meanwhile.
        """

    # -- data keys ---------------------------------------------------------------------------------

    @abstractmethod
    def new_data_key(self, named: NamedKey) -> DataKey:
        """A key to seal with, durable before it is returned. Raises sqlite3.Error, SealBroken,
        KeysAway.

        It is wrapped under the version that is the newest of all: another process may have
        removed those known here.
        """

    @abstractmethod
    def data_key(self, number: int) -> tuple[NamedKey, DataKey]:
        """A data key and the named key it belongs to. Raises SealBroken if it is missing or cannot
        be unwrapped, and KeysAway if that cannot be said yet."""

    # -- for subclasses ----------------------------------------------------------------------------

    def _check_free(self, name: str, account: str) -> None:
        """Raise ValueError if an account has a key of that name."""
        if not self._names.keys().isdisjoint(((account, name), ("", name))):
            raise ValueError(f"there is a key {name} already")

    def _new_key_id(self) -> str:
        bits = f"{self._entropy.bits128():032x}"
        return "-".join((bits[:8], bits[8:12], bits[12:16], bits[16:20], bits[20:]))

    def _key_to_grant(self, name: str, grant: Grant, account: str | None) -> NamedKey:
        """The key that a grant is for. Raises KeyError, ValueError."""
        check_grant(grant)
        named = self.named(name, account)
        if not named.account:
            raise ValueError(f"{named.name} cannot be granted: it belongs to no account")
        return named

    def _key_to_revoke(self, name: str, grantee: str, account: str | None) -> NamedKey:
        """The key that a grant is taken back of. Raises KeyError, ValueError."""
        named = self.named(name, account)
        if grantee not in {grant.grantee for grant in named.grants}:
            raise ValueError(f"{named.name} is not granted to {grantee}")
        return named

    def _key_to_switch(self, name: str, account: str | None) -> NamedKey:
        """The key to enable or disable. Raises KeyError, ValueError."""
        named = self.named(name, account)
        if named.name == BUILT_IN_KEY:
            raise ValueError(f"{BUILT_IN_KEY} is always enabled")
        return named

    def _wrapped(self, wrapping: WrappingKey, secret: bytes, purpose: str) -> bytes:
        return wrapping.wrap(secret, purpose, self._entropy.secret(NONCE_BYTES))

    def _new_wrapped(self, wrapping: WrappingKey, purpose: str) -> bytes:
        """A new key for a purpose, wrapped."""
        return self._wrapped(wrapping, self._entropy.secret(KEY_BYTES), purpose)

    def _kept(self, number: int, named: NamedKey, key: DataKey) -> tuple[NamedKey, DataKey]:
        if len(self._data_keys) >= _DATA_KEYS_KEPT:
            self._data_keys.popitem(last=False)
        self._data_keys[number] = (named, key)
        return named, key

    def _now_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)


def data_key_of(version: int) -> str:
    """The purpose of a data key under a version."""
    return f"data key of version {version}"


def version_of(version: int) -> str:
    """The purpose of a version."""
    return f"version {version}"
