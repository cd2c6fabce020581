"""The records of a backup, written into etcd before the cluster is founded that was restored from
it. Pure.

Each founding host has them in its folder and writes what is missing; none does once the cluster is
founded, since clients may have changed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.coordination.coordination import RECORDS_MAX, Snapshot, Transaction
from cluster.members.copied_records import copied
from cluster.members.member_records import CLUSTER, MEMBERS, MembershipRefused

_BYTES_MAX = 1 << 20
"""Of the values of a transaction; etcd takes 1.5 MB."""


def put_back(records: Mapping[str, bytes], there: Snapshot) -> Iterator[Transaction]:
    """The transactions that are still to be made, on the cluster's records as they are; none once
    it is founded.

    Raises MembershipRefused if these are another cluster's.
    """
    if any(each.key == MEMBERS + CLUSTER for each in there.records):
        return
    known = copied(there.records)
    for key, value in known.items():
        if records.get(key) != value:
            raise MembershipRefused(
                f"etcd has a record {key} that is not of the restored backup: found the cluster "
                "under another name, or in an etcd without records of it"
            )
    part: dict[str, bytes | None] = {}
    size = 0
    for key in sorted(records.keys() - known.keys()):
        size += len(records[key])
        if part and (size > _BYTES_MAX or len(part) == RECORDS_MAX - 1):
            yield _new(part)
            part, size = {}, len(records[key])
        part[key] = records[key]
    if part:
        yield _new(part)


def _new(part: dict[str, bytes | None]) -> Transaction:
    """Write new records while there is no cluster yet."""
    return Transaction(dict.fromkeys([*part, MEMBERS + CLUSTER], 0), part)
