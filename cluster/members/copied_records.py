"""The records of a cluster, copied: queues, users and wrapped keys as of one revision of etcd.

They are in a file of a cluster's backup, and of the data folders restored from it until the new
cluster is founded: then they lie in its etcd. A single host has a SQLite file instead.

Each founding host has them in its folder and writes what is missing; none does once the cluster is
founded, since clients may have changed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from zlib import crc32

import msgspec

from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.catalog.host_records import read_host_records
from cluster.catalog.record_codec import CatalogUnreadable
from cluster.coordination.coordination import RECORDS_MAX, Record, Snapshot, Transaction
from cluster.coordination.etcd_coordination import WRITERS
from cluster.keys.identity_records import PREFIX as IDENTITIES
from cluster.keys.key_records import PREFIX as KEYRING
from cluster.members.member_records import CLUSTER, MEMBERS, MembershipRefused
from storage.files.copying import write_file
from storage.log import OLDEST_FORMAT

RECORDS_FILE = "records.json"
FORMATS_KEY = "members/formats"
SINGLE = (CATALOG, IDENTITIES, KEYRING)
"""Prefixes of the records that a single host has, too."""
COPIED = (*SINGLE, FORMATS_KEY)
"""Prefixes of the records that are copied: hosts, leaders and terms are the cluster's own."""


_WRITERS = tuple(prefix + WRITERS for prefix in COPIED)


class _Copied(msgspec.Struct, frozen=True):
    records: dict[str, bytes]
    crc32: int


def copied(records: Iterable[Record]) -> dict[str, bytes]:
    """The records to copy, among all those of a cluster."""
    return {
        each.key: each.value
        for each in records
        if each.key.startswith(COPIED) and not each.key.startswith(_WRITERS)
    }


def write_copied(folder: Path, records: Mapping[str, bytes]) -> None:
    """Write the file and sync it. Raises OSError."""
    content = dict(sorted(records.items()))
    copy = _Copied(content, _checksum(content))
    write_file(folder / RECORDS_FILE, msgspec.json.format(msgspec.json.encode(copy), indent=1))


def read_copied(folder: Path) -> dict[str, bytes]:
    """The records in the file. Raises OSError, CatalogUnreadable."""
    file = folder / RECORDS_FILE
    try:
        copy = msgspec.json.decode(file.read_bytes(), type=_Copied)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CatalogUnreadable(f"{file} is damaged: {error}") from error
    if copy.crc32 != _checksum(copy.records):
        raise CatalogUnreadable(f"{file} is damaged: its checksum does not match")
    return copy.records


def _checksum(records: Mapping[str, bytes]) -> int:
    return crc32(msgspec.msgpack.encode(list(records.items())))


def records_in(folder: Path) -> dict[str, bytes]:
    """The records in a data folder or a backup, of a cluster or a single host.

    Raises sqlite3.Error, OSError, CatalogUnreadable.
    """
    if (folder / RECORDS_FILE).exists():
        return read_copied(folder)
    return {record.key: record.value for record in read_host_records(folder).records}


def catalog_of(records: Mapping[str, bytes]) -> list[Record]:
    """The catalog's records among these."""
    return [
        Record(key.removeprefix(CATALOG), value, 1)
        for key, value in records.items()
        if key.startswith(CATALOG)
    ]


def catalog_in(folder: Path) -> list[Record]:
    """The catalog's records of `records_in`."""
    return catalog_of(records_in(folder))


def formats_in(folder: Path, place: str) -> int:
    """The newest formats that the rows may have; `place` is the prefix of the cluster's own
    records. Raises OSError, CatalogUnreadable."""
    return int(read_copied(folder).get(place + FORMATS_KEY, b"%d" % OLDEST_FORMAT))


_BYTES_MAX = 1 << 20
"""Size of the values of a transaction; etcd takes 1.5 MB."""


def put_back(records: Mapping[str, bytes], there: Snapshot) -> Iterator[Transaction]:
    """The transactions that are still to be made, on the cluster's records as they are; none once
    it is founded.

    Raises MembershipRefused if these are another cluster's.
    """
    if any(each.key == MEMBERS + CLUSTER for each in there.records):
        return
    known = copied(there.records)
    known |= {each.key: each.value for each in there.records if each.key in records}
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
