"""The keyring of a cluster, in records that its hosts share.

root                    the root key, wrapped under the master key; wraps secrets and versions
secrets/PURPOSE         a secret
keys/ACCOUNT/NAME       a named key with its versions and grants
data/NUMBER             a block of data keys, wrapped under a version
ids/version, ids/block  the numbers issued last

So a new master key changes one record. A process takes a block of numbers at a time, and derives
its data keys from the block's secret and their numbers: etcd holds all records in memory, and each
host makes a data key for each key in use every few minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from auth.envelope import BUILT_IN_KEY, KEY_BYTES, DataKey, SealBroken, WrappingKey, derived_key
from cluster.coordination.shared_records import Draft, SharedRecords, View
from cluster.keys.key_owners import Grant, NamedKey, policy_of
from cluster.keys.keyring import (
    CREDENTIALS,
    DIGESTS,
    Keyring,
    KeysAway,
    Secrets,
    data_key_of,
    version_of,
)
from cluster.keys.master_key import KeysUnusable, WrongMasterKey
from cluster.shards.clock import Clock, Entropy

PREFIX = "keyring/"
"""Prefix of all these records among those of the cluster."""
BLOCK = 1024
"""Data keys of a block. Stored: a number tells its block by it."""
_ROOT, _SECRETS, _KEYS, _DATA = "root", "secrets/", "keys/", "data/"
_VERSION, _BLOCK = "version", "block"
"""Counters."""
_REWRAPPED_MAX = 100
"""Blocks wrapped anew by one transaction: etcd has a limit."""

T = TypeVar("T")


class StoredNamedKey(msgspec.Struct, frozen=True):
    """A named key."""

    key_id: str
    created_at_ms: int
    enabled: bool
    versions: dict[int, bytes]
    """Wrapped; the newest has the highest number."""
    grants: dict[str, tuple[str, ...]] = {}
    """Operations by grantee."""


class StoredBlock(msgspec.Struct, frozen=True):
    """A block of data keys."""

    version: int
    wrapped: bytes
    created_at_ms: int


class _Block:
    """The block from which this process makes data keys under one named key."""

    def __init__(self, number: int, version: int, secret: bytes) -> None:
        self.version = version
        self.secret = secret
        self._next = _first_in(number)
        self._end = self._next + BLOCK

    def next_key(self) -> DataKey | None:
        """A data key that was never issued before; None if all were."""
        number, self._next = self._next, self._next + 1
        return DataKey(number, derived_key(self.secret, number)) if number < self._end else None


class SharedKeyring(Keyring):
    """See Keyring. `data_key` never waits on the thread of an event loop."""

    writes_take_long = True

    def __init__(
        self,
        records: SharedRecords,
        master: bytes,
        clock: Clock,
        entropy: Entropy,
        *,
        founds: bool = True,
    ) -> None:
        """`records` raise KeysAway, and are closed with this. With `founds` it makes the keys of a
        new cluster.

        Raises KeysUnusable.
        """
        super().__init__(clock, entropy)
        self._records = records
        self._master = WrappingKey(master)
        self._blocks: dict[str, _Block] = {}
        """By row."""
        self._sought: set[int] = set()
        """Blocks that are being read, since the watch has not brought them yet."""
        self._missing: set[int] = set()
        """Blocks that were read and not found."""
        self._log = structlog.get_logger("keyring")
        try:
            if founds:
                records.change(self._found)
            self._begin()
        except BaseException:
            records.close()
            raise

    def _begin(self) -> None:
        view = self._records.view
        wrapped = view.value(_ROOT)
        if wrapped is None:
            raise KeysUnusable("the cluster has no keys yet: start one of its hosts")
        try:
            self._root = WrappingKey(self._master.unwrap(wrapped, _ROOT))
        except SealBroken as error:
            raise WrongMasterKey("the cluster's keys are not under this master key") from error
        try:
            self.digest_key = self._secret(view, DIGESTS)
            self.secrets = Secrets(WrappingKey(self._secret(view, CREDENTIALS)), self._entropy)
            self._load(view)
        except SealBroken as error:
            raise KeysUnusable(f"cannot read the cluster's keys: {error}") from error
        self._records.attach(self._take_over)
        self._reported = view.below(_KEYS)
        """Named keys as they were reported last."""

    def _found(self, draft: Draft) -> None:
        """Make the keys of a new cluster; of several hosts one does."""
        if draft.value(_ROOT) is not None:
            return
        secret = self._entropy.secret(KEY_BYTES)
        root = WrappingKey(secret)
        draft.put(_ROOT, self._wrapped(self._master, secret, _ROOT))
        for purpose in (DIGESTS, CREDENTIALS):
            draft.put(_SECRETS + purpose, self._new_wrapped(root, purpose))
        self._put_new_key(draft, root, _place("", BUILT_IN_KEY))

    def _secret(self, view: View, purpose: str) -> bytes:
        wrapped = view.value(_SECRETS + purpose)
        if wrapped is None:
            raise KeysUnusable(f"the cluster's key for {purpose} is missing")
        return self._root.unwrap(wrapped, purpose)

    def close(self) -> None:
        """See Keyring."""
        self._records.close()

    # -- named keys --------------------------------------------------------------------------------

    def add(self, name: str, account: str) -> NamedKey:
        """See Keyring."""
        row = _place(account, name)

        def add(draft: Draft) -> None:
            self._check_free(name, account)
            self._put_new_key(draft, self._root, row)

        self._records.change(add)
        return self._shown(row)

    def _shown(self, row: str) -> NamedKey:
        named = self._keys.get(row)
        if named is None:
            raise KeysAway("a change is not reported yet")
        return named

    def _put_new_key(self, draft: Draft, root: WrappingKey, row: str) -> None:
        version = draft.next_number(_VERSION)
        versions = {version: self._new_wrapped(root, version_of(version))}
        _put(draft, row, StoredNamedKey(self._new_key_id(), self._now_ms(), True, versions))

    def _change(self, row: str, changed: Callable[[Draft, StoredNamedKey], StoredNamedKey]) -> None:
        self._records.change(lambda draft: _put(draft, row, changed(draft, _stored(draft, row))))

    def rotate(self, name: str, account: str | None = None) -> None:
        """See Keyring."""

        def rotated(draft: Draft, stored: StoredNamedKey) -> StoredNamedKey:
            version = draft.next_number(_VERSION)
            wrapped = self._new_wrapped(self._root, version_of(version))
            return msgspec.structs.replace(stored, versions={**stored.versions, version: wrapped})

        self._change(self.named(name, account).row, rotated)

    def set_enabled(self, name: str, enabled: bool, account: str | None = None) -> None:
        """See Keyring."""
        row = self._key_to_switch(name, account).row
        self._change(row, lambda _, stored: msgspec.structs.replace(stored, enabled=enabled))

    def grant(self, name: str, grant: Grant, account: str | None = None) -> None:
        """See Keyring."""
        operations = tuple(sorted(set(grant.operations)))

        def granted(draft: Draft, stored: StoredNamedKey) -> StoredNamedKey:
            grants = {**stored.grants, grant.grantee: operations}
            return msgspec.structs.replace(stored, grants=grants)

        self._change(self._key_to_grant(name, grant, account).row, granted)

    def revoke(self, name: str, grantee: str, account: str | None = None) -> None:
        """See Keyring."""

        def revoked(draft: Draft, stored: StoredNamedKey) -> StoredNamedKey:
            grants = {each: what for each, what in stored.grants.items() if each != grantee}
            return msgspec.structs.replace(stored, grants=grants)

        self._change(self._key_to_revoke(name, grantee, account).row, revoked)

    def rewrap(self, name: str, account: str | None = None) -> int:
        """See Keyring. Wraps blocks, some at a time; a version is forgotten when none is left."""
        row, count = self.named(name, account).row, 0
        while True:
            rewrapped, is_done = self._records.change(lambda draft: self._rewrap(draft, row))
            count += rewrapped
            if is_done:
                return count

    def _rewrap(self, draft: Draft, row: str) -> tuple[int, bool]:
        """Wrap some blocks anew. Returns their number, and True if these were all: a view with the
        newest version has every block under earlier ones."""
        stored = _stored(draft, row)
        newest = max(stored.versions)
        below = draft.view.below(_DATA).items()
        blocks = {number: _decoded(value, StoredBlock) for number, value in below}
        older = stored.versions.keys() - {newest}
        todo = [number for number, block in blocks.items() if block.version in older]
        ciphers = {version: self._cipher(stored, version) for version in stored.versions}
        for number in todo[:_REWRAPPED_MAX]:
            block = blocks[number]
            secret = ciphers[block.version].unwrap(block.wrapped, data_key_of(block.version))
            again = self._wrapped(ciphers[newest], secret, data_key_of(newest))
            moved = msgspec.structs.replace(block, version=newest, wrapped=again)
            draft.put(_DATA + number, msgspec.json.encode(moved))
        is_done = len(todo) <= _REWRAPPED_MAX
        if is_done and older:
            kept = {newest: stored.versions[newest]}
            _put(draft, row, msgspec.structs.replace(stored, versions=kept))
        return len(todo[:_REWRAPPED_MAX]), is_done

    def _cipher(self, stored: StoredNamedKey, version: int) -> WrappingKey:
        return WrappingKey(self._root.unwrap(stored.versions[version], version_of(version)))

    def change_master(self, master: bytes, keep: Callable[[], None] = lambda: None) -> None:
        """See Keyring. Running hosts go on: they have the root key, which stays."""
        new = WrappingKey(master)

        def change(draft: Draft) -> None:
            wrapped = draft.value(_ROOT)
            assert wrapped is not None
            secret = self._master.unwrap(wrapped, _ROOT)
            keep()
            draft.put(_ROOT, self._wrapped(new, secret, _ROOT))

        self._records.refresh()
        self._records.change(change)
        self._master = new

    # -- data keys ---------------------------------------------------------------------------------

    def new_data_key(self, named: NamedKey) -> DataKey:
        """See Keyring. Durable is its block."""
        while True:
            with self._lock:
                block = self._blocks.get(named.row)
                is_current = block is not None and block.version == named.version
                key = block.next_key() if block is not None and is_current else None
                if key is not None:
                    return self._kept(key.number, named, key)[1]
            made = self._records.change(lambda draft: self._put_new_block(draft, named.row))
            with self._lock:
                self._blocks[named.row] = made

    def _put_new_block(self, draft: Draft, row: str) -> _Block:
        stored = _stored(draft, row)
        version = max(stored.versions)
        number = draft.next_number(_BLOCK)
        secret = self._entropy.secret(KEY_BYTES)
        wrapped = self._wrapped(self._cipher(stored, version), secret, data_key_of(version))
        block = StoredBlock(version, wrapped, self._now_ms())
        draft.put(f"{_DATA}{number}", msgspec.json.encode(block))
        return _Block(number, version, secret)

    def data_key(self, number: int) -> tuple[NamedKey, DataKey]:
        """See Keyring."""
        known = self._data_keys.get(number)
        if known is not None:
            return known
        found = self._find_data_key(number)
        if found is None:
            self._seek(_block_of(number))
            found = self._find_data_key(number)
        if found is None:
            raise SealBroken(f"there is no data key {number}")
        with self._lock:
            return self._kept(number, *found)

    def _find_data_key(self, number: int) -> tuple[NamedKey, DataKey] | None:
        """A data key from the present records; None if its block or its version is not there."""
        value = self._records.view.value(f"{_DATA}{_block_of(number)}")
        block = None if value is None else _decoded(value, StoredBlock)
        wrapping = None if block is None else self._wrapping.get(block.version)
        if block is None or wrapping is None:
            return None
        secret = wrapping[1].unwrap(block.wrapped, data_key_of(block.version))
        return wrapping[0], DataKey(number, derived_key(secret, number))

    def _seek(self, block: int) -> None:
        """Read the records, since the watch may be late. Raises KeysAway where that must not be
        waited for."""
        if block in self._missing:
            return
        if not _is_on_event_loop():
            self._records.refresh()
            return
        if block not in self._sought:
            self._sought.add(block)
            self._records.refresh_soon(lambda was_read: self._was_sought(block, was_read))
        raise KeysAway(f"block {block} of data keys is not here yet")

    def _was_sought(self, block: int, was_read: bool) -> None:
        if was_read:
            self._missing.add(block)  # or it is there now, and looked for first
        self._sought.discard(block)

    # -- the records -------------------------------------------------------------------------------

    def reload_if_changed(self) -> bool:
        """See Keyring. Keys are taken over as the watch reports them; new blocks are no news."""
        if not self._records.changed():
            return False
        before, self._reported = self._reported, self._records.view.below(_KEYS)
        return self._reported != before

    def _take_over(self, view: View) -> None:
        try:
            self._load(view)
        except SealBroken as error:
            self._log.error("keyring_unreadable", error=str(error))

    def _load(self, view: View) -> None:
        """Load the named keys and their versions. Raises SealBroken."""
        with self._lock:
            there: set[int] = set()
            for row, value in view.below(_KEYS).items():
                stored = _decoded(value, StoredNamedKey)
                named = self._named(row, stored)
                for version in stored.versions:
                    if version not in self._wrapping:
                        self._wrapping[version] = named, self._cipher(stored, version)
                there.update(stored.versions)
                named.version, named.versions = max(stored.versions), len(stored.versions)
            for version in self._wrapping.keys() - there:
                del self._wrapping[version]

    def _named(self, row: str, stored: StoredNamedKey) -> NamedKey:
        """The named key of a record, brought up to date in place: data keys refer to it."""
        account, name = row.split("/", 1)
        named = self._keys.get(row)
        if named is None or named.key_id != stored.key_id:
            named = NamedKey(name, stored.key_id, row, account)
            named.created_at_ms = stored.created_at_ms
            self._keys[row] = self._names[account, name] = named
        named.enabled = stored.enabled
        named.grants = tuple(Grant(*each) for each in sorted(stored.grants.items()))
        named.policy = policy_of(named.grants)
        return named


def _place(account: str, name: str) -> str:
    return f"{account}/{name}"


def _put(draft: Draft, row: str, stored: StoredNamedKey) -> None:
    draft.put(_KEYS + row, msgspec.json.encode(stored))


def _stored(draft: Draft, row: str) -> StoredNamedKey:
    value = draft.value(_KEYS + row)
    if value is None:
        raise KeysAway(f"the record of {row} is gone")
    return _decoded(value, StoredNamedKey)


def _decoded(value: bytes, kind: type[T]) -> T:
    """Raises SealBroken."""
    try:
        return msgspec.json.decode(value, type=kind)
    except ValueError as error:
        raise SealBroken(" ".join(str(error).split())) from error


def _block_of(number: int) -> int:
    return (number - 1) // BLOCK + 1


def _first_in(block: int) -> int:
    return (block - 1) * BLOCK + 1


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
