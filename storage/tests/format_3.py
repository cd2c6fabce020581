"""A data folder of a killed version 0.1: rows in RocksDB's own log, and the note of answers.

Another process keeps a shard open, as a running version 0.1 does:

    python -m storage.tests.format_3 SHARD
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict, WriteBatch, WriteOptions

from storage.files.folder import open_folder
from storage.tests.on_disk import rows_of
from storage.tests.store_places import everything


def old_options(recovery: DBRecoveryMode | None = None) -> Options:
    """As version 0.1 opened a shard."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_wal_recovery_mode(recovery or DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def note(shard: Path, number: int) -> None:
    """Note beside the shard that this change was acknowledged."""
    digits = b"%020d" % number
    shard.with_name(shard.name + ".answered").write_bytes(b"%b %08x\n" % (digits, crc32(digits)))


def write_old_format(data: Path, **changed: object) -> None:
    """The file that makes it a data folder of format 3."""
    content = {"format": 3, "shards": {"0": "shard-0"}} | changed
    checksum = crc32(json.dumps(content, sort_keys=True).encode())
    (data / "format.json").write_text(json.dumps(content | {"crc32": checksum}))


def make_old_folder(data: Path, rows: Mapping[bytes, bytes]) -> int:
    """Make it a folder of format 3 with these rows, half of them in RocksDB's log only; returns its
    last change."""
    data.mkdir(exist_ok=True)
    write_old_format(data)
    half = len(rows) // 2
    with TemporaryDirectory() as running:
        database = Rdict(running, old_options())
        _write(database, [*rows.items()][:half])
        if half:
            database.flush(True)
        _write(database, [*rows.items()][half:])
        shutil.copytree(running, data / "shard-0")  # as a kill leaves it
        note(data / "shard-0", database.latest_sequence_number())
        database.close()
    return noted(data / "shard-0")


def noted(shard: Path) -> int:
    """The last acknowledged change."""
    return int(shard.with_name(shard.name + ".answered").read_bytes().split()[0])


def converted_rows(data: Path) -> dict[bytes, bytes]:
    """All rows of a converted folder that no service uses."""
    (folder,) = open_folder(data).values()
    with rows_of(folder) as rows:
        return everything(rows)


@contextmanager
def in_use(data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process has the shard open, as a running service of version 0.1."""
    command = [sys.executable, "-m", "storage.tests.format_3", str(data / "shard-0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        try:
            yield holder
        finally:
            holder.kill()


def _write(database: Rdict, rows: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        batch = WriteBatch(raw_mode=True)
        batch.put(key, value)
        database.write(batch, WriteOptions())
    database.flush_wal(True)


def _hold(shard: Path) -> None:
    held = Rdict(str(shard), old_options())
    os.write(sys.stdout.fileno(), b"open\n")
    sys.stdin.read()  # until it is killed
    held.close()


if __name__ == "__main__":
    _hold(Path(sys.argv[1]))
