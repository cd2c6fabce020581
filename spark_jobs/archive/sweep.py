"""Sweep: removes what runs that ended early left in the archive's folder.

The order makes it safe, not a clock: the files are listed first, then the runs, then the newest version of the table
is read. A file of the list that no version within reach has, while no other run lives, is an orphan; but a run may
only seem dead. So the fence is raised upon that very version (which is refused if such a run has just committed, and
makes its commit be refused later), and only then the files go.
"""

from __future__ import annotations

import re

from spark_jobs.archive.runs import Run
from spark_jobs.archive.table import (
    NotCommitted,
    commit_to,
    fence,
    load_table,
    removed_files,
    table_files,
)
from storage.archive_schema import ARCHIVE
from storage.lake import Lake

PART_NAME = re.compile(r".*/part-(archive|compact)-[0-9a-f]{32}-[^/]*\.parquet")
"""Files of our jobs; what others put into the folder is theirs."""


def sweep(lake: Lake, run: Run) -> int:
    """Remove orphans, and say how many. None are removed while other runs live: the last one to end does it. Raises
    LakeUnusable."""
    parts = [file.path for file in lake.list(ARCHIVE) if PART_NAME.fullmatch(file.path)]
    drafts = [file.path for file in lake.list_drafts(ARCHIVE)]
    live, dead = run.others()
    table = load_table(lake)
    if live or table is None:
        return 0
    kept = {*table_files(table)["path"].to_pylist(), *removed_files(table)}
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
