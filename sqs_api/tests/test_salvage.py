"""`holdfast salvage`: the new folder verifies clean, starts, and lacks only the reported losses."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from rocksdict import Rdict

from cluster.copies import salvage as salvage_module
from sqs_api.tests.commands import Said, run
from sqs_api.tests.served import names, serving
from storage.checks import readable_rows
from storage.engines.kept_files import KeptFiles, note_of
from storage.engines.opening import open_replayed
from storage.engines.rocks import RocksRows, rocks_options
from storage.engines.sst_file import tail_begin
from storage.files.copying import copy_file, files_below
from storage.files.folder import FolderRefused, add_shards, open_folder
from storage.tests.on_disk import compact
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import queue_key
from visibility.rows.row_values import QueueRow

QUEUES = 6
MESSAGES = 30
ISSUED = 1_000_000
"""Above all sequences that were issued."""
PLACES = [0, *(pytest.param(place, marks=pytest.mark.slow) for place in (1, 2, 3))]


@pytest.fixture(scope="module", autouse=True)
def few_guesses() -> Iterator[None]:
    """Rows behind damage are looked up one by one; the numbers of these queues are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readable_rows, "GUESSES", 100)
        yield


async def _fill(data: Path, killed: Path | None = None) -> None:
    async with serving(data) as served:
        for number in range(QUEUES):
            fifo = {"FifoQueue": "true"} if number % 3 == 2 else {}
            name = f"q{number}{'.fifo' if fifo else ''}"
            await served.call("CreateQueue", QueueName=name, Attributes=fifo)
            for first in range(0, MESSAGES, 10):
                entries = [
                    {"Id": str(n), "MessageBody": f"{name} {n} " + "x" * 100}
                    | (
                        {"MessageGroupId": f"g{n}", "MessageDeduplicationId": f"d{n}"}
                        if fifo
                        else {}
                    )
                    for n in range(first, first + 10)
                ]
                await served.call("SendMessageBatch", QueueUrl=name, Entries=entries)
        await served.call(
            "ReceiveMessage", QueueUrl="q0", MaxNumberOfMessages=5, VisibilityTimeout=9999
        )
        if killed is not None:
            shutil.copytree(data, killed)


def sent() -> set[str]:
    every = (f"q{n}{'.fifo' if n % 3 == 2 else ''}" for n in range(QUEUES))
    return {f"{name} {n} " + "x" * 100 for name in every for n in range(MESSAGES)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder at rest whose rows are in one SST file."""
    data = tmp_path_factory.mktemp("made") / "data"
    asyncio.run(_fill(data))
    open_replayed(data / "shard-0").close()
    compact(data / "shard-0")
    note(data)
    return data


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "source"))


async def _bodies(data: Path) -> set[str]:
    """All message bodies of a service on the folder, including those in flight."""
    found: set[str] = set()
    async with serving(data) as served:
        for url in (await served.call("ListQueues"))["QueueUrls"]:
            name = url.rsplit("/", 1)[1]
            found |= (await served.receive(name)).keys()
    return found


def salvaged(source: Path, new: Path) -> tuple[Said, set[str]]:
    """Salvage, verify, start. Nothing unsent appears, and the source is unchanged."""
    before = {name: (source / name).read_bytes() for name in files_below(source)}
    said = run("salvage", source, "--data", new)
    assert said.status in (0, 1), said
    assert {name: (source / name).read_bytes() for name in files_below(source)} == before
    checked = run("verify", new)
    assert checked.status == 0, checked.out
    bodies = asyncio.run(_bodies(new))
    assert bodies <= sent()
    return said, bodies


def note(source: Path) -> None:
    """As a service does after each flush."""
    rows = Rdict(str(source / "shard-0"), rocks_options())
    assert KeptFiles(source / "shard-0").note(rows)
    rows.close()


def table(source: Path) -> Path:
    (file,) = (source / "shard-0").glob("*.sst")
    return file


def flip(file: Path, at: int, bit: int = 1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= bit
    file.write_bytes(content)


def test_sound_folder_is_copied_whole(source: Path, tmp_path: Path) -> None:
    said, bodies = salvaged(source, tmp_path / "new")

    assert said.status == 0
    assert said.out.count("\n") == 1
    assert f"{QUEUES} queues with rows, {QUEUES * MESSAGES} messages; none known" in said.out
    assert len(bodies) == QUEUES * MESSAGES - 5  # five are in flight
    assert "salvage-scratch" not in names(tmp_path / "new")


@pytest.mark.parametrize("place", PLACES)
def test_damaged_block_costs_its_rows_and_names_their_queues(
    source: Path, tmp_path: Path, place: int
) -> None:
    flip(table(source), Random(place).randrange(tail_begin(table(source))))

    said, bodies = salvaged(source, tmp_path / "new")
    verified = run("verify", source)

    assert said.status == 1
    lost = {body.split()[0] for body in sent() - bodies} - {"q0"}
    for name in lost:
        assert f"({name})" in said.out
    missing = re.search(r"(\d+) known to be missing", said.out)
    if "at least" not in said.out and missing is not None:
        assert len(bodies) == QUEUES * MESSAGES - 5 - int(missing[1])
    assert verified.status == 1
    missed = Counter(body.split()[0] for body in sent() - bodies) - Counter({"q0": 5})  # in flight
    for name, count in missed.items():
        (line,) = (line for line in verified.out.splitlines() if f"({name}): " in line)
        assert f"{MESSAGES - count} messages can be read, " in line
        assert f" {count} missing" in line or "at least" in line


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT", "OPTIONS-*", "IDENTITY"])
def test_damaged_list_of_files_costs_no_message(source: Path, tmp_path: Path, pattern: str) -> None:
    (*_, file) = sorted((source / "shard-0").glob(pattern))
    flip(file, file.stat().st_size // 2)

    _, bodies = salvaged(source, tmp_path / "new")

    assert len(bodies) == QUEUES * MESSAGES - 5


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("killed")
    asyncio.run(_fill(top / "data", killed=top / "killed"))
    return top / "killed"


@pytest.mark.parametrize("place", PLACES)
def test_damaged_log_of_a_killed_service_costs_one_entry(
    killed: Path, tmp_path: Path, place: int
) -> None:
    """Rows that were never flushed are read from the log, also behind the damage."""
    source, chance = Path(shutil.copytree(killed, tmp_path / "source")), Random(place)
    log = min((source / "shard-0.log").glob("segment-*"))
    live = len(log.read_bytes().rstrip(b"\0"))
    flip(log, chance.randrange(live // 4, live // 2))

    said, bodies = salvaged(source, tmp_path / "new")

    assert "of its log are lost" in said.out
    assert len(sent() - bodies) <= 15, "one batch, and five in flight"


def test_damaged_tail_of_a_file_without_a_copy_is_named(source: Path, tmp_path: Path) -> None:
    file = table(source)
    flip(file, file.stat().st_size - 20)
    note_of(source / "shard-0").unlink()

    said, _ = salvaged(source, tmp_path / "new")

    assert said.status == 1
    assert f"{file.name} cannot be read: all its rows are missing" in said.out


def test_damaged_format_file_is_made_anew(source: Path, tmp_path: Path) -> None:
    for name in ("format.json", "format.json.copy"):
        flip(source / name, 5)

    said, bodies = salvaged(source, tmp_path / "new")

    assert "shard-0 is taken for its only shard" in said.out
    assert len(bodies) == QUEUES * MESSAGES - 5


def test_all_shards_of_a_damaged_format_file_are_salvaged(source: Path, tmp_path: Path) -> None:
    """Else the messages of all but the first would be missing, and none would be said to be."""
    add_shards(source, 2)
    (source / "shard-0").rename(source / "shard-1")
    (source / "shard-0.log").rename(source / "shard-1.log")
    RocksRows(source / "shard-0").close()
    for name in ("format.json", "format.json.copy"):
        flip(source / name, 5)

    said = run("salvage", source, "--data", tmp_path / "new")

    assert "shard-0, shard-1 are taken for its shards" in said.out
    assert f" {QUEUES * MESSAGES} messages; none known to be missing" in said.out


def test_converted_shard_is_taken_rather_than_what_it_was_made_from(
    source: Path, tmp_path: Path
) -> None:
    (source / "shard-0").rename(source / "shard-0-format-4")
    (source / "shard-0.log").rename(source / "shard-0-format-4.log")
    RocksRows(source / "shard-0").close()
    for name in ("format.json", "format.json.copy"):
        flip(source / name, 5)

    said, bodies = salvaged(source, tmp_path / "new")

    assert "shard-0-format-4 is taken for its only shard" in said.out
    assert len(bodies) == QUEUES * MESSAGES - 5


def test_shard_without_a_readable_file_costs_no_other_shard(source: Path, tmp_path: Path) -> None:
    add_shards(source, 2)

    said, bodies = salvaged(source, tmp_path / "new")

    assert said.status == 1
    assert "shard 1: nothing of it can be read" in said.out
    assert "all messages of its queues are missing: none is known" in said.out
    assert len(bodies) == QUEUES * MESSAGES - 5, "five are in flight"


def test_queues_of_an_unreadable_shard_are_begun_anew(source: Path, tmp_path: Path) -> None:
    """Their sequences are none that were issued, or a handle would name another message."""
    add_shards(source, 2)
    shutil.rmtree(source / "shard-0")
    RocksRows(source / "shard-1").close()

    said, bodies = salvaged(source, tmp_path / "new")

    assert "all messages of its queues are missing: q0, q1, q2.fifo, q3, q4, q5.fifo" in said.out
    assert bodies == set()
    rows = RocksRows(tmp_path / "new" / "shard-0")
    stored = {key: rows.get(key) for key in map(queue_key, range(1, QUEUES + 1))}
    rows.close()
    begun = [decode_row(QueueRow, key, value) for key, value in stored.items() if value is not None]
    assert [row.next_sequence > ISSUED for row in begun] == [True] * QUEUES


def test_queues_of_an_unreadable_shard_are_named(source: Path, tmp_path: Path) -> None:
    shutil.rmtree(source / "shard-0")

    said = run("salvage", source, "--data", tmp_path / "new")

    assert said.status == 2
    assert "all messages of its queues are missing: q0, q1, q2.fifo, q3, q4, q5.fifo" in said.err
    assert not names(tmp_path / "new")


def test_handles_name_no_other_message_in_a_salvaged_queue(source: Path, tmp_path: Path) -> None:
    """A queue whose row is lost continues far above the sequences that it had issued."""
    flip(table(source), 100)
    new = tmp_path / "new"
    salvaged(source, new)

    async def send_and_receive() -> list[str]:
        async with serving(new) as served:
            await served.send("later", queue="q0")
            return list(await served.receive("q0"))

    assert "later" in asyncio.run(send_and_receive())


def test_folder_in_use_or_target_with_contents_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    assert "is not empty" in run("salvage", source, "--data", tmp_path / "new").err
    assert "is in the folder" in run("salvage", source, "--data", source / "new").err
    nothing = run("salvage", tmp_path / "nothing", "--data", tmp_path / "other")
    assert (nothing.status, "is not a data folder" in nothing.err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_no_service_starts_on_a_salvage_that_was_cut_off(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have all queues, and none of their messages."""
    at_once = tmp_path / "at once"

    def cut_off(file: Path, target: Path) -> None:
        copy_file(file, target)
        shutil.copytree(tmp_path / "new", at_once)
        raise KeyboardInterrupt

    monkeypatch.setattr(salvage_module, "copy_file", cut_off)
    with pytest.raises(KeyboardInterrupt):
        salvage_module.salvage(source, tmp_path / "new")

    with pytest.raises(FolderRefused, match=r"has shards but no format\.json"):
        open_folder(at_once)
    assert not names(tmp_path / "new")


def test_records_are_refused_if_both_copies_are_damaged(source: Path, tmp_path: Path) -> None:
    name = "records.sqlite"
    spoil(source / name)
    sound = run("salvage", source, "--data", tmp_path / "one")
    spoil(source / f"{name}.copy")

    said = run("salvage", source, "--data", tmp_path / "new")

    assert sound.status == 0
    assert said.status == 2
    assert name in said.err
    assert "Restore a backup" in said.err
    assert not names(tmp_path / "new")


def test_the_folder_of_a_cluster_s_host_needs_the_records_of_a_backup(
    source: Path, tmp_path: Path
) -> None:
    """The queues and keys are in etcd; the refusal names the way, which works."""
    records = sorted(source.glob("records.sqlite*"))
    kept = [file.rename(tmp_path / file.name) for file in records]
    (source / "member.json").write_text("{}")

    said = run("salvage", source, "--data", tmp_path / "new")

    assert said.status == 2
    assert "holdfast restore --single" in said.err
    for file in kept:
        shutil.copy(file, source / file.name)
    _, bodies = salvaged(source, tmp_path / "new")
    assert len(bodies) == QUEUES * MESSAGES - 5  # five are in flight


def spoil(file: Path) -> None:
    file.write_bytes(b"\0" * 200 + file.read_bytes()[200:])


# -- with copies beside the shard, and `verify` ----------------------------------------------------


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_copy_of_a_damaged_file_is_used(source: Path, tmp_path: Path, pattern: str) -> None:
    note(source)
    (file,) = (source / "shard-0").glob(pattern)
    flip(file, file.stat().st_size - 4)

    said, bodies = salvaged(source, tmp_path / "new")
    checked = run("verify", source)

    assert said.out.splitlines()[0] == f"shard 0: {file.name} is damaged; its copy was used"
    assert len(bodies) == QUEUES * MESSAGES - 5
    assert checked.out.splitlines()[0] == f"shard 0: {file.name} is damaged; its copy was read"
    assert checked.out.endswith("; 1 found\n")
