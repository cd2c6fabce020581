"""Damage of any file of a database but in its data blocks is made up for by what is kept of it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from rocksdict import Rdict, WriteBatch, WriteOptions

from storage.engines.fresh_rows import finish_switch
from storage.engines.kept_files import KEPT, KeptFiles, names_older_files, note_of, read_note
from storage.engines.readable import open_readable, put_in_place
from storage.engines.rocks import rocks_options
from storage.engines.rocks_view import RocksView
from storage.engines.sst_file import tail_begin
from storage.engines.store import StoreFailed
from storage.rows.damage import walk_rows
from visibility.rows.row_codec import DamagedRecord

Rows = dict[bytes, bytes]
_FLIPS = 6


class Database:
    """Rows without RocksDB's log, as format 4 keeps them, and the rows that must be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = Rdict(str(folder), rocks_options())
        self.files = KeptFiles(folder)
        self.expected: Rows = {}
        self._options = WriteOptions()
        self._options.disable_wal = True  # type: ignore[method-assign, assignment]

    def write(self, seed: int, count: int = 300) -> None:
        """Put, replace and delete rows, including a range at once."""
        chance, batch = Random(seed), WriteBatch(raw_mode=True)
        for _ in range(count):
            key = b"%06d" % chance.randrange(600)
            if chance.random() < 0.3:
                batch.delete(key)
                self.expected.pop(key, None)
            else:
                self.expected[key] = chance.randbytes(100)
                batch.put(key, self.expected[key])
        begin = chance.randrange(500)
        first, last = b"%06d" % begin, b"%06d" % (begin + 40)
        batch.delete_range(first, last)
        self.expected = {k: v for k, v in self.expected.items() if not first <= k < last}
        self.rows.write(batch, self._options)

    def flush(self, *, note: bool = True) -> None:
        self.rows.flush(True)
        if note:
            assert self.files.note(self.rows)

    def compact(self) -> None:
        self.rows.compact_range(None, None)


def read_all(rows: Rdict) -> Rows:
    """By scan and by get, which look for the newest value in different ways."""
    found: Rows = {}
    walk = rows.iter()
    walk.seek(b"")
    while walk.valid():
        found[walk.key()] = walk.value()
        walk.next()
    walk.status()
    keys = [b"%06d" % number for number in range(600)]
    got = {key: rows.get(key) for key in keys}
    assert {key: value for key, value in got.items() if value is not None} == found
    return found


def opened(folder: Path) -> tuple[Rdict, list[str]]:
    finish_switch(folder)
    return open_readable(
        folder,
        lambda folder: Rdict(str(folder), rocks_options()),
        lambda: put_in_place(folder),
    )


def reopened(folder: Path) -> tuple[Rows, list[str]]:
    rows, restored = opened(folder)
    found = read_all(rows)
    rows.close()
    return found, restored


@pytest.fixture
def noted(tmp_path: Path) -> Database:
    """Three levels of age: an old compacted file, and two flushed ones over it."""
    made = Database(tmp_path / "shard-0")
    for seed in (1, 2):
        made.write(seed)
        made.flush()
    made.compact()
    for seed in (3, 4):
        made.write(seed)
        made.flush()
    made.rows.close()
    return made


def flip(file: Path, at: int, chance: Random) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def tails(folder: Path) -> list[tuple[Path, int, int]]:
    return [(file, tail_begin(file), file.stat().st_size) for file in sorted(folder.glob("*.sst"))]


def whole(pattern: str) -> Callable[[Path], list[tuple[Path, int, int]]]:
    def places(folder: Path) -> list[tuple[Path, int, int]]:
        return [(file, 0, file.stat().st_size) for file in sorted(folder.glob(pattern))]

    return places


PLACES = {
    "tail": tails,
    "MANIFEST": whole("MANIFEST-*"),
    "CURRENT": whole("CURRENT"),
    "OPTIONS": whole("OPTIONS-*"),
    "IDENTITY": whole("IDENTITY"),
    "binding": whole("rocksdict-config.json"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_flipped_bit_outside_of_data_blocks_costs_nothing(
    noted: Database, tmp_path: Path, kind: str
) -> None:
    for number in range(_FLIPS):
        chance = Random(f"{kind} {number}")
        here = tmp_path / f"copy-{number}"
        shutil.copytree(noted.folder, here / "shard-0")
        file, begin, end = chance.choice(PLACES[kind](here / "shard-0"))
        flip(file, chance.randrange(begin, end), chance)

        found, _ = reopened(here / "shard-0")

        assert found == noted.expected


@pytest.mark.parametrize("kind", ["tail", "MANIFEST", "CURRENT"])
def test_damaged_file_is_named_and_kept(noted: Database, kind: str) -> None:
    file, _, end = PLACES[kind](noted.folder)[-1]
    flip(file, end - 1, Random(1))
    damaged = file.read_bytes()

    _, restored = reopened(noted.folder)

    assert restored == [file.name]
    assert (noted.folder.with_name("shard-0.damaged") / file.name).read_bytes() == damaged


@pytest.mark.parametrize("at", [0, 100, -1])
def test_manifest_damaged_while_it_is_open_is_noted_as_it_was(tmp_path: Path, at: int) -> None:
    made = Database(tmp_path / "shard-0")
    made.write(1)
    made.flush()
    (file,) = made.folder.glob("MANIFEST-*")
    flip(file, at if at >= 0 else file.stat().st_size - 1, Random(at))
    made.write(2)
    made.flush()
    made.rows.close()

    found, restored = reopened(made.folder)

    assert found == made.expected
    assert restored == [file.name]


def test_manifest_that_became_shorter_is_not_noted(tmp_path: Path) -> None:
    made = Database(tmp_path / "shard-0")
    made.write(1)
    made.flush()
    (file,) = made.folder.glob("MANIFEST-*")
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(ValueError, match="is shorter than it was"):
        made.files.note(made.rows)


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_removed_file_is_there_again(noted: Database, pattern: str) -> None:
    for file in noted.folder.glob(pattern):
        file.unlink()

    found, restored = reopened(noted.folder)

    assert found == noted.expected
    assert restored


@pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_manifest_that_ends_early_is_no_older_database(noted: Database, part: float) -> None:
    """RocksDB takes the end of any record for the end of the file, and removes SST files that it
    does not know."""
    (manifest,) = noted.folder.glob("MANIFEST-*")
    content = manifest.read_bytes()
    manifest.write_bytes(content[: int(part * len(content))])

    found, restored = reopened(noted.folder)

    assert found == noted.expected
    assert restored == [manifest.name]


def test_tables_that_were_cut_short_have_what_is_left_of_their_rows(noted: Database) -> None:
    file, begin, _ = max(tails(noted.folder), key=lambda each: each[2])
    content = file.read_bytes()
    file.write_bytes(content[: begin // 2])

    rows, restored = opened(noted.folder)
    rows.close()
    view = RocksView(noted.folder)
    found = [each for each in walk_rows(view) if not isinstance(each, DamagedRecord)]
    view.close()

    assert restored == [file.name]
    assert 0 < len(found) < len(noted.expected)
    assert set(found) < set(noted.expected.items())


# -- changes since the note ------------------------------------------------------------------------


@pytest.fixture
def outdated(tmp_path: Path) -> Database:
    """Noted; then more was written, flushed and compacted, which removed the files that the note
    names."""
    made = Database(tmp_path / "shard-0")
    for seed in (1, 2):
        made.write(seed)
        made.flush()
    expected = dict(made.expected)
    for seed in (3, 4):
        made.write(seed)
        made.flush(note=False)
    made.compact()
    made.expected = expected
    made.rows.close()
    return made


def test_without_damage_nothing_goes_back_to_the_note(outdated: Database) -> None:
    found, restored = reopened(outdated.folder)

    assert found != outdated.expected
    assert restored == []


@pytest.mark.parametrize("at", [0, 7, 100])
def test_a_manifest_is_older_wherever_its_noted_part_differs(outdated: Database, at: int) -> None:
    """RocksDB takes some damage for the end of the MANIFEST."""
    (manifest,) = outdated.folder.glob("MANIFEST-*")
    assert not names_older_files(outdated.folder)
    flip(manifest, at, Random(1))

    assert names_older_files(outdated.folder)


def test_damaged_manifest_gives_the_database_as_of_the_note(outdated: Database) -> None:
    """Earlier deleted rows do not return from compacted files; the log has all later changes."""
    (manifest,) = outdated.folder.glob("MANIFEST-*")
    later = {file.name for file in outdated.folder.glob("*.sst")}
    flip(manifest, 100, Random(1))

    found, restored = reopened(outdated.folder)

    assert found == outdated.expected
    assert manifest.name in restored
    aside = {file.name for file in outdated.folder.with_name("shard-0.damaged").glob("*.sst")}
    assert aside == later, "not removed, but not used"


def test_damage_behind_the_noted_part_of_the_manifest_goes_back_to_the_note(
    outdated: Database,
) -> None:
    (manifest,) = outdated.folder.glob("MANIFEST-*")
    note = read_note(outdated.folder)
    assert note is not None
    flip(manifest, len(note.content) + 20, Random(1))

    found, _ = reopened(outdated.folder)

    assert found == outdated.expected


def test_each_note_can_be_opened_whatever_is_flushed_and_compacted_beside_it(
    tmp_path: Path,
) -> None:
    made = Database(tmp_path / "shard-0")
    made.write(1)
    made.flush()
    stop = threading.Event()

    def churn() -> None:
        seed = 2
        while not stop.is_set():
            made.write(seed)
            made.rows.flush(True)
            if not seed % 3:
                made.compact()
            seed += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for number in range(20):
            if made.files.note(made.rows):
                kept = tmp_path / f"copy-{number}" / "shard-0" / KEPT
                shutil.copytree(made.folder / KEPT, kept)
    finally:
        stop.set()
        thread.join()
    made.rows.close()
    copies = sorted(tmp_path.glob("copy-*"))
    assert copies
    for copy in copies:
        assert reopened(copy / "shard-0")[0]


# -- the note --------------------------------------------------------------------------------------


def test_note_is_outdated_once_files_come_or_go(tmp_path: Path) -> None:
    made = Database(tmp_path / "shard-0")
    assert made.files.is_outdated()
    made.write(1)
    made.flush()
    assert not made.files.is_outdated()
    made.write(2)
    assert not made.files.is_outdated()
    made.flush(note=False)
    assert made.files.is_outdated()
    made.rows.close()


def test_copies_of_files_that_are_gone_go_with_the_next_note(outdated: Database) -> None:
    made = Database(outdated.folder)
    made.flush()
    made.rows.close()

    here = {file.name for file in made.folder.glob("*.sst")}
    assert {file.name for file in (made.folder / KEPT).glob("*.sst")} == here


@pytest.mark.parametrize("damage", ["flip", "cut", "removed"])
def test_damaged_note_alone_costs_nothing(noted: Database, damage: str) -> None:
    file = note_of(noted.folder)
    if damage == "removed":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        flip(file, 50, Random(1))

    found, restored = reopened(noted.folder)

    assert found == noted.expected
    assert restored == []
    made = Database(noted.folder)
    made.flush()
    made.rows.close()
    assert read_note(noted.folder) is not None


def test_damage_without_a_note_is_refused_and_changes_nothing(noted: Database) -> None:
    note_of(noted.folder).unlink()
    (manifest,) = noted.folder.glob("MANIFEST-*")
    flip(manifest, 50, Random(1))
    before = {file.name: file.read_bytes() for file in noted.folder.glob("*.sst")}

    with pytest.raises(StoreFailed, match="Corruption"):
        opened(noted.folder)

    assert before == {file.name: file.read_bytes() for file in noted.folder.glob("*.sst")}
    assert not noted.folder.with_name("shard-0.damaged").exists()


# -- kills -----------------------------------------------------------------------------------------


class _Killed(Exception):
    """The process ends here."""


def test_restoring_that_is_killed_at_any_step_goes_on_at_the_next_start(
    outdated: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (manifest,) = outdated.folder.glob("MANIFEST-*")
    flip(manifest, 100, Random(1))
    flip(outdated.folder / "CURRENT", 3, Random(1))
    later = {file.name for file in outdated.folder.glob("*.sst")}
    rename, link = Path.rename, os.link
    for steps in range(100):
        here = tmp_path / f"kill-{steps}"
        shutil.copytree(outdated.folder, here / "shard-0")
        left = iter(range(steps))

        def stop_at_last(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise _Killed

        def renamed(self: Path, target: Path, stop: Callable[[], None] = stop_at_last) -> Path:
            stop()
            return rename(self, target)

        def linked(source: Path, target: Path, stop: Callable[[], None] = stop_at_last) -> None:
            stop()
            link(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", renamed)
            patched.setattr(os, "link", linked)
            try:
                reopened(here / "shard-0")
                break
            except _Killed:
                pass
        found, _ = reopened(here / "shard-0")
        assert found == outdated.expected
        aside = {file.name for file in (here / "shard-0.damaged").glob("*.sst")}
        assert aside == later
    assert 3 < steps < 99
