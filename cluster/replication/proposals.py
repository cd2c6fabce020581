"""Proposals: the Entries of a shard that are not committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from storage.engines.store import Done


@dataclass(slots=True, eq=False)
class Proposal:
    """An Entry of the shard."""

    body: bytes
    queue_ids: Sequence[int]
    index: int = 0
    """0 until the replica took it."""
    synced: Callable[[], None] | None = None
    """Called once it is on this host's disk; None if no answer waits for that."""
    done: Done | None = None
    """Called once it is committed."""

    def tell_synced(self) -> None:
        """Call `synced`, the first time."""
        synced, self.synced = self.synced, None
        if synced is not None:
            synced()


def synced_ones(
    proposals: Iterable[Proposal], synced_index: int, bytes_max: int
) -> Iterator[Proposal]:
    """Those that this host has durably; no more of them than may be lost with it."""
    size = 0
    for proposal in proposals:
        size += len(proposal.body)
        if not 0 < proposal.index <= synced_index or size > bytes_max:
            return
        yield proposal
