"""Files of a lake appear whole, replace each other whole, and are found by their folders."""

from __future__ import annotations

import errno
import os
import pickle
from io import FileIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from storage.lake.lake_permissions import read_umask
from storage.lake.table import Lake, LakeFile, LakeUnusable, ObjectStore


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def paths(files: list[LakeFile]) -> list[str]:
    return [file.path for file in files]


def test_a_file_is_read_as_it_was_written_last(lake: Lake) -> None:
    lake.write("a/b/c", b"one")
    lake.write("a/b/c", b"two!")

    assert lake.read("a/b/c") == b"two!"
    assert lake.read("a/b") is None
    assert lake.read("nothing") is None
    (file,) = lake.list("a")
    assert (file.path, file.size) == ("a/b/c", 4)


def test_a_draft_that_fails_leaves_nothing_and_is_not_listed_while_it_is_written(
    lake: Lake,
) -> None:
    lake.write("folder/old", b"old")

    def fail_half_way() -> None:
        with lake.draft("folder/new") as draft:
            draft.write_bytes(b"half")
            assert paths(lake.list("folder")) == ["folder/old"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()

    assert paths(lake.list("")) == ["folder/old"]
    assert [path.name for path in Path(lake.path("folder")).iterdir()] == ["old"]


def test_an_object_that_was_cut_off_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    here = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **_: here)
    store = ObjectStore("key", "secret", None, "eu-west-1", "http://127.0.0.1:1")
    lake = Lake("s3://bucket", store)
    monkeypatch.setattr("storage.lake.table.CHUNK_BYTES", 4)
    lake.write("whole", b"two chunks")

    def stop_after_one_chunk(draft: Path, mode: str) -> FileIO:
        return _Interrupted(draft, mode)

    monkeypatch.setattr(Path, "open", stop_after_one_chunk)
    with pytest.raises(KeyboardInterrupt):
        lake.write("cut", b"two chunks")

    assert paths(lake.list("")) == ["whole"]


class _Interrupted(FileIO):
    def read(self, size: int | None = -1, /) -> bytes | Any:
        if self.tell():
            raise KeyboardInterrupt
        return super().read(size)


def modes(lake: Lake) -> dict[str, int]:
    """The permissions of the lake, its folders and files, with the bit that passes on a group."""
    root = Path(lake.url)
    found = [root, *root.rglob("*")]
    return {str(path.relative_to(root)): path.stat().st_mode & 0o7777 for path in found}


@pytest.mark.parametrize("of_the_process", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(
    ("umask", "folder", "file"),
    [(0o077, 0o700, 0o600), (0o027, 0o750, 0o640), (0o007, 0o770, 0o660), (0, 0o777, 0o666)],
)
def test_permissions_are_those_of_the_umask_whatever_the_process_has(
    tmp_path: Path, of_the_process: int, umask: int, folder: int, file: int
) -> None:
    lake = pickle.loads(pickle.dumps(Lake(str(tmp_path / "lake"), umask=umask)))
    before = os.umask(of_the_process)
    try:
        lake.write("a/b/c", b"")
    finally:
        os.umask(before)

    assert modes(lake) == {".": folder, "a": folder, "a/b": folder, "a/b/c": file}


def test_folders_pass_on_the_group_of_a_lake_that_does(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(0o2770)
    lake = Lake(str(tmp_path / "lake"), umask=0o027)

    lake.write("a/b", b"")

    assert modes(lake) == {".": 0o2770, "a": 0o2750, "a/b": 0o640}


@pytest.mark.parametrize("text", ["", "27", "777", "0777", "100", "08", "u=rwx", "027\n", "+27"])
def test_a_umask_is_octal_and_leaves_the_owner_everything(text: str) -> None:
    with pytest.raises(ValueError, match="octal umask"):
        read_umask(text)


def test_umasks_are_read() -> None:
    assert [read_umask(text) for text in ("077", "0027", "000")] == [0o077, 0o027, 0]


def test_without_a_umask_the_lake_is_its_owners_alone(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))

    lake.write("a/b", b"")

    assert modes(lake) == {".": 0o700, "a": 0o700, "a/b": 0o600}


def test_a_lake_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    Lake(str(shared)).write("a/b", b"")
    assert shared.stat().st_mode & 0o777 == 0o755


def test_drafts_and_whole_folders_can_be_found_and_removed(lake: Lake) -> None:
    lake.write("a/b/c", b"")
    with lake.draft("a/b/d"):
        (draft,) = lake.list_drafts("a")
        assert draft.name.startswith(".draft-")
    assert lake.list_drafts("a") == []

    lake.remove_folder("a/b")

    assert lake.list("a") == []
    assert not Path(lake.path("a/b")).exists()


def test_folders_that_do_not_exist_are_empty_and_removing_nothing_is_no_error(lake: Lake) -> None:
    assert lake.list("nowhere") == []
    lake.remove("nowhere/file")
    lake.remove_folder("nowhere")


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), pa.ArrowInvalid("No space left")]
)
def test_a_draft_that_cannot_be_written_names_its_file_and_leaves_nothing(
    lake: Lake, failure: Exception
) -> None:
    with pytest.raises(LakeUnusable, match=r"lake/a/b: .*No space left"), lake.draft("a/b"):
        raise failure

    assert lake.list_drafts("a") == lake.list("a") == []


def test_what_cannot_be_used_is_named(lake: Lake, tmp_path: Path) -> None:
    Path(lake.url).write_text("a file")
    with pytest.raises(LakeUnusable, match="lake/folder/file"):
        lake.write("folder/file", b"")
    with pytest.raises(LakeUnusable, match="must be a folder or s3://"):
        Lake("http://somewhere/else")
    for name in ("a[1]", "%41", "back\\slash"):
        with pytest.raises(LakeUnusable, match="with which Delta tables do not work"):
            Lake(str(tmp_path / name / "lake"))
    Path(lake.url).unlink()
    lake.write("damaged.json", b"{")
    with pytest.raises(LakeUnusable, match=r"damaged\.json is damaged"):
        lake.read_json("damaged.json")


def test_a_lake_can_be_sent_to_executors(tmp_path: Path) -> None:
    lake = Lake(f"file://{tmp_path}")
    again = pickle.loads(pickle.dumps(lake))
    lake.write("x", b"1")

    assert again.read("x") == b"1"
    store = ObjectStore("key", "secret", None, "eu-west-1", "http://127.0.0.1:1")
    assert pickle.loads(pickle.dumps(Lake("s3://bucket/prefix", store))).url == "s3://bucket/prefix"


def test_the_lakes_own_variables_go_before_those_of_the_queue_service() -> None:
    queues = {
        "AWS_ACCESS_KEY_ID": "queues",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9324",
    }
    own = {
        "HOLDFAST_LAKE_ACCESS_KEY_ID": "lake",
        "HOLDFAST_LAKE_SECRET_ACCESS_KEY": "t",
        "HOLDFAST_LAKE_ENDPOINT_URL": "http://127.0.0.1:9000",
    }

    assert ObjectStore.from_environment(queues) == ObjectStore("queues", "s", None, "us-east-1")
    assert ObjectStore.from_environment(queues | own) == ObjectStore(
        "lake", "t", None, "us-east-1", "http://127.0.0.1:9000"
    )


def test_delta_is_told_how_to_reach_an_object_store_and_nothing_of_a_folder(tmp_path: Path) -> None:
    assert Lake(str(tmp_path)).storage_options() == {}
    store = ObjectStore("key", "secret", None, "eu-west-1", "http://127.0.0.1:1")
    assert Lake("s3://bucket/prefix", store).storage_options() == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
    }
