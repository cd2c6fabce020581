"""The ledger forgets nothing, wherever a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.replay.ledger import Ledger, Named
from storage.lake.table import Lake, LakeUnusable

FOLDER = "replays/orders/default"


def named(*positions: int, shard: int = 0) -> list[Named]:
    return [Named("data-1", shard, position) for position in positions]


def remembered(lake: Lake) -> set[tuple[object, ...]]:
    rows = Ledger(lake, FOLDER, "reader").read().to_pylist()
    return {tuple(row.values()) for row in rows}


def files(lake: Lake) -> list[str]:
    return [Path(file.path).name.partition("-")[0] for file in lake.list(FOLDER)]


def test_ledger_that_is_not_there_is_empty(lake: Lake) -> None:
    assert remembered(lake) == set()
    assert not list(Path(lake.url).iterdir())


def test_what_was_added_is_there_without_a_merge(lake: Lake) -> None:
    ledger = Ledger(lake, FOLDER, "run-1")

    ledger.add(named(3, 1))
    ledger.add(named(2, shard=1))

    assert remembered(lake) == {("data-1", 0, 3), ("data-1", 0, 1), ("data-1", 1, 2)}


def test_merge_makes_one_file_of_all_runs(lake: Lake) -> None:
    for run in ("run-1", "run-2"):
        ledger = Ledger(lake, FOLDER, run)
        for position in range(5):
            ledger.add(named(position, position + 100))
        ledger.merge()

    assert files(lake) == ["merged"]
    assert remembered(lake) == set(named(*range(5), *range(100, 105)))


def test_merge_of_one_file_leaves_it_alone(lake: Lake) -> None:
    Ledger(lake, FOLDER, "run-1").add(named(1))
    Ledger(lake, FOLDER, "run-2").merge()
    before = lake.list(FOLDER)

    Ledger(lake, FOLDER, "run-3").merge()

    assert lake.list(FOLDER) == before


def test_number_of_files_is_bounded_during_a_run(lake: Lake) -> None:
    ledger = Ledger(lake, FOLDER, "run-1", merge_every=4)

    for position in range(10):
        ledger.add(named(position))

    assert files(lake) == ["batch", "batch", "merged", "merged"]
    assert remembered(lake) == set(named(*range(10)))


class Crash(Exception):
    """The process ends here."""


class FailingLake(Lake):
    """Ends the process at the given write or removal, before or after it."""

    def __init__(self, url: str, at: int) -> None:
        super().__init__(url)
        self._left = at

    def _put(self, draft: Path, target: Path) -> None:
        self._step()
        super()._put(draft, target)
        self._step()

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Crash


def test_crash_at_any_step_forgets_nothing_that_was_added(tmp_path: Path) -> None:
    at = 0
    is_complete = False
    while not is_complete:
        lake = FailingLake(str(tmp_path / f"lake-{at}"), at)
        ledger = Ledger(lake, FOLDER, "run-1", merge_every=3)
        added: list[Named] = []
        try:
            for position in range(8):
                ledger.add(named(position))
                added += named(position)
            ledger.merge()
            is_complete = True
        except Crash:
            pass
        at += 1

        found = remembered(Lake(lake.url))
        assert set(added) <= found <= set(named(*range(len(added) + 1)))
        rerun = Ledger(Lake(lake.url), FOLDER, "run-2")
        rerun.add(named(*range(8)))
        rerun.merge()
        assert files(Lake(lake.url)) == ["merged"]
        assert remembered(Lake(lake.url)) == set(named(*range(8)))

    assert at > 20


@pytest.mark.parametrize("content", [b"[[", b"5", b'[["data-1", "x", 3]]', b'[["data-1"]]'])
def test_damaged_file_is_named(lake: Lake, content: bytes) -> None:
    lake.write(f"{FOLDER}/sent/batch-run-1-000000001.json", content)

    with pytest.raises(LakeUnusable, match=r"batch-run-1-000000001\.json"):
        remembered(lake)


def test_merged_ledger_is_small(lake: Lake) -> None:
    ledger = Ledger(lake, FOLDER, "run-1")
    ledger.add(named(*range(0, 300_000, 3)))
    ledger.add(named(1))

    ledger.merge()

    assert lake.list(FOLDER)[0].size < 100_000 * 2
