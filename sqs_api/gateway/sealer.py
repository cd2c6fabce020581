"""Sealer: encrypts sent messages and decrypts received ones, as each queue's attributes require.

A data key seals for a day, or for KmsDataKeyReusePeriodSeconds; then the node replaces it in the
background, where it also makes those for keys of new queues. A request that needs a key which was
just added waits while its data key is made (`recheck_refusal.py`), and a message that moves stays
where it is meanwhile. So does one that another host sealed under a data key that is not here yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import NoReturn

import msgspec
import structlog
from typing_extensions import override

from auth.envelope import BUILT_IN_KEY, DataKey, SealBroken
from cluster.clock import Clock
from cluster.keys.key_owners import NamedKey, key_place
from cluster.keys.keyring import Keyring, KeysAway
from visibility.content.sealing import Sealing, SendSealing
from visibility.contract.errors import KmsAccessDenied, KmsDisabled, KmsNotFound, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import StoredMessage

Admit = Callable[[NamedKey], None]
"""Raises KmsAccessDenied if the key may not be used."""
_BUILT_IN_REUSE_S = 24 * 3600.0
_AGAIN_S = 1.0
"""Time for which no key is made after that failed: each attempt may take long."""
_KNOWN_MAX = 10_000


class _Sealing(msgspec.Struct):
    """The data key for new messages under one named key; changes in place when it is replaced."""

    named: NamedKey
    version: int
    key: DataKey
    made_at_s: float


class Sealer(Sealing, SendSealing):
    """Seals for one process."""

    def __init__(self, keyring: Keyring, clock: Clock, *, makes_keys: bool) -> None:
        """`makes_keys`: as in open mode, make the key of an unknown KmsMasterKeyId at its first
        use."""
        self._keyring = keyring
        self._clock = clock
        self._makes_keys = makes_keys
        self._sealing: dict[str, _Sealing] = {}
        """By the key's id."""
        self._known: dict[tuple[str, str], _Sealing] = {}
        """By the queue's account and KmsMasterKeyId, which can name a key in several ways.
        Bounded."""
        self._made_soon: dict[str, asyncio.Task[None]] = {}
        """Keys that are being made."""
        self._none_until_s = 0.0
        """No key is made before this time."""
        self._log = structlog.get_logger("sealing")
        self.digest_key = keyring.digest_key
        """Key of the hashes of group and deduplication ids."""
        self.broken = 0
        """Messages left out of answers because they could not be opened."""
        keyring.subscribe(self._drop_lost)

    async def prepare(self, queues: Iterable[QueueDefinition]) -> None:
        """Make the data keys that these queues lack. Raises SealBroken, KeysAway."""
        for named in self._lacking(queues):
            await self._make(named)

    @property
    def is_making(self) -> bool:
        """True while keys are being made that requests asked for."""
        return bool(self._made_soon)

    async def made(self) -> None:
        """Wait until they are made."""
        if self._made_soon:
            await asyncio.wait(self._made_soon.values())

    def _lacking(self, queues: Iterable[QueueDefinition]) -> list[NamedKey]:
        """The keys of these queues that have no data key yet."""
        references = {(queue.settings.encryption, queue.account) for queue in queues}
        found: dict[str, NamedKey] = {}
        for reference, account in references | {(BUILT_IN_KEY, "")}:
            named = None if reference is None else self._keyring.find(reference, account)
            if named is not None and named.enabled and named.key_id not in self._sealing:
                found[named.key_id] = named
        return list(found.values())

    @override
    def check(self, queue: QueueDefinition) -> None:
        reference = queue.settings.encryption
        if reference is None:
            return
        if (queue.account, reference) not in self._known:
            named = self._named(reference, queue.account)
            if named.key_id not in self._sealing:
                return  # no data key is needed to receive
        self._current(reference, queue.account)

    @override
    def key_of(self, queue: QueueDefinition) -> DataKey | None:
        reference = queue.settings.encryption
        return None if reference is None else self._current(reference, queue.account).key

    def open(self, message: StoredMessage, admit: Admit | None = None) -> bytes | None:
        """The message's content; None, with a line in the log, if it is damaged.

        `admit` is called for keys that belong to an account. Raises KmsDisabled, the errors of
        `admit`, and ServiceUnavailable if the key is not here yet.
        """
        try:
            key = self.opening_key(message, admit)
            return message.data if key is None else key.open(message.data)
        except SealBroken as error:
            self.broken += 1
            self._log.error(
                "message_unreadable",
                message_id=message.message_id,
                data_key=message.sealed,
                error=str(error),
            )
            return None

    def opening_key(self, message: StoredMessage, admit: Admit | None) -> DataKey | None:
        """The key to open the message with, None if it is not sealed. Raises SealBroken, and the
        errors of `open`."""
        if not message.sealed:
            return None
        named, key = self._data_key(message.sealed)
        if not named.enabled:
            raise _disabled(named)
        if admit is not None and named.account:
            admit(named)
        return key

    @override
    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        reference = queue.settings.encryption
        if reference is None or self._stays(message, self._named(reference, queue.account)):
            return message
        key = self._current(reference, queue.account).key
        data = self.open(message)
        if data is None:
            return message
        return msgspec.structs.replace(message, data=key.seal(data), sealed=key.number)

    @override
    def with_content(
        self, message: StoredMessage, data: bytes, queue: QueueDefinition
    ) -> StoredMessage:
        number = self.sealed_for(message, queue).sealed
        if not number:
            return msgspec.structs.replace(message, data=data)
        named = self._data_key(number)[0]
        if not named.enabled:
            raise _disabled(named)
        current = self._sealing.get(named.key_id)  # a data key seals where it was made only
        if current is None:
            self._soon(named.key_id, lambda: self._make(named))
        return msgspec.structs.replace(
            message, data=current.key.seal(data), sealed=current.key.number
        )

    @override
    def opened(self, message: StoredMessage, queues: Sequence[QueueDefinition]) -> bytes | None:
        def admit(named: NamedKey) -> None:
            for queue in queues:
                reference = queue.settings.encryption
                own = reference and self._keyring.find(reference, queue.account)
                if own and own.key_id == named.key_id:
                    return
            raise KmsAccessDenied(f"{named.key_id} is not the key of the queue.")

        return self.open(message, admit)

    def key_of_notes(self, queue: QueueDefinition) -> DataKey:
        """The key for what the service itself writes about a queue's messages: never none.

        Raises KmsNotFound, KmsDisabled, ServiceUnavailable.
        """
        return self._current(queue.settings.encryption or BUILT_IN_KEY, queue.account).key

    def may_note(self, message: StoredMessage, queue: QueueDefinition) -> bool:
        """False for a message under an account's key that is not the queue's: it would be readable
        in notes while that key is disabled."""
        if not message.sealed:
            return True
        try:
            named = self._data_key(message.sealed)[0]
        except (SealBroken, ServiceUnavailable):
            return False
        own = self._keyring.find(queue.settings.encryption or BUILT_IN_KEY, queue.account)
        return not named.account or (own is not None and own.key_id == named.key_id)

    @override
    def open_note(self, number: int, data: bytes) -> bytes | None:
        """The content sealed under a data key, None if that cannot be opened for good. Raises
        ServiceUnavailable if the key is not here yet."""
        try:
            named, key = self._data_key(number)
            return key.open(data) if named.enabled else None
        except SealBroken:
            return None

    def _data_key(self, number: int) -> tuple[NamedKey, DataKey]:
        """A data key and its named key. Raises SealBroken, ServiceUnavailable."""
        try:
            return self._keyring.data_key(number)
        except KeysAway:
            raise ServiceUnavailable() from None

    def _stays(self, message: StoredMessage, wanted: NamedKey) -> bool:
        """True for a message under this key or any key of an account: sealed anew, it could be read
        by callers who may move messages but not use that key."""
        if not message.sealed:
            return False
        try:
            named = self._data_key(message.sealed)[0]
        except SealBroken:
            return False  # `open` reports it
        return bool(named.account) or named.key_id == wanted.key_id

    def _current(self, reference: str, account: str) -> _Sealing:
        current = self._known.get((account, reference))
        if current is None:
            named = self._named(reference, account)
            current = self._sealing.get(named.key_id)
            if current is None:
                self._soon(named.key_id, lambda: self._make(named))
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[account, reference] = current
        elif not current.named.enabled:
            raise _disabled(current.named)
        return current

    def _named(self, reference: str, account: str) -> NamedKey:
        """The key that a KmsMasterKeyId means. Raises KmsNotFound, KmsDisabled,
        ServiceUnavailable."""
        named = self._keyring.find(reference, account)
        if named is None and self._makes_keys:
            self._soon(reference, lambda: self._add(reference, account))
        if named is None:
            raise KmsNotFound(f"Invalid keyId {reference}")
        if not named.enabled:
            raise _disabled(named)
        return named

    def _soon(self, name: str, make: Callable[[], Coroutine[None, None, object]]) -> NoReturn:
        """Make something in the background, unless that just failed. Raises ServiceUnavailable."""
        if self._clock.monotonic_s() < self._none_until_s:
            raise ServiceUnavailable

        async def run() -> None:
            try:
                await make()
            except (ValueError, SealBroken, KeysAway) as error:
                self._log.error("key_not_made", error=str(error))
                self._none_until_s = self._clock.monotonic_s() + _AGAIN_S

        if name not in self._made_soon:
            task = self._made_soon[name] = asyncio.create_task(run())
            task.add_done_callback(lambda _: self._made_soon.pop(name))
        raise ServiceUnavailable

    async def _add(self, reference: str, account: str) -> None:
        place = key_place(reference)
        await self._make(await self._keyring.add(place.name, place.account or account))

    async def _make(self, named: NamedKey) -> _Sealing:
        """Make the first data key under a named key."""
        version, now_s = named.version, self._clock.monotonic_s()
        key = await self._keyring.new_data_key(named)
        return self._sealing.setdefault(named.key_id, _Sealing(named, version, key, now_s))

    def _drop_lost(self) -> None:
        """Seal no more under data keys that went with a part of etcd's records."""
        lost = [
            key_id
            for key_id, current in self._sealing.items()
            if not self._keyring.can_seal(current.key)
        ]
        for key_id in lost:
            del self._sealing[key_id]
        if lost:
            self._known = {
                place: current
                for place, current in self._known.items()
                if current.named.key_id in self._sealing
            }

    async def renew(self, queues: Iterable[QueueDefinition]) -> None:
        """Replace data keys that sealed long enough, or whose named key was rotated; make those of
        queues that are new.

        Raises SealBroken, KeysAway.
        """
        self._drop_lost()
        reuse_s: dict[str, float] = {}
        for queue in queues:
            reference, settings = queue.settings.encryption, queue.settings
            known = None if reference is None else self._known.get((queue.account, reference))
            if known is not None and "KmsMasterKeyId" in queue.attributes:
                shortest = reuse_s.get(known.named.key_id, _BUILT_IN_REUSE_S)
                reuse_s[known.named.key_id] = min(shortest, settings.data_key_reuse_s)
        now_s = self._clock.monotonic_s()
        for key_id, current in list(self._sealing.items()):
            age_s = now_s - current.made_at_s
            is_old = age_s >= reuse_s.get(key_id, _BUILT_IN_REUSE_S) and current.key.count
            named = current.named
            if named.enabled and (is_old or named.version != current.version):
                version = named.version
                current.key = await self._keyring.new_data_key(named)
                current.version, current.made_at_s = version, now_s
        await self.prepare(queues)


def _disabled(named: NamedKey) -> KmsDisabled:
    return KmsDisabled(f"{named.key_id} is disabled.")
