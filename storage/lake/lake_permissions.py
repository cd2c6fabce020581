"""Path and permissions of a lake that is a folder."""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = "077"
"""The default: archived messages are for their owner."""
FOLDER, FILE = 0o777, 0o666
"""Modes of new folders and files before the umask."""
UMASK_VARIABLE = "HOLDFAST_LAKE_UMASK"
"""Variable of the environment, for service and jobs."""
UMASK = "0?0[0-7]{2}"
"""Pattern of an octal umask that leaves the owner everything."""


_NOT_FOR_TABLES = re.compile(r"[\[\]\\]|%[0-9A-Fa-f]{2}")


def check_path(folder: str) -> None:
    """Refuse an absolute path at which delta-rs would look elsewhere for a table, or panic. Raises
    ValueError."""
    found = _NOT_FOR_TABLES.search(folder)
    if found is not None:
        raise ValueError(f"its path has {found[0]}, with which Delta tables do not work")


def read_umask(text: str) -> int:
    """The permissions that new files and folders lack, as umask(1) writes them. Raises
    ValueError."""
    if re.fullmatch(UMASK, text) is None:
        raise ValueError(
            "must be an octal umask that leaves the owner everything, from 000 to 077, such as 027"
        )
    return int(text, 8)


def make_folder(folder: Path, umask: int) -> None:
    """Make a folder, if there is none, with the umask whatever the process has. It passes on its
    group if the folder that it is in does. Raises OSError."""
    with suppress(FileExistsError):
        folder.mkdir()
        inherited = folder.stat().st_mode & stat.S_ISGID
        folder.chmod(FOLDER & ~umask | inherited)
