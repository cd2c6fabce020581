"""Users, their policies and access keys: the rules. Secrets are encrypted.

Reads are from the view of the records (`identity_records.py`); a change is decided and committed
(`cluster/coordination/records.py`), and then every host that watches them knows of it.
"""

from __future__ import annotations

import re
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec

from auth.credentials import AccessKey, CredentialSet
from auth.envelope import SealBroken
from auth.identities import Identities, User
from auth.policy import NamedPolicy
from auth.policy_document import Kind, PolicyRefused, check_policy_of_user, read_policy
from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import Coordination
from cluster.coordination.records import Draft, Records, View
from cluster.keys.identity_records import (
    CHALLENGES,
    KEYS,
    SESSIONS,
    USES,
    IdentitiesUnreadable,
    IdentityRows,
    StoredKey,
    StoredUser,
    days_in,
)
from cluster.keys.keyring import Secrets
from cluster.keys.session_store import SessionStore

_NAME = re.compile(r"[A-Za-z0-9+=,.@_-]{1,64}")
_ID_RANDOM_BYTES = 10
_SECRET_BYTES = 30
_TOKEN_BYTES = 96
_PRINCIPAL_PREFIX = "AIDA"
_KEPT_AFTER_END_MS = 24 * 3600 * 1000
_KEYS_MAX = 50
"""Keys that one transaction removes, or notes the use of: etcd has a limit."""

T = TypeVar("T")


class IdentityStore:
    """The users and access keys of a host, or of a cluster. All methods may raise
    IdentitiesUnreadable."""

    def __init__(self, records: Records, secrets: Secrets, clock: Clock, entropy: Entropy) -> None:
        """Call `open` instead."""
        self._records = records
        self._secrets = secrets
        self._clock = clock
        self._entropy = entropy
        self.sessions = SessionStore(records, clock, entropy)
        self._opened_keys: dict[str, tuple[StoredKey, AccessKey]] = {}
        """Keys with their secrets in the clear, by id."""

    @classmethod
    async def open(
        cls, coordination: Coordination, secrets: Secrets, clock: Clock, entropy: Entropy
    ) -> IdentityStore:
        """Those in these records, which are closed with it, also if this fails."""
        records = await Records.open(coordination, IdentitiesUnreadable)
        return cls(records, secrets, clock, entropy)

    async def close(self) -> None:
        """Close the records."""
        await self._records.close()

    async def catch_up(self) -> None:
        """Wait until all is known that was changed before this call."""
        await self._records.catch_up()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call it when users or keys were changed, here or elsewhere; days of use and sessions are
        no news."""

        def on_view(view: View, changed: Collection[str]) -> None:
            if any(not key.startswith((USES, SESSIONS, CHALLENGES)) for key in changed):
                listener()

        self._records.subscribe(on_view)

    def _rows(self) -> IdentityRows:
        return IdentityRows(Draft(self._records.view))

    async def _change(self, decide: Callable[[IdentityRows], T]) -> T:
        return await self._records.change(lambda draft: decide(IdentityRows(draft)))

    # -- access keys -------------------------------------------------------------------------------

    def all_keys(self) -> list[AccessKey]:
        """Every key, oldest first. Raises IdentitiesUnreadable if another keyring encrypted their
        secrets."""
        before, opened = self._opened_keys, {}
        for stored in self._rows().all_keys():
            known = before.get(stored.access_key_id)
            if known is None or known[0] != stored:
                known = stored, self._opened(stored)
            opened[stored.access_key_id] = known
        self._opened_keys = opened
        return [key for _, key in opened.values()]

    def key_uses(self) -> dict[str, int]:
        """The days on which keys were used last, see `day_of`."""
        return days_in(self._records.view)

    async def note_uses(self, days: Mapping[str, int]) -> None:
        """Write later days of use, and forget those of keys that are gone."""
        there, view = self.key_uses(), self._records.view
        later = {key_id for key_id, day in days.items() if day > there.get(key_id, -1)}
        ownerless = {key_id for key_id in view.below(USES) if view.value(KEYS + key_id) is None}
        todo = sorted(later | ownerless)
        for begin in range(0, len(todo), _KEYS_MAX):
            batch = todo[begin : begin + _KEYS_MAX]

            def put(rows: IdentityRows, batch: list[str] = batch) -> None:
                for key_id in batch:
                    rows.put_use(key_id, days.get(key_id, -1))

            await self._change(put)

    def credentials(self) -> CredentialSet:
        """The keys in the verifier's form."""
        return CredentialSet(self.all_keys())

    async def add_key(
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
        return await self._change(lambda rows: self._insert(rows, key))

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

    async def add_first_key(self, account: str) -> AccessKey | None:
        """Make a key of the account, unless there are keys. Of several hosts one makes it."""
        key = self._new_key(account, None, None, None)

        def insert(rows: IdentityRows) -> AccessKey | None:
            if rows.all_keys():
                return None
            rows.note_first_key(key.access_key_id)
            return self._insert(rows, key)

        return await self._change(insert)

    async def add_session(self, account: str, user: User | None, lifetime_s: float) -> AccessKey:
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
            for access_key_id in ended[:_KEYS_MAX]:
                rows.remove_key(access_key_id)
            return self._insert(rows, key)

        return await self._change(insert)

    async def rotate_key(self, access_key_id: str, overlap_s: float) -> AccessKey | None:
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

        return await self._change(rotate)

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

    async def set_key_enabled(self, access_key_id: str, enabled: bool) -> bool:
        """Refuse or allow a key from now on; False if there is no such key."""

        def change(rows: IdentityRows) -> bool:
            key = rows.key(access_key_id)
            if key is not None:
                rows.put_key(msgspec.structs.replace(key, enabled=enabled))
            return key is not None

        return await self._change(change)

    async def remove_key(self, access_key_id: str) -> bool:
        """Forget a key; False if there is no such key."""

        def change(rows: IdentityRows) -> bool:
            is_there = rows.key(access_key_id) is not None
            if is_there:
                rows.remove_key(access_key_id)
            return is_there

        return await self._change(change)

    async def declare_key(self, key: AccessKey) -> bool:
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

        return await self._change(change)

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
        rows = self._rows()
        return rows.all_users(), rows.all_keys()

    def users(self) -> Identities:
        """Every user, with policies. Raises IdentitiesUnreadable."""
        return Identities(_user(stored) for stored in self._rows().all_users())

    async def add_user(self, account: str, name: str, tags: Mapping[str, str]) -> User:
        """Make a user without permissions. Raises ValueError if the name is taken, or is none."""
        _check_name(name)
        stored = StoredUser(account, name, self._new_user_id(), self._now_ms(), dict(tags))

        def change(rows: IdentityRows) -> User:
            if rows.user(account, name) is not None:
                raise ValueError(f"there is a user {name} already")
            rows.put_user(stored)
            return _user(stored)

        return await self._change(change)

    async def admit(
        self,
        owner: tuple[str, str],
        subject: str,
        names: Collection[str],
        policies: Mapping[str, str] | None,
    ) -> User | None:
        """The user (account and name) of a subject, made the first time; these policies replace
        those of these `names`.

        With None no user is made, and an existing one loses them. Raises ValueError if the user
        belongs to another subject, or the name is invalid.
        """
        account, name = owner
        _check_name(name)
        new = StoredUser(account, name, self._new_user_id(), self._now_ms(), subject=subject)

        def change(rows: IdentityRows) -> User | None:
            there = rows.user(account, name)
            if there is None and policies is None:
                return None
            there = there or new
            if there.subject != subject:
                raise ValueError(f"the user {name} is not the one of {subject}")
            kept = {each: text for each, text in there.policies.items() if each not in names}
            wanted = msgspec.structs.replace(there, policies={**kept, **(policies or {})})
            if wanted != rows.user(account, name):
                rows.put_user(wanted)
            return _user(wanted)

        return await self._change(change)

    def _new_user_id(self) -> str:
        return _PRINCIPAL_PREFIX + b32encode(self._entropy.secret(_ID_RANDOM_BYTES)).decode()

    async def set_user_tags(self, user: User, tags: Mapping[str, str]) -> None:
        """Replace a user's tags."""
        await self._change_user(user, lambda there: msgspec.structs.replace(there, tags=dict(tags)))

    async def _change_user(self, user: User, changed: Callable[[StoredUser], StoredUser]) -> None:
        """Change a user that is still there."""

        def change(rows: IdentityRows) -> None:
            there = rows.user(user.account, user.name)
            if there is not None:
                rows.put_user(changed(there))

        await self._change(change)

    async def remove_user(self, user: User) -> None:
        """Forget a user with policies and keys."""

        def remove(rows: IdentityRows) -> bool:
            there = rows.user(user.account, user.name)
            owner = (user.account, user.name)
            keys = [key for key in rows.all_keys() if (key.account, key.user) == owner]
            for key in keys[:_KEYS_MAX]:
                rows.remove_key(key.access_key_id)
            is_last = len(keys) <= _KEYS_MAX
            if there is not None and is_last:
                rows.remove_user(there)
            return is_last

        while not await self._change(remove):
            pass

    async def put_policy(self, user: User, name: str, document: str) -> None:
        """Give a user a policy, replacing one of the same name. Raises PolicyRefused."""
        check_policy_of_user(document)
        await self._change_user(
            user,
            lambda there: msgspec.structs.replace(
                there, policies={**there.policies, name: document}
            ),
        )

    async def replace_policies(
        self, user: User, names: Collection[str], policies: Mapping[str, str]
    ) -> None:
        """Remove the policies of these names and put others in their place, in one change. Raises
        PolicyRefused."""
        for document in policies.values():
            check_policy_of_user(document)

        def changed(there: StoredUser) -> StoredUser:
            kept = {name: text for name, text in there.policies.items() if name not in names}
            return msgspec.structs.replace(there, policies={**kept, **policies})

        await self._change_user(user, changed)

    async def remove_policy(self, user: User, name: str) -> bool:
        """Remove a policy; False if there is none of this name."""

        def change(rows: IdentityRows) -> bool:
            there = rows.user(user.account, user.name)
            if there is None or name not in there.policies:
                return False
            left = {each: text for each, text in there.policies.items() if each != name}
            rows.put_user(msgspec.structs.replace(there, policies=left))
            return True

        return await self._change(change)

    def policies(self, user: User) -> dict[str, str]:
        """A user's policies, name to text."""
        there = self._rows().user(user.account, user.name)
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


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a user's name must be 1 to 64 letters, digits or +=,.@_-")


def _gone(user: str | None) -> ValueError:
    return ValueError(f"there is no user {user} any more")
