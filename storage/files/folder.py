"""The data folder: its format version and the map from shards to folders, which only grows.

    DATA/format.json     {"format": 4, "shards": {"0": "shard-0"}, "crc32": 1234}
    DATA/*.copy          second copies of format.json (here), and of the records
                         (storage/copies/second_copy.py)
    DATA/shard-0/        RocksDB of shard 0
    DATA/shard-1/        RocksDB of shard 1, if the folder has several; and so on
    DATA/shard-0.fresh/  rows that are being rebuilt because some are damaged (fresh_rows.py)
    DATA/shard-0.damaged/  the rows before the last rebuild; it may be removed
    DATA/shard-0.incoming/    rows that are being fetched from another host (replaced_rows.py)
    DATA/shard-0.outgoing-1/  rows that another host is fetching
    DATA/records.sqlite  definitions of queues, keys of messages and secrets under DATA/master.key,
                         users and access keys (cluster/catalog/host_records.py)
    DATA/records.lock    locked by the process that has the records open
    DATA/shard-0.log/    the log of shard 0 (storage/log/)
    DATA/shard-0.log.begun  tells that there must be one (storage/log/begun.py)
    DATA/usage.sqlite    usage by account; DATA/usage-*.journal has the latest
                         (sqs_api/gateway/usage.py)
    DATA/history.sqlite  two weeks of the charts, DATA/history-w1.sqlite that of another worker
                         (sqs_api/cloudwatch/minute_store.py)

The number of shards is chosen when the folder is made; a start with more workers than shards adds
some, which new queues use. A queue belongs to one of them; messages
that move to a queue of another one go through an outbox.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from visibility.rows.row_keys import FORMAT_VERSION

FORMAT_FILE = "format.json"
BACKUP_FILE = "backup.json"
"""The manifest, which only a backup has."""
_COPY = "format.json.copy"
_MISSING = "it is missing"
_log = logging.getLogger("holdfast.files")
_CHECKED = (3, 4)
"""Formats whose file has a checksum that this version knows."""
_MAY_BE_THERE = re.compile(
    r"format(\.json)?\.new|format\.json\.copy"
    r"|records\.lock|(records|catalog|keyring|identities|usage|history(-w[0-9]+)?)\.sqlite(\.copy)?(\.new)?(-wal|-shm|-journal)?"
    r"|master\.key(\..*)?|audit\.log(\..*)?|backup-draft|lost\+found|worker-[0-9]+"
)
"""Names allowed in a folder that becomes a data folder: files made beforehand, and leftovers of an
interrupted first start. `lost+found` is in each new file system. `worker-2` and so on are data
folders of further workers of a host of a cluster."""

_HISTORY = re.compile(r"history(-w[0-9]+)?\.sqlite")


class FolderRefused(Exception):
    """The folder cannot be used; the text gives the reason in one line."""


def open_folder(folder: Path, shards: int | range = 1) -> dict[int, Path]:
    """Each shard's folder. A data folder that does not exist is made with this number of shards,
    or with the shards of these numbers. Raises FolderRefused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderRefused(
            f"cannot make data folder {folder}: {_reason(folder, error)}"
        ) from error
    try:
        if not _is_ours(folder):
            _create(folder, range(shards) if isinstance(shards, int) else shards)
        return _read(folder)
    except OSError as error:
        raise FolderRefused(f"cannot use data folder {folder}: {error.strerror}") from error


def _reason(folder: Path, error: OSError) -> str:
    """The reason why a folder cannot be made, with its nearest existing ancestor."""
    places = (folder, *folder.absolute().parents)
    there = next(each for each in places if each.exists() or each.is_symlink())
    if not there.exists():
        return f"{there} is a link to nothing"
    if not there.is_dir():
        return f"{there} is not a folder"
    if isinstance(error, FileNotFoundError):  # as from /proc
        return f"no folders can be made in {there}"
    return f"{error.strerror} in {there}"


def _create(folder: Path, shards: range) -> None:
    names = sorted(child.name for child in folder.iterdir())
    if BACKUP_FILE in names:
        raise FolderRefused(f"{folder} is a backup: make a data folder of it with holdfast restore")
    if any(name.startswith("shard-") for name in names):
        raise FolderRefused(f"data folder {folder} has shards but no {FORMAT_FILE}")
    foreign = [name for name in names if _MAY_BE_THERE.fullmatch(name) is None]
    if foreign:
        raise FolderRefused(
            f"{folder} is not a data folder and not empty: it has {foreign[0]}. "
            "Name a new or an empty folder"
        )
    write_format(folder, {str(number): f"shard-{number}" for number in shards})


def write_format(folder: Path, shards: Mapping[str, str]) -> None:
    """Make it a data folder of the current format, with these shards; durable when it returns.

    The copy comes first: where both can be read, the file itself counts. Raises OSError.
    """
    content = {"format": FORMAT_VERSION, "shards": dict(shards)}
    for file in (folder / _COPY, folder / FORMAT_FILE):
        draft = file.with_suffix(".new")
        with draft.open("w") as stream:
            json.dump(content | {"crc32": _checksum(content)}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.rename(file)
        sync_folder(folder)


def add_shards(folder: Path, shards: int) -> dict[int, Path]:
    """Give the folder at least this many shards, new ones empty, while nothing else uses it.
    Returns each shard's folder. Raises FolderRefused."""
    found = _read(folder)
    missing = [number for number in range(shards) if number not in found]
    if missing:
        names = {str(number): path.name for number, path in found.items()}
        try:
            write_format(folder, names | {str(number): f"shard-{number}" for number in missing})
        except OSError as error:
            raise FolderRefused(f"cannot write {folder / FORMAT_FILE}: {error.strerror}") from error
    return _read(folder)


def renew_format(folder: Path) -> None:
    """Make both copies of the file equal, after `open_folder`. Raises FolderRefused."""
    try:
        texts = {file.read_bytes() for file in (folder / FORMAT_FILE, folder / _COPY)}
    except FileNotFoundError:
        texts = set()
    except OSError as error:
        raise FolderRefused(f"cannot use data folder {folder}: {error.strerror}") from error
    if len(texts) != 1:
        shards = _read(folder)
        try:
            write_format(folder, {str(number): path.name for number, path in shards.items()})
        except OSError as error:
            raise FolderRefused(f"cannot write {folder / FORMAT_FILE}: {error.strerror}") from error


def damaged_formats(folder: Path) -> list[str]:
    """Damage of the file and its copy, one line each; a format before 4 has no copy. Raises
    OSError."""
    found = {file: _look(file)[1] for file in (folder / FORMAT_FILE, folder / _COPY)}
    return [
        f"{file} is damaged: {damage}"
        for file, damage in found.items()
        if damage and (damage is not _MISSING or file.name == FORMAT_FILE)
    ]


def _checksum(content: dict[str, object]) -> int:
    """Checksum of the content, independent of its formatting: a flipped bit in a name would begin
    an empty shard."""
    return crc32(json.dumps(content, sort_keys=True).encode())


def history_file(folder: Path, worker: int) -> Path:
    """The database of the charts; each worker of a folder has one."""
    return folder / (f"history-w{worker}.sqlite" if worker else "history.sqlite")


def is_history(file: Path) -> bool:
    """True for a database of charts: a running service has it for itself, and can do without."""
    return _HISTORY.fullmatch(file.name) is not None


def is_unused(folder: Path) -> bool:
    """True if the folder is still empty."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not a data folder. Changes nothing. Raises FolderRefused."""
    if not _is_ours(folder):
        raise FolderRefused(f"{folder} is not a data folder")
    _read(folder)


def _is_ours(folder: Path) -> bool:
    return (folder / FORMAT_FILE).is_file() or (folder / _COPY).is_file()


def _read(folder: Path) -> dict[int, Path]:
    file = folder / FORMAT_FILE
    content = read_format(folder)
    version = content["format"]
    if version != FORMAT_VERSION:
        hint = f"; convert it with holdfast convert {folder}" if version == 3 else ""
        raise FolderRefused(
            f"data folder {folder} has format {version}; "
            f"this version of holdfast knows {FORMAT_VERSION}{hint}"
        )
    named = content["shards"]
    assert isinstance(named, dict)
    try:
        shards = {int(number): folder / str(name) for number, name in named.items()}
    except ValueError as error:
        raise FolderRefused(f"{file} is damaged: {error}") from error
    if not shards:
        raise FolderRefused(f"{file} is damaged: it names no shard")
    return shards


def read_format(folder: Path) -> dict[str, object]:
    """The file's content: `format`, and `shards` if this version knows the format; from the copy if
    the file is damaged. Raises FolderRefused."""
    file, copy = folder / FORMAT_FILE, folder / _COPY
    try:
        content, damage = _look(file)
        if not damage and content is not None:
            return content
        sound, also_damaged = _look(copy)
    except NotADirectoryError as error:
        raise FolderRefused(f"{folder} is not a data folder") from error
    except OSError as error:
        raise FolderRefused(f"cannot use {error.filename}: {error.strerror}") from error
    if sound is not None and not also_damaged:
        _log.error("second_copy_used: %s was read in place of %s: %s", copy, file.name, damage)
        return sound
    if content is not None:  # of an unknown format, which may have another checksum
        return content
    if damage is _MISSING:
        raise FolderRefused(f"{folder} is not a data folder")
    raise FolderRefused(f"{file} is damaged: {damage}")


def _look(file: Path) -> tuple[dict[str, object] | None, str]:
    """The readable content of a file, and its damage. Raises OSError."""
    try:
        content: dict[str, object] = json.loads(file.read_text())
        is_sound = content.pop("crc32", None) == _checksum(content)
        is_known = content["format"] in _CHECKED
    except FileNotFoundError:
        return None, _MISSING
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, str(error)
    if not is_sound:
        return None if is_known else content, "its checksum does not match"
    if is_known and not isinstance(content.get("shards"), dict):
        return None, "it names no shards"
    return content, ""


def sync_folder(folder: Path) -> None:
    """Make renames in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
