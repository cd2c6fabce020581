"""Users, their policies and access keys: the rules. Commands manage them; a running server sees
changes within a second.

They are kept by `sqlite_identities.py` on a single host, by `shared_identities.py` in a cluster.
Secrets are encrypted. Calls are synchronous: they happen at start, from the command line, and after
a change by another process, and each touches a few records.
"""

from __future__ import annotations

import re
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping

import msgspec

from auth.credentials import AccessKey, CredentialSet
from auth.envelope import SealBroken
from auth.identities import Identities, User
from auth.policy import NamedPolicy
from auth.policy_document import Kind, PolicyRefused, check_policy_of_user, read_policy
from cluster.clock import Clock, Entropy
from cluster.keys.identity_records import (
    IdentitiesUnreadable,
    IdentityRecords,
    IdentityRows,
    StoredKey,
    StoredUser,
)
from cluster.keys.keyring import Secrets

_NAME = re.compile(r"[A-Za-z0-9+=,.@_-]{1,64}")
_ID_RANDOM_BYTES = 10
_SECRET_BYTES = 30
_TOKEN_BYTES = 96
_PRINCIPAL_PREFIX = "AIDA"
_KEPT_AFTER_END_MS = 24 * 3600 * 1000
_REMOVED_MAX = 50
"""Keys removed by one transaction, each with its day of use: etcd has a limit."""


class IdentityStore:
    """The users and access keys of a data folder, or of a cluster. All methods may raise
    IdentitiesUnreadable."""

    def __init__(
        self, records: IdentityRecords, secrets: Secrets, clock: Clock, entropy: Entropy
    ) -> None:
        """`records` are closed with it."""
        self._records = records
        self._secrets = secrets
        self._clock = clock
        self._entropy = entropy

    def close(self) -> None:
        """Let go of all resources."""
        self._records.close()

    def changed(self) -> bool:
        """True if another process changed something since the last call. Takes microseconds."""
        return self._records.changed()

    def catch_up(self) -> None:
        """Wait until `changed` tells of all that was changed before this call. Blocks, in any
        thread."""
        self._records.catch_up()

    def look_again(self) -> None:
        """Make the next call of `changed` return True, since the change could not be read."""
        self._records.look_again()

    # -- access keys -------------------------------------------------------------------------------

    def all_keys(self) -> list[AccessKey]:
        """Every key, oldest first. Raises IdentitiesUnreadable if another keyring encrypted their
        secrets."""
        return [self._opened(key) for key in self._records.read().all_keys()]

    def key_uses(self) -> dict[str, int]:
        """The days on which keys were used last, see `key_uses.py`."""
        return self._records.uses.read()

    def note_uses(self, days: Mapping[str, int], known: Collection[str]) -> None:
        """Write later days of use; `known` are the ids of all keys. Blocks, in any thread."""
        self._records.uses.write(days, known)

    def credentials(self) -> CredentialSet:
        """The keys in the verifier's form."""
        return CredentialSet(self.all_keys())

    def add_key(
        self,
        account: str,
        user: User | None = None,
        *,
        principal: str | None = None,
        lifetime_s: float | None = None,
    ) -> AccessKey:
        """Make a key of a user, or of the account itself; later only `all_keys` shows its secret.

        `lifetime_s` is None for one that does not expire. Raises ValueError if the user is gone.
        """
        owner = principal if user is None else user.user_id
        key = self._new_key(account, owner, None if user is None else user.name, lifetime_s)
        return self._records.change(lambda rows: self._insert(rows, key))

    def _new_key(
        self, account: str, principal: str | None, user: str | None, lifetime_s: float | None
    ) -> AccessKey:
        identity = b32encode(self._entropy.secret(_ID_RANDOM_BYTES)).decode()
        return AccessKey(
            "AKIA" + identity,
            urlsafe_b64encode(self._entropy.secret(_SECRET_BYTES)).decode(),
            account,
            principal or _PRINCIPAL_PREFIX + identity,
            expires_at_ms=self._after(lifetime_s),
            user=user,
        )

    def add_first_key(self, account: str) -> AccessKey | None:
        """Make a key of the account, unless there are keys. Of several hosts one makes it."""
        key = self._new_key(account, None, None, None)

        def insert(rows: IdentityRows) -> AccessKey | None:
            if rows.all_keys():
                return None
            rows.note_first_key(key.access_key_id)
            return self._insert(rows, key)

        return self._records.change(insert)

    def add_session(self, account: str, user: User | None, lifetime_s: float) -> AccessKey:
        """Make a temporary key, whose requests must carry its session token. Forgets those that
        ended a day ago.

        Raises ValueError if the user is gone.
        """
        identity = b32encode(self._entropy.secret(_ID_RANDOM_BYTES)).decode()
        key = AccessKey(
            "ASIA" + identity,
            urlsafe_b64encode(self._entropy.secret(_SECRET_BYTES)).decode(),
            account,
            _PRINCIPAL_PREFIX + identity if user is None else user.user_id,
            session_token=urlsafe_b64encode(self._entropy.secret(_TOKEN_BYTES)).decode(),
            expires_at_ms=self._after(lifetime_s),
            user=None if user is None else user.name,
        )

        def insert(rows: IdentityRows) -> AccessKey:
            before_ms = self._now_ms() - _KEPT_AFTER_END_MS
            ended = [each.access_key_id for each in rows.all_keys() if _ended(each, before_ms)]
            for access_key_id in ended[:_REMOVED_MAX]:
                rows.remove_key(access_key_id)
            return self._insert(rows, key)

        return self._records.change(insert)

    def rotate_key(self, access_key_id: str, overlap_s: float) -> AccessKey | None:
        """Make a successor with the same lifetime; the old key ends after `overlap_s`, if not
        sooner.

        None if there is no key. Raises ValueError for a temporary key, which ends as planned; and
        if the key's user is gone: without a user, the successor would be the account's own.
        """

        def rotate(rows: IdentityRows) -> AccessKey | None:
            old = rows.key(access_key_id)
            if old is None:
                return None
            if old.session_token is not None:
                raise ValueError(f"{access_key_id} is temporary: make another session instead")
            new = self._insert(rows, self._successor(rows, old))
            if overlap_s <= 0:
                rows.put_key(msgspec.structs.replace(old, enabled=False))
            else:
                end_ms = self._now_ms() + int(overlap_s * 1000)
                ends = end_ms if old.expires_at_ms is None else min(old.expires_at_ms, end_ms)
                rows.put_key(msgspec.structs.replace(old, expires_at_ms=ends))
            return new

        return self._records.change(rotate)

    def _successor(self, rows: IdentityRows, old: StoredKey) -> AccessKey:
        lifetime_s = None
        if old.expires_at_ms is not None:
            lifetime_s = (old.expires_at_ms - old.created_at_ms) / 1000
        principal = old.principal
        if old.user is not None:
            user = rows.user(old.account, old.user)
            if user is None:
                raise _gone(old.user)
            principal = user.user_id
        return self._new_key(old.account, principal, old.user, lifetime_s)

    def set_key_enabled(self, access_key_id: str, enabled: bool) -> bool:
        """Refuse or allow a key from now on; False if there is no such key."""

        def change(rows: IdentityRows) -> bool:
            key = rows.key(access_key_id)
            if key is not None:
                rows.put_key(msgspec.structs.replace(key, enabled=enabled))
            return key is not None

        return self._records.change(change)

    def remove_key(self, access_key_id: str) -> bool:
        """Forget a key; False if there is no such key."""

        def change(rows: IdentityRows) -> bool:
            is_there = rows.key(access_key_id) is not None
            if is_there:
                rows.remove_key(access_key_id)
            return is_there

        return self._records.change(change)

    def declare_key(self, key: AccessKey) -> bool:
        """Store exactly this key, which is enabled and does not expire; False if it is there. One
        that was disabled, or given an end, stays so.

        Raises ValueError if its user is gone.
        """

        def change(rows: IdentityRows) -> bool:
            stored = rows.key(key.access_key_id)
            if stored is not None:
                there = self._opened(stored)
                if msgspec.structs.replace(there, enabled=True, expires_at_ms=None) == key:
                    return False
            self._insert(rows, key)
            return True

        return self._records.change(change)

    def _insert(self, rows: IdentityRows, key: AccessKey) -> AccessKey:
        if key.user is not None:
            user = rows.user(key.account, key.user)
            if user is None or user.user_id != key.principal:
                raise _gone(key.user)
        token = key.session_token
        rows.put_key(
            StoredKey(
                key.access_key_id,
                self._secrets.encrypt(key.secret_access_key.encode(), key.access_key_id),
                key.account,
                key.principal,
                self._now_ms(),
                key.user,
                key.enabled,
                None if token is None else self._secrets.encrypt(token.encode(), key.access_key_id),
                key.expires_at_ms,
            )
        )
        return key

    def _opened(self, stored: StoredKey) -> AccessKey:
        key_id, token = stored.access_key_id, stored.session_token
        try:
            return AccessKey(
                key_id,
                self._secrets.decrypt(stored.secret, key_id).decode(),
                stored.account,
                stored.principal,
                stored.enabled,
                self._secrets.decrypt(token, key_id).decode() if token else None,
                stored.expires_at_ms,
                stored.user,
            )
        except SealBroken as error:
            raise IdentitiesUnreadable(
                f"access key {key_id} was not stored under this folder's keys"
            ) from error

    # -- users -------------------------------------------------------------------------------------

    def stored(self) -> tuple[list[StoredUser], list[StoredKey]]:
        """Every user by account and name, and every key, oldest first, with the times of their
        making. Secrets stay encrypted."""
        rows = self._records.read()
        return rows.all_users(), rows.all_keys()

    def users(self) -> Identities:
        """Every user, with policies. Raises IdentitiesUnreadable."""
        return Identities(_user(stored) for stored in self._records.read().all_users())

    def add_user(self, account: str, name: str, tags: Mapping[str, str]) -> User:
        """Make a user without permissions. Raises ValueError if the name is taken, or is none."""
        if _NAME.fullmatch(name) is None:
            raise ValueError("a user's name must be 1 to 64 letters, digits or +=,.@_-")
        user_id = _PRINCIPAL_PREFIX + b32encode(self._entropy.secret(_ID_RANDOM_BYTES)).decode()
        stored = StoredUser(account, name, user_id, self._now_ms(), dict(tags))

        def change(rows: IdentityRows) -> User:
            if rows.user(account, name) is not None:
                raise ValueError(f"there is a user {name} already")
            rows.put_user(stored)
            return _user(stored)

        return self._records.change(change)

    def set_user_tags(self, user: User, tags: Mapping[str, str]) -> None:
        """Replace a user's tags."""
        self._change_user(user, lambda there: msgspec.structs.replace(there, tags=dict(tags)))

    def _change_user(self, user: User, changed: Callable[[StoredUser], StoredUser]) -> None:
        """Change a user that is still there."""

        def change(rows: IdentityRows) -> None:
            there = rows.user(user.account, user.name)
            if there is not None:
                rows.put_user(changed(there))

        self._records.change(change)

    def remove_user(self, user: User) -> None:
        """Forget a user with policies and keys."""

        def remove(rows: IdentityRows) -> bool:
            there = rows.user(user.account, user.name)
            owner = (user.account, user.name)
            keys = [key for key in rows.all_keys() if (key.account, key.user) == owner]
            for key in keys[:_REMOVED_MAX]:
                rows.remove_key(key.access_key_id)
            is_last = len(keys) <= _REMOVED_MAX
            if there is not None and is_last:
                rows.remove_user(there)
            return is_last

        while not self._records.change(remove):
            pass

    def put_policy(self, user: User, name: str, document: str) -> None:
        """Give a user a policy, replacing one of the same name. Raises PolicyRefused."""
        check_policy_of_user(document)
        self._change_user(
            user,
            lambda there: msgspec.structs.replace(
                there, policies={**there.policies, name: document}
            ),
        )

    def remove_policy(self, user: User, name: str) -> bool:
        """Remove a policy; False if there is none of this name."""

        def change(rows: IdentityRows) -> bool:
            there = rows.user(user.account, user.name)
            if there is None or name not in there.policies:
                return False
            left = {each: text for each, text in there.policies.items() if each != name}
            rows.put_user(msgspec.structs.replace(there, policies=left))
            return True

        return self._records.change(change)

    def policies(self, user: User) -> dict[str, str]:
        """A user's policies, name to text."""
        there = self._records.read().user(user.account, user.name)
        return {} if there is None else dict(sorted(there.policies.items()))

    # -- time --------------------------------------------------------------------------------------

    def _after(self, lifetime_s: float | None) -> int | None:
        return None if lifetime_s is None else self._now_ms() + int(lifetime_s * 1000)

    def _now_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)


def _ended(key: StoredKey, before_ms: int) -> bool:
    """True for a temporary key that ended before a time."""
    return (
        key.session_token is not None
        and key.expires_at_ms is not None
        and key.expires_at_ms < before_ms
    )


def _user(stored: StoredUser) -> User:
    """Raises IdentitiesUnreadable."""
    policies = []
    for name, document in sorted(stored.policies.items()):
        try:
            policies.append(NamedPolicy(name, read_policy(document, Kind.IDENTITY)))
        except PolicyRefused as error:
            reason = f"policy {name} of user {stored.name}: {error}"
            raise IdentitiesUnreadable(reason) from error
    return User(stored.account, stored.name, stored.user_id, stored.tags, tuple(policies))


def _gone(user: str | None) -> ValueError:
    return ValueError(f"there is no user {user} any more")
