"""The data folder: made once, refused if this version does not know its format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.files import folder
from storage.files.folder import (
    FolderRefused,
    damaged_formats,
    history_file,
    is_history,
    open_folder,
    renew_format,
    write_format,
)


def test_a_new_folder_gets_the_format_file_and_one_shard(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"

    shards = open_folder(folder)

    assert shards == {0: folder / "shard-0"}
    made = json.loads((folder / "format.json").read_text())
    assert (made["format"], made["shards"]) == (4, {"0": "shard-0"})


def test_a_folder_opens_again_unchanged(tmp_path: Path) -> None:
    open_folder(tmp_path)
    before = (tmp_path / "format.json").read_bytes()

    assert open_folder(tmp_path) == {0: tmp_path / "shard-0"}
    assert (tmp_path / "format.json").read_bytes() == before


def test_the_map_of_shards_is_read_from_the_file(tmp_path: Path) -> None:
    write_format(tmp_path, {"7": "other"})

    assert open_folder(tmp_path) == {7: tmp_path / "other"}


def test_a_new_folder_has_the_shards_that_it_is_made_for(tmp_path: Path) -> None:
    shards = {0: tmp_path / "shard-0", 1: tmp_path / "shard-1"}

    assert open_folder(tmp_path, 2) == shards
    assert open_folder(tmp_path, 3) == shards, "it keeps its number"


@pytest.mark.parametrize(
    "content",
    [
        {"format": 2, "shards": {"0": "shard-0"}},
        {"format": 5, "shards": {"0": "shard-0"}},
        {"format": 0, "shards": {"0": "shard-0"}},
        {"format": "4", "shards": {"0": "shard-0"}},
        {"format": 5, "hosts": ["whatever a later version keeps here"]},
        {"format": 5, "shards": ["shard-0"]},
    ],
)
def test_an_unknown_format_is_refused_by_its_version(
    tmp_path: Path, content: dict[str, object]
) -> None:
    (tmp_path / "format.json").write_text(json.dumps(content))

    with pytest.raises(FolderRefused, match=r"has format .*knows 4"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"format": 3, "shards": {"a": "b"}}'],
)
def test_a_damaged_format_file_is_refused_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "format.json"
    file.write_bytes(damage)

    with pytest.raises(FolderRefused, match="damaged"):
        open_folder(tmp_path)

    assert file.read_bytes() == damage


def test_shards_without_a_format_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shard-0").mkdir()

    with pytest.raises(FolderRefused, match=r"no format\.json"):
        open_folder(tmp_path)

    assert not (tmp_path / "format.json").exists()


def test_a_draft_that_was_never_finished_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "format.new").write_text("{")

    assert open_folder(tmp_path) == {0: tmp_path / "shard-0"}


def test_a_file_in_place_of_the_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("not a folder")

    with pytest.raises(FolderRefused) as caught:
        open_folder(file)

    assert "\n" not in str(caught.value)


def test_a_name_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    """Otherwise the service would begin an empty shard beside the existing one."""
    open_folder(tmp_path)
    for file in (tmp_path / "format.json", tmp_path / "format.json.copy"):
        file.write_text(file.read_text().replace("shard-0", "shard-1"))

    with pytest.raises(FolderRefused, match="checksum"):
        open_folder(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "app.sqlite", ".git", "data.sqlite-wal"])
def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).touch()

    with pytest.raises(FolderRefused, match=f"not empty: it has {name}"):
        open_folder(tmp_path)

    assert [child.name for child in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["lost+found", "master.key", "audit.log", "records.sqlite-wal"])
def test_what_may_be_there_before_the_first_start_does_not_matter(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).touch()

    assert open_folder(tmp_path) == {0: tmp_path / "shard-0"}


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("/proc/holdfast", "no folders can be made in /proc"),
        ("/proc/self/deep/data", "no folders can be made in /proc/self"),
        ("/dev/null", "/dev/null is not a folder"),
        ("/dev/null/data", "/dev/null is not a folder"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(folder: str, reason: str) -> None:
    with pytest.raises(FolderRefused) as caught:
        open_folder(Path(folder))

    assert str(caught.value) == f"cannot make data folder {folder}: {reason}"


@pytest.mark.parametrize("target", ["data", "nothing/there"])
def test_a_link_to_nothing_is_not_made_a_folder(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "data"
    folder.symlink_to(target)

    with pytest.raises(FolderRefused, match=rf"cannot make .*: {folder} is a link to nothing"):
        open_folder(folder)


# -- the second copy -------------------------------------------------------------------------------


def test_a_flipped_bit_in_the_format_file_is_read_past_and_healed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = open_folder(tmp_path)
    for name in ("format.json", "format.json.copy"):
        sound = (tmp_path / name).read_bytes()
        for at in range(len(sound)):
            flipped = bytearray(sound)
            flipped[at] ^= 1 << at % 8
            (tmp_path / name).write_bytes(flipped)

            assert open_folder(tmp_path) == shards, at
            assert len(damaged_formats(tmp_path)) == 1

            renew_format(tmp_path)
            assert (tmp_path / "format.json").read_bytes() == sound
            assert (tmp_path / "format.json.copy").read_bytes() == sound
    said = f"second_copy_used: {tmp_path / 'format.json.copy'} was read in place of format.json: "
    assert all(message.startswith(said) for message in caplog.messages)
    assert caplog.messages


def test_a_missing_format_file_is_written_from_its_copy_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    shards = open_folder(tmp_path)
    for name in ("format.json", "format.json.copy"):
        (tmp_path / name).unlink()

        assert open_folder(tmp_path) == shards
        renew_format(tmp_path)

        assert (tmp_path / name).exists()


def test_a_sound_file_of_another_format_is_refused_whatever_its_copy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(tmp_path)
    copy = (tmp_path / "format.json.copy").read_bytes()
    with monkeypatch.context() as later:
        later.setattr(folder, "FORMAT_VERSION", 99)
        write_format(tmp_path, {"0": "shard-0"})
    (tmp_path / "format.json.copy").write_bytes(copy)

    with pytest.raises(FolderRefused, match="has format 99"):
        open_folder(tmp_path)


def test_a_first_start_that_is_cut_off_between_both_copies_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[Path] = []
    rename = Path.rename

    def rename_once(file: Path, target: Path) -> Path:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(target)
        return rename(file, target)

    with monkeypatch.context() as crashing:
        crashing.setattr(Path, "rename", rename_once)
        with pytest.raises(KeyboardInterrupt):
            open_folder(tmp_path)

    assert open_folder(tmp_path) == {0: tmp_path / "shard-0"}


@pytest.mark.parametrize("worker", [0, 1, 12])
def test_the_charts_of_each_worker_are_known_by_their_names(tmp_path: Path, worker: int) -> None:
    assert is_history(history_file(tmp_path, worker))


@pytest.mark.parametrize("name", ["records.sqlite", "usage.sqlite", "history-of-orders.sqlite"])
def test_no_other_database_is_taken_for_charts(tmp_path: Path, name: str) -> None:
    assert not is_history(tmp_path / name)
