"""Runs that write to the archive, and the sweep of files that dead runs left behind.

A run keeps a file in LAKE/runs with a heartbeat, and a sweep does nothing while other runs are
alive. Heartbeats only avoid needless conflicts; the fence (`delta_archive`) protects the table.

The order of its steps makes a sweep safe, without a clock: it lists the files, then the runs, then
reads the newest version of the table. A listed file that no version has, while no other run is
alive, is an orphan. But a run may only seem dead. So the sweep raises the fence on that very
version, which fails if such a run has just committed and makes its later commit fail; only then it
deletes the files.

It lists all files of the archive, so only a run that may have left orphans sweeps, or finds a dead
run. One that ends without the sweep it needs leaves a note that says so.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from contextlib import suppress

from spark_jobs.archive.delta_archive import commit_to, fence, file_paths, removed_files
from spark_jobs.lib.delta import NotCommitted
from storage.lake.archive_schema import ARCHIVE, RUNS
from storage.lake.archive_table import load_archive
from storage.lake.table import Lake, LakeUnusable

PART_NAME = re.compile(r".*/part-(archive|compact)-[0-9a-f]{32}-[^/]*\.parquet")
"""Files of our jobs; the sweep leaves others alone."""
_ENDED = ".ended.json"
"""End of the note of a run that needs a sweep; others end with .json."""
_BEAT_S = 30.0
_DEAD_S = 600.0


class Run:
    """A run of a job, alive until the block ends. `name` is unique."""

    def __init__(self, lake: Lake, job: str) -> None:
        self.name = f"{job}-{uuid.uuid4().hex}"
        self.leaves_orphans = False
        """True once the run may have written a file that it does not commit."""
        self._lake = lake
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Run:
        self._write_heartbeat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(LakeUnusable):  # without a heartbeat it is dead in ten minutes
            if self.leaves_orphans:
                self._lake.write(f"{RUNS}/{self.name}{_ENDED}", b"{}")
            self._lake.remove(self._path)

    def others(self) -> tuple[list[str], list[str]]:
        """Files of the other runs, alive and dead. Raises LakeUnusable.

        Their age is relative to a heartbeat written now, so only the lake's clock counts.
        """
        self._write_heartbeat()
        beats = {file.path: file.modified_s for file in self._lake.list(RUNS)}
        now_s = beats.pop(self._path, max(beats.values(), default=0.0))
        alive = [
            path
            for path, modified_s in beats.items()
            if now_s - modified_s < _DEAD_S and not path.endswith(_ENDED)
        ]
        return alive, [path for path in beats if path not in alive]

    @property
    def _path(self) -> str:
        return f"{RUNS}/{self.name}.json"

    def _write_heartbeat(self) -> None:
        self._lake.write(self._path, json.dumps({"run": self.name}).encode())

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            with suppress(LakeUnusable):  # the next one may succeed
                self._write_heartbeat()


def sweep(lake: Lake, run: Run) -> int:
    """Remove orphans, if there can be any and no other run is alive; their number.

    Raises LakeUnusable.
    """
    if not run.leaves_orphans and not run.others()[1]:
        return 0
    parts = [file.path for file in lake.list(ARCHIVE) if PART_NAME.fullmatch(file.path)]
    drafts = [file.path for file in lake.list_drafts(ARCHIVE)]
    alive, dead = run.others()
    table = load_archive(lake)
    if alive or table is None:
        return 0
    kept = {*file_paths(table), *removed_files(table)}
    orphans = [path for path in parts if path.removeprefix(f"{ARCHIVE}/") not in kept] + drafts
    if orphans:
        try:
            commit_to(table, [], {}, fence(table) + 1)
        except NotCommitted:
            return 0  # another run committed meanwhile, and will sweep
        for path in orphans:
            lake.remove(path)
    for path in dead:
        lake.remove(path)
    run.leaves_orphans = False
    return len(orphans)
