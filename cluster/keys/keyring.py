"""Keyring: the keys of a host or of a cluster, each wrapped under the one above it.

    master key           a file or the environment; never in here
      root key           one record, so a new master key changes no other
        secrets          keys of secrets and digests
        versions         of each named key (KmsMasterKeyId); the newest wraps new blocks
          blocks         of data keys, a thousand each

A rotated named key changes a few records, and no message is ever rewritten. A message names its
data key by number. A process takes a block of numbers at a time and derives its data keys from the
block's secret and their numbers: only their maker counts their seals, and all records are in
memory. A message may still be sealed under each of them, so they are cached as they are needed.

Named keys belong to accounts (`key_owners.py`); the built-in key is the service's own. Reads are
from the view; changes are decided and committed (`cluster/coordination/records.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog

from auth.envelope import (
    BUILT_IN_KEY,
    KEY_BYTES,
    NONCE_BYTES,
    DataKey,
    SealBroken,
    WrappingKey,
    data_key,
)
from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import RECORDS_MAX, Coordination
from cluster.coordination.records import Draft, Records, View
from cluster.keys import key_records
from cluster.keys.key_owners import Grant, NamedKey
from cluster.keys.lost_blocks import LostBlocks, Wraps, raise_counter
from cluster.keys.master_key import KeysUnusable, WrongMasterKey
from cluster.keys.named_keys import NamedKeys
from cluster.keys.spare_blocks import SpareBlocks

DIGESTS = "digests of ids"
CREDENTIALS = "credentials"
_DATA_KEYS_KEPT = 4096
_REWRAPPED_MAX = RECORDS_MAX - 20
"""Blocks wrapped anew by one transaction."""


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


class Keyring(NamedKeys):
    """The keys, by name and by number.

    Changes raise KeysAway if they cannot be made now, SealBroken for damaged records.
    """

    digest_key: bytes
    """Key of the hashes of group and deduplication ids."""
    secrets: Secrets

    def __init__(
        self,
        records: Records,
        master: bytes,
        clock: Clock,
        entropy: Entropy,
        *,
        is_shared: bool,
        spares: SpareBlocks | None,
    ) -> None:
        """Call `open` instead."""
        super().__init__()
        self._records = records
        self._master = WrappingKey(master)
        self._clock = clock
        self._entropy = entropy
        self._is_shared = is_shared
        self._data_keys: OrderedDict[int, tuple[NamedKey, DataKey]] = OrderedDict()
        self._blocks: dict[str, key_records.OwnBlock] = {}
        """By row."""
        self._spares = spares
        self._sought: set[int] = set()
        """Blocks that are being read, since the watch has not brought them yet."""
        self._missing: set[int] = set()
        """Blocks that were read and not found."""
        self._listeners: list[Callable[[], None]] = []
        self._log = structlog.get_logger("keyring")

    @classmethod
    async def open(
        cls,
        coordination: Coordination,
        master: bytes,
        clock: Clock,
        entropy: Entropy,
        *,
        owner: str = "",
        founds: bool = True,
        is_shared: bool = False,
        spares: SpareBlocks | None = None,
    ) -> Keyring:
        """The keyring in these records, which are closed with it, also if this fails. With `founds`
        it makes the keys of a new host or cluster. `owner` is the account that gets the keys of
        version 0.1; without it they stay without an owner. `is_shared`: other hosts write, too, and
        the watch may be late. `spares` are the blocks of a process that is to start without the
        records of others, too.

        Raises KeysUnusable.
        """
        records = await Records.open(coordination, KeysAway)
        keyring = cls(records, master, clock, entropy, is_shared=is_shared, spares=spares)
        try:
            await keyring._begin(owner, founds=founds)
        except BaseException:
            await records.close()
            raise
        return keyring

    async def _begin(self, owner: str, *, founds: bool) -> None:
        try:
            if founds:
                await self._records.change(lambda draft: self._found(draft, owner))
            view = self._records.view
            wrapped = view.value(key_records.ROOT)
            if wrapped is None:
                raise KeysUnusable("the cluster has no keys yet: start one of its hosts")
            self._root = self._root_in(wrapped)
            self.digest_key = self._secret(view, DIGESTS)
            self.secrets = Secrets(WrappingKey(self._secret(view, CREDENTIALS)), self._entropy)
            self._load(view, self._cipher)
        except SealBroken as error:
            raise KeysUnusable(f"cannot read the keys: {error}") from error
        wraps = Wraps(self._cipher, self._wrapped)
        self._lost = LostBlocks(self._records, KeysAway, wraps)
        self._records.subscribe(self._on_view)

    def _found(self, draft: Draft, owner: str) -> None:
        """Make the keys of a new host or cluster; of several hosts one does."""
        if draft.view.value(key_records.ROOT) is None:
            secret = self._entropy.secret(KEY_BYTES)
            root = WrappingKey(secret)
            draft.put(key_records.ROOT, self._wrapped(self._master, secret, key_records.ROOT))
            if draft.view.value(key_records.SECRETS + DIGESTS) is None:
                for purpose in (DIGESTS, CREDENTIALS):
                    draft.put(key_records.SECRETS + purpose, self._new_wrapped(root, purpose))
                self._put_new_key(draft, root, key_records.row_of("", BUILT_IN_KEY))
            else:
                self._put_below_root(draft, root)
        for row in draft.view.below(key_records.KEYS) if owner else ():
            account, name = row.split("/", 1)
            if not account and name != BUILT_IN_KEY:
                key_records.put_named_key(
                    draft, key_records.row_of(owner, name), key_records.stored_named_key(draft, row)
                )
                draft.put(key_records.KEYS + row, None)

    def _put_below_root(self, draft: Draft, root: WrappingKey) -> None:
        """Wrap under the root key what version 0.1 wrapped under the master key."""

        def moved(wrapped: bytes, purpose: str) -> bytes:
            try:
                secret = self._master.unwrap(wrapped, purpose)
            except SealBroken as error:
                raise _wrong_master() from error
            return self._wrapped(root, secret, purpose)

        for purpose, wrapped in draft.view.below(key_records.SECRETS).items():
            draft.put(key_records.SECRETS + purpose, moved(wrapped, purpose))
        for row in draft.view.below(key_records.KEYS):
            stored = key_records.stored_named_key(draft, row)
            versions = {
                version: moved(wrapped, key_records.version_of(version))
                for version, wrapped in stored.versions.items()
            }
            key_records.put_named_key(
                draft, row, msgspec.structs.replace(stored, versions=versions)
            )

    def _root_in(self, wrapped: bytes) -> WrappingKey:
        """Raises WrongMasterKey."""
        try:
            return WrappingKey(self._master.unwrap(wrapped, key_records.ROOT))
        except SealBroken as error:
            raise _wrong_master() from error

    def _secret(self, view: View, purpose: str) -> bytes:
        wrapped = view.value(key_records.SECRETS + purpose)
        if wrapped is None:
            raise KeysUnusable(f"the key for {purpose} is missing")
        return self._root.unwrap(wrapped, purpose)

    async def close(self) -> None:
        """Close the records."""
        await self._lost.close()
        await self._records.close()

    async def catch_up(self) -> None:
        """Wait until all is loaded that was changed before this call. Raises KeysAway."""
        await self._records.catch_up()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call it when named keys were changed, here or elsewhere, and when blocks of data keys
        were lost."""
        self._listeners.append(listener)

    # -- named keys --------------------------------------------------------------------------------

    async def add(self, name: str, account: str) -> NamedKey:
        """Make a key of an account. Raises ValueError if the name is taken."""
        row = key_records.row_of(account, name)

        def add(draft: Draft) -> None:
            self._check_free(name, account)
            self._put_new_key(draft, self._root, row)

        await self._records.change(add)
        named = self._keys.get(row)
        if named is None:
            raise KeysAway("a change is not reported yet")
        return named

    def _put_new_key(self, draft: Draft, root: WrappingKey, row: str) -> None:
        version = draft.next_number(key_records.VERSIONS)
        versions = {version: self._new_wrapped(root, key_records.version_of(version))}
        key_records.put_named_key(
            draft,
            row,
            key_records.StoredNamedKey(self._new_key_id(), self._now_ms(), True, versions),
        )

    async def _change(
        self,
        row: str,
        changed: Callable[[Draft, key_records.StoredNamedKey], key_records.StoredNamedKey],
    ) -> None:
        await self._records.change(
            lambda draft: key_records.put_named_key(
                draft, row, changed(draft, key_records.stored_named_key(draft, row))
            )
        )

    async def rotate(self, name: str) -> None:
        """Give a key a new version for new data keys; older ones stay readable. Raises KeyError."""

        def rotated(draft: Draft, stored: key_records.StoredNamedKey) -> key_records.StoredNamedKey:
            version = draft.next_number(key_records.VERSIONS)
            wrapped = self._new_wrapped(self._root, key_records.version_of(version))
            return msgspec.structs.replace(stored, versions={**stored.versions, version: wrapped})

        await self._change(self.named(name).row, rotated)

    async def set_enabled(self, name: str, enabled: bool) -> None:
        """Refuse or allow the key's use. Raises KeyError, and ValueError for the built-in key."""
        row = self._key_to_switch(name).row
        await self._change(row, lambda _, stored: msgspec.structs.replace(stored, enabled=enabled))

    async def grant(self, name: str, grant: Grant) -> None:
        """Let another account, or one user, use the key, replacing an earlier grant to it. Raises
        KeyError, ValueError."""
        operations = tuple(sorted(set(grant.operations)))

        def granted(draft: Draft, stored: key_records.StoredNamedKey) -> key_records.StoredNamedKey:
            grants = {**stored.grants, grant.grantee: operations}
            return msgspec.structs.replace(stored, grants=grants)

        await self._change(self._key_to_grant(name, grant).row, granted)

    async def revoke(self, name: str, grantee: str) -> None:
        """Revoke a grant. Raises KeyError, ValueError if there is none."""

        def revoked(draft: Draft, stored: key_records.StoredNamedKey) -> key_records.StoredNamedKey:
            grants = {each: what for each, what in stored.grants.items() if each != grantee}
            return msgspec.structs.replace(stored, grants=grants)

        await self._change(self._key_to_revoke(name, grantee).row, revoked)

    async def rewrap(self, name: str) -> int:
        """Wrap all data keys of a named key under its newest version, and forget the others.
        Returns the number of records wrapped. Raises KeyError."""
        row, count = self.named(name).row, 0
        while True:
            rewrapped, is_done = await self._records.change(lambda draft: self._rewrap(draft, row))
            count += rewrapped
            if is_done:
                return count

    def _rewrap(self, draft: Draft, row: str) -> tuple[int, bool]:
        """Wrap some blocks anew. Returns their number, and True if these were all: a view with the
        newest version has every block under earlier ones."""
        stored = key_records.stored_named_key(draft, row)
        newest = max(stored.versions)
        older = stored.versions.keys() - {newest}
        below = draft.view.below(key_records.DATA).items()
        blocks = {
            number: key_records.decoded(value, key_records.StoredBlock) for number, value in below
        }
        todo = [number for number, block in blocks.items() if older & block.versions()]
        ciphers = {version: self._cipher(stored, version) for version in stored.versions}

        def again(version: int, wrapped: bytes) -> tuple[int, bytes]:
            if version not in older:
                return version, wrapped
            secret = ciphers[version].unwrap(wrapped, key_records.data_key_of(version))
            return newest, self._wrapped(ciphers[newest], secret, key_records.data_key_of(newest))

        for number in todo[:_REWRAPPED_MAX]:
            draft.put(
                key_records.DATA + number, msgspec.json.encode(blocks[number].wrapped_anew(again))
            )
        is_done = len(todo) <= _REWRAPPED_MAX
        if is_done and older:
            kept = {newest: stored.versions[newest]}
            key_records.put_named_key(draft, row, msgspec.structs.replace(stored, versions=kept))
        return len(todo[:_REWRAPPED_MAX]), is_done

    def _cipher(self, stored: key_records.StoredNamedKey, version: int) -> WrappingKey:
        return WrappingKey(
            self._root.unwrap(stored.versions[version], key_records.version_of(version))
        )

    async def change_master(self, master: bytes, keep: Callable[[], None] = lambda: None) -> None:
        """Wrap the root key under another master key; `keep` stores that key before anyone can see
        the change, and may be called again. Processes with open keys go on: the root key stays.

        Raises SealBroken, before `keep`, if another process changed it meanwhile.
        """
        new = WrappingKey(master)

        def change(draft: Draft) -> None:
            wrapped = draft.value(key_records.ROOT)
            assert wrapped is not None
            secret = self._master.unwrap(wrapped, key_records.ROOT)
            keep()
            draft.put(key_records.ROOT, self._wrapped(new, secret, key_records.ROOT))

        await self._records.refresh()
        await self._records.change(change)
        self._master = new

    # -- data keys ---------------------------------------------------------------------------------

    async def new_data_key(self, named: NamedKey) -> DataKey:
        """A key to seal with, whose block is durable."""
        block = self._blocks.get(named.row)
        key = block.next_key() if block is not None and block.version == named.version else None
        while key is None or not self.can_seal(key):
            block = await self._new_block(named.row)
            self._blocks[named.row] = block
            key = block.next_key()
        return self._kept(key.number, named, key)[1]

    def can_seal(self, key: DataKey) -> bool:
        """False for a data key that no other process could open: etcd was restored from before its
        block, which is not there again yet."""
        return not self._lost.has(key_records.block_of(key.number))

    async def _new_block(self, row: str) -> key_records.OwnBlock:
        """A block of this process alone: a new one, or a spare one while none can be made. Raises
        KeysAway."""
        try:
            return await self._records.change(lambda draft: self._put_new_block(draft, row))
        except KeysAway:
            spare = None if self._spares is None else self._spare_block(self._spares.take(row))
            if spare is None:
                raise
            return spare

    def _spare_block(self, number: int | None) -> key_records.OwnBlock | None:
        value = None if number is None else self._records.view.value(f"{key_records.DATA}{number}")
        block = None if value is None else key_records.decoded(value, key_records.StoredBlock)
        if number is None or block is None or block.version not in self._wrapping:
            return None
        wrapping = self._wrapping[block.version][1]
        secret = wrapping.unwrap(block.wrapped, key_records.data_key_of(block.version))
        own = key_records.OwnBlock(number, block.version, secret)
        # A disk that was set back or copied gives the block out again: no nonce may come twice.
        own.first_count = self._entropy.bits128() >> 65
        return own

    async def keep_spares(self) -> None:
        """Take a block beforehand for each key in use that has no spare one."""
        spares = self._spares
        if spares is None:
            return
        for row in [row for row in self._blocks if row not in spares]:
            try:
                block = await self._records.change(
                    lambda draft, row=row: self._put_new_block(draft, row)  # type: ignore[misc]
                )
                spares.keep(row, block.number)
            except (KeysAway, OSError) as error:
                self._log.warning("no_spare_block", reason=str(error))

    def _put_new_block(self, draft: Draft, row: str) -> key_records.OwnBlock:
        stored = key_records.stored_named_key(draft, row)
        version = max(stored.versions)
        raise_counter(draft, self._lost.highest)
        number = draft.next_number(key_records.BLOCKS)
        secret = self._entropy.secret(KEY_BYTES)
        wrapped = self._wrapped(
            self._cipher(stored, version), secret, key_records.data_key_of(version)
        )
        block = key_records.StoredBlock(version, wrapped, self._now_ms())
        draft.put(f"{key_records.DATA}{number}", msgspec.json.encode(block))
        return key_records.OwnBlock(number, version, secret)

    def data_key(self, number: int) -> tuple[NamedKey, DataKey]:
        """A data key and the named key it belongs to. Raises SealBroken if it is missing or cannot
        be unwrapped, and KeysAway while that is not known."""
        known = self._data_keys.get(number)
        if known is not None:
            return known
        found = self._find_data_key(number)
        if found is None:
            if self._is_shared:
                self._seek(key_records.block_of(number))
            raise SealBroken(f"there is no data key {number}")
        return self._kept(number, *found)

    def _find_data_key(self, number: int) -> tuple[NamedKey, DataKey] | None:
        """A data key from the present records; None if its block or its version is not there."""
        value = self._records.view.value(f"{key_records.DATA}{key_records.block_of(number)}")
        block = None if value is None else key_records.decoded(value, key_records.StoredBlock)
        found = None if block is None else block.wrapped_key(number)
        if block is None or found is None or found[0] not in self._wrapping:
            return None
        version, wrapped = found
        named, wrapping = self._wrapping[version]
        secret = wrapping.unwrap(wrapped, key_records.data_key_of(version))
        return named, data_key(number, block.secret_of(number, secret))

    def _seek(self, block: int) -> None:
        """Read the records, since the watch may be late. Raises KeysAway until that is done."""
        if block in self._missing:
            return
        if block not in self._sought:
            self._sought.add(block)
            self._records.refresh_soon(lambda was_read: self._was_sought(block, was_read))
        raise KeysAway(f"block {block} of data keys is not here yet")

    def _was_sought(self, block: int, was_read: bool) -> None:
        if was_read and self._records.view.value(f"{key_records.DATA}{block}") is None:
            self._missing.add(block)
        self._sought.discard(block)

    def _kept(self, number: int, named: NamedKey, key: DataKey) -> tuple[NamedKey, DataKey]:
        if len(self._data_keys) >= _DATA_KEYS_KEPT:
            self._data_keys.popitem(last=False)
        self._data_keys[number] = (named, key)
        return named, key

    # -- changes that are reported -----------------------------------------------------------------

    def _on_view(self, view: View, changed: Collection[str]) -> None:
        lost = self._lost.look(view, changed, self._wrapping)
        has_keys = any(key.startswith(key_records.KEYS) for key in changed)
        if has_keys:
            try:
                self._load(view, self._cipher)
            except SealBroken as error:
                self._log.error("keyring_unreadable", error=str(error))
        for block in self._lost.compare(self._wrapping):
            for number in key_records.numbers_of(block):
                self._data_keys.pop(number, None)
        for listener in self._listeners if has_keys or any(map(self._lost.has, lost)) else ():
            listener()
        self._lost.put_back_soon()

    # -- new secrets -------------------------------------------------------------------------------

    def _new_key_id(self) -> str:
        bits = f"{self._entropy.bits128():032x}"
        return "-".join((bits[:8], bits[8:12], bits[12:16], bits[16:20], bits[20:]))

    def _wrapped(self, wrapping: WrappingKey, secret: bytes, purpose: str) -> bytes:
        return wrapping.wrap(secret, purpose, self._entropy.secret(NONCE_BYTES))

    def _new_wrapped(self, wrapping: WrappingKey, purpose: str) -> bytes:
        """A new key for a purpose, wrapped."""
        return self._wrapped(wrapping, self._entropy.secret(KEY_BYTES), purpose)

    def _now_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)


def _wrong_master() -> WrongMasterKey:
    return WrongMasterKey("the keys are not under this master key")


def check_master(records: Mapping[str, bytes], master: bytes) -> None:
    """Raise WrongMasterKey if a cluster's records are under another master key."""
    try:
        WrappingKey(master).unwrap(
            records.get(key_records.PREFIX + key_records.ROOT, b""), key_records.ROOT
        )
    except SealBroken as error:
        raise WrongMasterKey("the backup's keys are not under this master key") from error
