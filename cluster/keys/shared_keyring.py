"""The keyring of a cluster, in records that its hosts share (`shared_key_records.py`).

A new master key changes one record. A process takes a block of numbers at a time, and derives its
data keys from the block's secret and their numbers: etcd holds all records in memory, and each host
makes a data key for each key in use every few minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from auth.envelope import BUILT_IN_KEY, KEY_BYTES, DataKey, SealBroken, WrappingKey, derived_key
from cluster.clock import Clock, Entropy
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
from cluster.keys.shared_key_records import (
    BLOCKS,
    DATA,
    KEYS,
    ROOT,
    SECRETS,
    VERSIONS,
    OwnBlock,
    StoredBlock,
    StoredNamedKey,
    block_of,
    decoded,
    put_named_key,
    row_of,
    stored_named_key,
)

_REWRAPPED_MAX = 100
"""Blocks wrapped anew by one transaction: etcd has a limit."""


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
        self._blocks: dict[str, OwnBlock] = {}
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
        wrapped = view.value(ROOT)
        if wrapped is None:
            raise KeysUnusable("the cluster has no keys yet: start one of its hosts")
        try:
            self._root = WrappingKey(self._master.unwrap(wrapped, ROOT))
        except SealBroken as error:
            raise WrongMasterKey("the cluster's keys are not under this master key") from error
        try:
            self.digest_key = self._secret(view, DIGESTS)
            self.secrets = Secrets(WrappingKey(self._secret(view, CREDENTIALS)), self._entropy)
            self._load(view)
        except SealBroken as error:
            raise KeysUnusable(f"cannot read the cluster's keys: {error}") from error
        self._records.attach(self._take_over)
        self._reported = view.below(KEYS)
        """Named keys as they were reported last."""

    def _found(self, draft: Draft) -> None:
        """Make the keys of a new cluster; of several hosts one does."""
        if draft.value(ROOT) is not None:
            return
        secret = self._entropy.secret(KEY_BYTES)
        root = WrappingKey(secret)
        draft.put(ROOT, self._wrapped(self._master, secret, ROOT))
        for purpose in (DIGESTS, CREDENTIALS):
            draft.put(SECRETS + purpose, self._new_wrapped(root, purpose))
        self._put_new_key(draft, root, row_of("", BUILT_IN_KEY))

    def _secret(self, view: View, purpose: str) -> bytes:
        wrapped = view.value(SECRETS + purpose)
        if wrapped is None:
            raise KeysUnusable(f"the cluster's key for {purpose} is missing")
        return self._root.unwrap(wrapped, purpose)

    def close(self) -> None:
        """See Keyring."""
        self._records.close()

    # -- named keys --------------------------------------------------------------------------------

    def add(self, name: str, account: str) -> NamedKey:
        """See Keyring."""
        row = row_of(account, name)

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
        version = draft.next_number(VERSIONS)
        versions = {version: self._new_wrapped(root, version_of(version))}
        put_named_key(
            draft, row, StoredNamedKey(self._new_key_id(), self._now_ms(), True, versions)
        )

    def _change(self, row: str, changed: Callable[[Draft, StoredNamedKey], StoredNamedKey]) -> None:
        self._records.change(
            lambda draft: put_named_key(draft, row, changed(draft, stored_named_key(draft, row)))
        )

    def rotate(self, name: str, account: str | None = None) -> None:
        """See Keyring."""

        def rotated(draft: Draft, stored: StoredNamedKey) -> StoredNamedKey:
            version = draft.next_number(VERSIONS)
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
        stored = stored_named_key(draft, row)
        newest = max(stored.versions)
        below = draft.view.below(DATA).items()
        blocks = {number: decoded(value, StoredBlock) for number, value in below}
        older = stored.versions.keys() - {newest}
        todo = [number for number, block in blocks.items() if block.version in older]
        ciphers = {version: self._cipher(stored, version) for version in stored.versions}
        for number in todo[:_REWRAPPED_MAX]:
            block = blocks[number]
            secret = ciphers[block.version].unwrap(block.wrapped, data_key_of(block.version))
            again = self._wrapped(ciphers[newest], secret, data_key_of(newest))
            moved = msgspec.structs.replace(block, version=newest, wrapped=again)
            draft.put(DATA + number, msgspec.json.encode(moved))
        is_done = len(todo) <= _REWRAPPED_MAX
        if is_done and older:
            kept = {newest: stored.versions[newest]}
            put_named_key(draft, row, msgspec.structs.replace(stored, versions=kept))
        return len(todo[:_REWRAPPED_MAX]), is_done

    def _cipher(self, stored: StoredNamedKey, version: int) -> WrappingKey:
        return WrappingKey(self._root.unwrap(stored.versions[version], version_of(version)))

    def change_master(self, master: bytes, keep: Callable[[], None] = lambda: None) -> None:
        """See Keyring. Running hosts go on: they have the root key, which stays."""
        new = WrappingKey(master)

        def change(draft: Draft) -> None:
            wrapped = draft.value(ROOT)
            assert wrapped is not None
            secret = self._master.unwrap(wrapped, ROOT)
            keep()
            draft.put(ROOT, self._wrapped(new, secret, ROOT))

        self._records.refresh()
        self._records.change(change)
        self._master = new

    # -- data keys ---------------------------------------------------------------------------------

    def new_data_key(self, named: NamedKey) -> DataKey:
        """See Keyring. Durable is its block."""
        with self._lock:
            block = self._blocks.get(named.row)
            is_current = block is not None and block.version == named.version
            key = block.next_key() if block is not None and is_current else None
        if key is None:
            block = self._records.change(lambda draft: self._put_new_block(draft, named.row))
            key = block.next_key()
        assert block is not None
        assert key is not None
        with self._lock:
            self._blocks[named.row] = block
            return self._kept(key.number, named, key)[1]

    def _put_new_block(self, draft: Draft, row: str) -> OwnBlock:
        stored = stored_named_key(draft, row)
        version = max(stored.versions)
        number = draft.next_number(BLOCKS)
        secret = self._entropy.secret(KEY_BYTES)
        wrapped = self._wrapped(self._cipher(stored, version), secret, data_key_of(version))
        block = StoredBlock(version, wrapped, self._now_ms())
        draft.put(f"{DATA}{number}", msgspec.json.encode(block))
        return OwnBlock(number, version, secret)

    def data_key(self, number: int) -> tuple[NamedKey, DataKey]:
        """See Keyring."""
        known = self._data_keys.get(number)
        if known is not None:
            return known
        found = self._find_data_key(number)
        if found is None:
            self._seek(block_of(number))
            found = self._find_data_key(number)
        if found is None:
            raise SealBroken(f"there is no data key {number}")
        with self._lock:
            return self._kept(number, *found)

    def _find_data_key(self, number: int) -> tuple[NamedKey, DataKey] | None:
        """A data key from the present records; None if its block or its version is not there."""
        value = self._records.view.value(f"{DATA}{block_of(number)}")
        block = None if value is None else decoded(value, StoredBlock)
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
        if was_read and self._records.view.value(f"{DATA}{block}") is None:
            self._missing.add(block)
        self._sought.discard(block)

    # -- the records -------------------------------------------------------------------------------

    def reload_if_changed(self) -> bool:
        """See Keyring. Keys are taken over as the watch reports them; new blocks are no news."""
        if not self._records.changed():
            return False
        before, self._reported = self._reported, self._records.view.below(KEYS)
        return self._reported != before

    def catch_up(self) -> None:
        """See Keyring."""
        self._records.catch_up()

    def _take_over(self, view: View) -> None:
        try:
            self._load(view)
        except SealBroken as error:
            self._log.error("keyring_unreadable", error=str(error))

    def _load(self, view: View) -> None:
        """Load the named keys and their versions. Raises SealBroken."""
        with self._lock:
            there: set[int] = set()
            for row, value in view.below(KEYS).items():
                stored = decoded(value, StoredNamedKey)
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


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
