"""DamagedRows: what a host does about damage in its rows of a shard.

damage is met      lead no longer, do not count, fetch the rows of another host
fetched            the store is opened anew over sound rows
no good copy       the rows of all hosts are damaged: lead over these; the first Turn that meets
                   damage quarantines it by an event, which changes all copies alike
quarantined        on all hosts: others may have a good copy of what is met next
"""

from __future__ import annotations

import structlog

from cluster.replication.replacement import Replacement
from cluster.replication.replica_core import ReplicaCore
from visibility.rows.row_changes import Ops
from visibility.rows.row_keys import BLOCKED, QUARANTINED


class DamagedRows:
    """Part of a store. `replica` is set once there is one."""

    def __init__(self, replacement: Replacement, log: structlog.stdlib.BoundLogger) -> None:
        self.has_no_good_copy = False
        """True once the rows of all hosts were found to be damaged."""
        self.quarantines = False
        """True from then on until damage is quarantined."""
        self._replacement = replacement
        self._log = log

    def met(self, replica: ReplicaCore, reason: str) -> None:
        """Fetch sound rows; until then the replica neither leads nor counts."""
        if not self.quarantines and not replica.damage:
            self._log.error(
                "rows_damaged", reason=reason, action="this host fetches them from another"
            )
            replica.damage = reason
        self._replacement.begin()

    def no_good_copy(self, replica: ReplicaCore) -> None:
        """All other hosts were asked, and gave damaged rows."""
        if self.quarantines or not replica.damage:
            return
        self.has_no_good_copy = self.quarantines = True
        replica.damage = ""
        self._log.error(
            "no_good_copy",
            means="the rows of all hosts are damaged; what cannot be read is quarantined",
            action="look for `quarantined` and `queue_rebuilt` in this log, and restore a backup "
            "if those messages are needed",
        )

    def applied(self, ops: Ops) -> None:
        """The rows took these changes of an Entry."""
        if self.quarantines and any(
            key[8:9] in (QUARANTINED, BLOCKED) and isinstance(change, bytes)
            for key, change in zip(ops[::2], ops[1::2], strict=True)
            if isinstance(key, bytes)
        ):
            self.quarantines = False
