"""Copies of one cluster's rows as its leaders had committed them, while all hosts hold still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cluster.copies.backup import BackupDraft
from cluster.replication.replicated_store import ReplicatedStore
from sqs_api.admin.quiesce import LedShard
from storage.copies.manifest import BackupRefused

_CAUGHT_UP_S = 10.0
_LOOK_S = 0.02


class Disturbed(Exception):
    """Something changed while the copies were made; the text says what."""


class RowCopies(NamedTuple):
    """`stores` are those of this host's shards."""

    stores: Callable[[], Mapping[int, ReplicatedStore]]

    async def copy(
        self, draft: BackupDraft, names: Mapping[int, str], led: Mapping[int, LedShard]
    ) -> int:
        """Copy the shards to folders of these names; `led` are their leaders'. Returns the latest
        time at which a row was written, in ms. Raises BackupRefused, Disturbed."""
        stores = {number: self.stores()[number] for number in names}
        await self._wait_for_rows(stores, led)
        checkpoints = {names[number]: store.checkpoint for number, store in stores.items()}
        rows = await asyncio.to_thread(draft.take_rows, checkpoints)
        for number, name in names.items():
            position = rows[name].position
            if position.index < led[number].committed or position.term > led[number].term:
                raise Disturbed(f"shard {number} changed its leader or its rows")
        return max(each.last_stamp_ms for each in rows.values())

    async def _wait_for_rows(
        self, stores: Mapping[int, ReplicatedStore], led: Mapping[int, LedShard]
    ) -> None:
        """Wait until this host's rows have what the leaders had committed. Raises BackupRefused."""
        try:
            async with asyncio.timeout(_CAUGHT_UP_S):
                for number, store in stores.items():
                    while store.applied.index < led[number].committed:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise BackupRefused(
                f"the rows of shard {number} on this host lack what is committed: see holdfast "
                "cluster status, or have another host make the backup"
            ) from None
        for number, store in stores.items():
            if store.replica.damage:
                raise BackupRefused(
                    f"the rows of shard {number} on this host are damaged: have another host make "
                    "the backup"
                )
