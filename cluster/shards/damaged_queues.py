"""DamagedQueues: queues with damage that no event can avoid. A reopening of the store rebuilds
them, once for each damage."""

from __future__ import annotations

import structlog

from storage.engines.store import Store, StoreFailed
from visibility.rules.decided import Damage


class DamagedQueues:
    """The damage that Turns have met."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._met: Damage | None = None
        self._noted: set[Damage] = set()

    def meet(self, damage: Damage) -> bool:
        """Report damage; True if a reopening may remove it."""
        self._log.error("damage_found", queue_id=damage.queue_id, reason=damage.reason)
        if damage in self._noted:
            return False
        self._met = damage
        return True

    def note(self, store: Store) -> StoreFailed | None:
        """Have the next opening rebuild the queue; returns the reason to reopen, None for none."""
        damage, self._met = self._met, None
        if damage is None:
            return None
        self._noted.add(damage)
        try:
            store.note_damage(*damage)
        except StoreFailed as error:
            return error
        return StoreFailed(f"queue {damage.queue_id} is rebuilt: {damage.reason}")
