"""`holdfast lake-search`, `lake-archived`: the processes in which a service reads the archive.

Not for people. A search is waited for, and takes less time than it would to read the code of all
commands: so these read none of it, nor numpy, which pyarrow can do without.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

_NICE = 10
_WRONG_USE = 2


def run() -> None:
    """Answer the question of this process on standard output, and exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the service ends this process
    sys.modules["numpy"] = None  # type: ignore[assignment]  # cannot be imported
    from storage.lake.table import LakeUnusable

    answer = QUESTIONS[sys.argv[1]]
    try:
        sys.stdout.buffer.write(answer(sys.stdin.buffer.read()))
    except LakeUnusable as error:
        sys.stderr.write(f"holdfast: {error}\n")
        sys.exit(_WRONG_USE)


def _search(asked: bytes) -> bytes:
    """The page that a search finds."""
    from sqs_api.archiving.archive_search import ArchiveSearch
    from sqs_api.archiving.lake_search import search
    from storage.lake.table import Lake, ObjectStore

    os.nice(_NICE)  # messages come first
    wanted = msgspec.json.decode(asked, type=ArchiveSearch)
    lake = Lake(wanted.lake, ObjectStore.from_environment(os.environ))
    return msgspec.json.encode(search(lake, wanted))


def _archived(asked: bytes) -> bytes:
    """The reason why a claim is wrong, or null."""
    from storage.lake.archived_batch import ArchivedTask, refute
    from storage.lake.table import Lake, ObjectStore

    task = msgspec.json.decode(asked, type=ArchivedTask)
    lake = Lake(task.lake, ObjectStore.from_environment(os.environ))
    return msgspec.json.encode(refute(lake, task.claimed))


QUESTIONS = {"lake-search": _search, "lake-archived": _archived}
"""By the command."""
