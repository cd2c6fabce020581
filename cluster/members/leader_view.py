"""LeaderView: who leads each shard, from a watch of the shards' keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog
from typing_extensions import override

from cluster.coordination.coordination import Change, Coordination, Unavailable
from cluster.members.shard_keys import HOLDERS, TERMS, decode_holder, decode_term
from cluster.peers.readiness import Leaders
from cluster.replication.leadership import Holder, TermRecord

T = TypeVar("T")


class LeadersUnknown(Exception):
    """Coordination could not be read at the start."""


class LeaderView(Leaders):
    """See Leaders. `begin`, and it ends with the coordination.

    A shard whose key is gone has no leader. While coordination is away the view stays as it is.
    """

    def __init__(
        self,
        coordination: Coordination,
        shards: range,
        elsewhere: Callable[[int], str | None],
    ) -> None:
        """`shards` are the numbers of the cluster's; `elsewhere` knows the leaders of shards of
        other clusters."""
        self._coordination = coordination
        self._holders: dict[int, Holder | None] = dict.fromkeys(shards)
        self._records: dict[int, TermRecord | None] = dict.fromkeys(shards)
        self._elsewhere = elsewhere
        self._listeners: list[Callable[[int], None]] = []
        self._log = structlog.get_logger("leadership")

    async def begin(self) -> None:
        """Read the keys and watch them. Raises LeadersUnknown."""
        found = await self._coordination.read_all()
        if isinstance(found, Unavailable):
            raise LeadersUnknown(found.reason)
        for record in found.records:
            self._put(record.key, record.value)
        await self._coordination.watch(found, self._on_change)

    @override
    def leader_of(self, shard: int) -> str | None:
        holder = self._holders.get(shard)
        return holder.name if holder is not None else self._elsewhere(shard)

    def leaders(self) -> dict[int, str | None]:
        """The leader of each shard, in order."""
        holders = self._holders.items()
        return {shard: None if holder is None else holder.name for shard, holder in holders}

    def record_of(self, shard: int) -> TermRecord | None:
        """The latest term of a shard and its voters, for a status."""
        return self._records[shard]

    @override
    def subscribe(self, on_change: Callable[[int], None]) -> None:
        self._listeners.append(on_change)

    def _on_change(self, change: Change) -> None:
        before = self.leaders()
        for key, value in change.records.items():
            self._put(key, value)
        for shard, leader in self.leaders().items():
            if leader != before[shard]:
                for listener in self._listeners:
                    listener(shard)

    def _put(self, key: str, value: bytes | None) -> None:
        if key.startswith(HOLDERS):
            self._set(self._holders, key.removeprefix(HOLDERS), value, decode_holder)
        elif key.startswith(TERMS):
            self._set(self._records, key.removeprefix(TERMS), value, decode_term)

    def _set(
        self,
        shown: dict[int, T | None],
        shard: str,
        value: bytes | None,
        decode: Callable[[bytes], T],
    ) -> None:
        """A record that cannot be read counts as none."""
        if not (shard.isdecimal() and int(shard) in shown):
            return
        shown[int(shard)] = None
        try:
            shown[int(shard)] = None if value is None else decode(value)
        except msgspec.MsgspecError as error:
            self._log.error("record_unreadable", shard=shard, error=str(error))
