"""The data folder: its format version and the map from shards to folders, both fixed when the folder is made.

    DATA/format.json     {"format": 3, "shards": {"0": "shard-0"}, "crc32": 1234}, and DATA/format.json.copy the same
    DATA/shard-0/        RocksDB of shard 0
    DATA/catalog.sqlite  definitions of queues (cluster/catalog/catalog.py)
    DATA/shard-0.answered  how far answers of shard 0 went out (answered.py)
    DATA/keyring.sqlite  the keys of messages and secrets (cluster/keys/keyring.py), under DATA/master.key
    DATA/identities.sqlite  users and access keys (cluster/keys/identity_store.py)
    DATA/*.sqlite.copy   second copies of these three (storage/copies/second_copy.py)
    DATA/usage.sqlite    what accounts did, and DATA/usage-*.journal what they did last (sqs_api/gateway/usage.py)

More shards and more folders can be added later without touching what is there.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from storage.rows.keys import FORMAT_VERSION

_FILE = "format.json"
_COPY = "format.json.copy"
_log = logging.getLogger("holdfast.files")
_MAY_BE_THERE = re.compile(
    r"format(\.json)?\.new|format\.json\.copy|(catalog|keyring|identities|usage)\.sqlite(\.copy)?(\.new)?(-wal|-shm|-journal)?"
    r"|master\.key(\..*)?|audit\.log(\..*)?|backup-draft|lost\+found"
)
"""Names in a folder that becomes a data folder: what others put there first, and what a first start that was cut off left.
`lost+found` is in each new file system."""


class FolderRefused(Exception):
    """The folder cannot be used; the text says why in one line."""


class _FormatDamaged(FolderRefused):
    """The file is not what was written, as far as this version can tell: its copy may be."""


def open_folder(folder: Path) -> dict[int, Path]:
    """Make the folder if it does not exist. Returns each shard's folder. Raises FolderRefused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderRefused(
            f"cannot make data folder {folder}: {_reason(folder, error)}"
        ) from error
    try:
        if not _is_ours(folder):
            _create(folder)
        return _read(folder)
    except OSError as error:
        raise FolderRefused(f"cannot use data folder {folder}: {error.strerror}") from error


def _reason(folder: Path, error: OSError) -> str:
    """The reason why a folder cannot be made, with the nearest thing above it that exists."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    if isinstance(error, FileNotFoundError):  # as from /proc
        return f"no folders can be made in {there}"
    return f"{error.strerror} in {there}"


def _create(folder: Path) -> None:
    names = sorted(child.name for child in folder.iterdir())
    if any(name.startswith("shard-") for name in names):
        raise FolderRefused(f"data folder {folder} has shards but no {_FILE}")
    foreign = [name for name in names if _MAY_BE_THERE.fullmatch(name) is None]
    if foreign:
        raise FolderRefused(
            f"{folder} is not a data folder and not empty: it has {foreign[0]}. "
            "Name a new or an empty folder"
        )
    write_format(folder, {"0": "shard-0"})


def write_format(folder: Path, shards: Mapping[str, str]) -> None:
    """Make it a data folder of the current format, with these shards; durable when it returns. Raises OSError.

    The copy comes first: where both can be read, the file itself counts.
    """
    content = {"format": FORMAT_VERSION, "shards": dict(shards)}
    for file in (folder / _COPY, folder / _FILE):
        draft = file.with_suffix(".new")
        with draft.open("w") as stream:
            json.dump(content | {"crc32": _checksum(content)}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.rename(file)
        sync_folder(folder)


def renew_format(folder: Path) -> None:
    """Have both copies of the file say the same; `open_folder` comes first. Raises FolderRefused."""
    try:
        texts = {file.read_bytes() for file in (folder / _FILE, folder / _COPY)}
    except FileNotFoundError:
        texts = set()
    except OSError as error:
        raise FolderRefused(f"cannot use data folder {folder}: {error.strerror}") from error
    if len(texts) != 1:
        shards = _read(folder)
        try:
            write_format(folder, {str(number): path.name for number, path in shards.items()})
        except OSError as error:
            raise FolderRefused(f"cannot write {folder / _FILE}: {error.strerror}") from error


def damaged_formats(folder: Path) -> list[str]:
    """What is wrong with the file or its copy. Raises OSError."""
    found: list[str] = []
    for file in (folder / _FILE, folder / _COPY):
        try:
            _read_file(folder, file)
        except FolderRefused as error:
            found.append(str(error))
        except FileNotFoundError:
            if file.name == _FILE:  # version 0.1 made no copy
                found.append(f"{file} is missing")
    return found


def _checksum(content: dict[str, object]) -> int:
    """Of what the file says, however it is written: a name with a flipped bit would begin an empty shard."""
    return crc32(json.dumps(content, sort_keys=True).encode())


def is_unused(folder: Path) -> bool:
    """Whether nothing is there yet."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not one of ours. Changes nothing. Raises FolderRefused."""
    if not _is_ours(folder):
        raise FolderRefused(f"{folder} is not a data folder")
    _read(folder)


def _is_ours(folder: Path) -> bool:
    return (folder / _FILE).is_file() or (folder / _COPY).is_file()


def _read(folder: Path) -> dict[int, Path]:
    try:
        return _read_file(folder, folder / _FILE)
    except (_FormatDamaged, FileNotFoundError) as refusal:
        try:
            shards = _read_file(folder, folder / _COPY)
        except (FolderRefused, OSError):
            raise refusal from None
        _log.error("second_copy_used: %s was read in place of %s: %s", _COPY, _FILE, refusal)
        return shards


def _read_file(folder: Path, file: Path) -> dict[int, Path]:
    try:
        content = json.loads(file.read_text())
        is_sound = content.pop("crc32", None) == _checksum(content)
        version = content["format"]
        if version != FORMAT_VERSION:
            refused = FolderRefused if is_sound else _FormatDamaged
            raise refused(
                f"data folder {folder} has format {version}; "
                f"this version of holdfast knows {FORMAT_VERSION}"
            )
        if not is_sound:
            raise ValueError("its checksum does not match")
        shards = {int(number): folder / str(name) for number, name in content["shards"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _FormatDamaged(f"{file} is damaged: {error}") from error
    if not shards:
        raise _FormatDamaged(f"{file} is damaged: it names no shard")
    if len(shards) > 1:  # dead letters and move tasks do not cross shards yet
        raise FolderRefused(
            f"data folder {folder} has {len(shards)} shards; this version of holdfast serves one"
        )
    return shards


def sync_folder(folder: Path) -> None:
    """Make renames in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
