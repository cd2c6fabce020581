"""Runs: the jobs that are writing to the lake note themselves in it, and say again and again that they live.

The notes only keep a sweep from taking the files of a run that it could see; what keeps the table whole is the fence
(`table`).

Sweep: removes what runs that ended early left in the archive's folder.

The order makes it safe, not a clock: the files are listed first, then the runs, then the newest version of the table
is read. A file of the list that no version within reach has, while no other run lives, is an orphan; but a run may
only seem dead. So the fence is raised upon that very version (which is refused if such a run has just committed, and
makes its commit be refused later), and only then the files go.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from contextlib import suppress
from types import TracebackType

from spark_jobs.archive.table import commit_to, fence, removed_files, table_files
from spark_jobs.lib.delta import NotCommitted, load_table
from storage.archive_schema import ARCHIVE, RUNS
from storage.lake import Lake, LakeUnusable

PART_NAME = re.compile(r".*/part-(archive|compact)-[0-9a-f]{32}-[^/]*\.parquet")
"""Files of our jobs; what others put into the folder is theirs."""
_BEAT_S = 30.0
_DEAD_S = 600.0


class Run:
    """A job while its block lasts. `name` is the run's own."""

    def __init__(self, lake: Lake, job: str) -> None:
        self.name = f"{job}-{uuid.uuid4().hex}"
        self._lake = lake
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Run:
        self._note()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(LakeUnusable):  # the note is ten minutes from being dead anyway
            self._lake.remove(self._path)

    def others(self) -> tuple[list[str], list[str]]:
        """The notes of other runs: of those that live, and of those that are dead. Raises LakeUnusable.

        Their age is taken against a note written now, so that the lake's clock is the only one.
        """
        self._note()
        notes = {file.path: file.modified_s for file in self._lake.list(RUNS)}
        now_s = notes.pop(self._path, max(notes.values(), default=0.0))
        live = [path for path, modified_s in notes.items() if now_s - modified_s < _DEAD_S]
        return live, [path for path in notes if path not in live]

    @property
    def _path(self) -> str:
        return f"{RUNS}/{self.name}.json"

    def _note(self) -> None:
        self._lake.write(self._path, json.dumps({"run": self.name}).encode())

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            with suppress(LakeUnusable):  # the next one may succeed
                self._note()


def sweep(lake: Lake, run: Run) -> int:
    """Remove orphans, and say how many. None are removed while other runs live: the last one to end does it. Raises
    LakeUnusable."""
    parts = [file.path for file in lake.list(ARCHIVE) if PART_NAME.fullmatch(file.path)]
    drafts = [file.path for file in lake.list_drafts(ARCHIVE)]
    live, dead = run.others()
    table = load_table(lake)
    if live or table is None:
        return 0
    kept = {*(file.path for file in table_files(table)), *removed_files(table)}
    orphans = [path for path in parts if path.removeprefix(f"{ARCHIVE}/") not in kept] + drafts
    if orphans:
        try:
            commit_to(table, [], {}, fence(table) + 1)
        except NotCommitted:
            return 0  # another run came between, and will sweep
        for path in orphans:
            lake.remove(path)
    for path in dead:
        lake.remove(path)
    return len(orphans)
