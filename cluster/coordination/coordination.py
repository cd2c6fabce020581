"""The interface to the store of records that hosts share: SQLite on a single host, etcd in a
cluster.

Records are bytes under keys. A transaction changes several at once, provided that the records it
was decided on have not changed. A watch reports every change, in the same order on every host.
A lease lives while its holder renews it; records that are bound to it go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

RECORDS_MAX = 120
"""Limit of the conditions, and of the changes, of a transaction; etcd takes 128 of each, and the
implementation adds its own."""

_NONE: Mapping[str, int] = MappingProxyType({})


class Record(NamedTuple):
    """A value and the revision at which it was written."""

    key: str
    value: bytes
    revision: int


class Snapshot(NamedTuple):
    """Records as of one revision."""

    revision: int
    records: list[Record]

    def of(self, keys: Collection[str]) -> Snapshot:
        """The same with the records of these keys only."""
        return self._replace(records=[each for each in self.records if each.key in keys])


class KeptSnapshot(Snapshot):
    """One that was kept since. The store may have been restored meanwhile, and have got to that
    revision on another way: a watch from here on compares all records first."""


EMPTY = Snapshot(0, [])
"""The records before the first transaction."""


class Transaction(NamedTuple):
    """Changes that happen all together, or not at all."""

    conditions: Mapping[str, int]
    """The revision that each of these keys must have, 0 for a key without a record."""
    changes: Mapping[str, bytes | None]
    """New values, None for a record to remove."""
    leases: Mapping[str, int] = _NONE
    """The lease that each of these changed records is bound to, by its id."""


class Change(NamedTuple):
    """The records that one transaction changed, or several if the watch had lost its place. None
    at all means that nothing else changed up to the revision."""

    revision: int
    records: Mapping[str, bytes | None]
    revisions: Mapping[str, int] = _NONE
    """Revisions of the records that were written before `revision`."""

    def revision_of(self, key: str) -> int:
        """The revision at which this record was written."""
        return self.revisions.get(key, self.revision)


class Done(NamedTuple):
    """The transaction is durable, under this revision."""

    revision: int


class Conflict(NamedTuple):
    """A condition did not hold; nothing changed. At this revision the records were as they were
    found."""

    revision: int


class LeaseLost(NamedTuple):
    """A lease that the transaction names does not exist any more; nothing changed."""


class Unknown(NamedTuple):
    """The transaction may or may not have happened, and may still happen; reading tells the
    former."""

    reason: str


class Unavailable(NamedTuple):
    """Nothing changed, and nothing can be said now."""

    reason: str


Outcome = Done | Conflict | LeaseLost | Unknown | Unavailable
OnChange = Callable[[Change], None]


class Coordination(Protocol):
    """Keeps records."""

    async def read_all(self) -> Snapshot | Unavailable:
        """All records that were committed before the call, and perhaps later ones."""

    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        """Those of these records that exist, at most RECORDS_MAX, as fresh as `read_all` has
        them."""

    async def commit(self, transaction: Transaction) -> Outcome:
        """Change records. Goes on if the caller is cancelled; the watch tells then what came of
        it."""

    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        """Call back on the event loop with each change after this snapshot, in order, none left
        out or twice.

        A change of this process may be reported before or after its `commit` returns. Of changes
        from before the call, values that were overwritten since may be missing. An implementation
        that lost its place reads everything and reports the difference as one change.
        """

    def expect(self, revision: int) -> None:
        """A change of this revision was committed: a watch that does not report it soon is stuck,
        and begins anew."""

    async def close(self) -> None:
        """End every watch and let go of all resources."""


class Lease(Protocol):
    """A lease of this process, renewed in the background. It says who may try, never who may
    succeed: what is changed under it carries a number that its receiver checks."""

    @property
    def lease_id(self) -> int:
        """Its id, for transactions."""

    def is_held(self) -> bool:
        """True while no other host can have seen it end. Never true again after it was false.

        A commit may take longer than the lease lives: ask again after it.
        """

    async def release(self) -> None:
        """End it, and with it the records bound to it; at the latest they go after its time."""


class LeasingCoordination(Coordination, Protocol):
    """A coordination of several hosts. On a single host no other could take over: SQLite has no
    leases."""

    async def grant(self, ttl_s: int, on_gone: Callable[[], None]) -> Lease | Unavailable:
        """A lease that ends about this many seconds after its holder stops renewing it.

        It is renewed until the coordination says that it is gone, also after that was away for
        longer; then `on_gone` is called once.
        """
