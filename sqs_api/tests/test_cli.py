"""The `holdfast` command: its output and its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from random import Random
from time import sleep
from typing import Any
from urllib.request import urlopen

import pytest
from cryptography.fernet import Fernet

from cluster.clock import SystemEntropy
from cluster.keys.master_key import folder_master_key
from sqs_api.node import start_node
from sqs_api.settings.config import Settings
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import Said, run
from storage.files.folder import open_folder
from storage.rows.stored_rows import StoredRows
from storage.tests.on_disk import changing, rows_of
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import message_key
from visibility.rows.row_values import QueueRow
from visibility.rows.state_rows import write_queue

CHECKOUT = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def _start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sqs_api", *(str(argument) for argument in arguments)],
        env=ENVIRONMENT,
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _process(*arguments: object) -> Said:
    """A command in a separate process."""
    with _start(*arguments) as process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"it did not end: {out} {err}")
    return Said(process.returncode, out, err)


# -- in this process -------------------------------------------------------------------------------


def test_version_is_the_installed_one() -> None:
    assert run("version") == Said(0, metadata.version("holdfast") + "\n", "")


def test_check_config_shows_every_setting(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('port = 1\nauth = "open"\n')

    said = run("check-config", "--config", file)

    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert "port = 1" in lines
    assert "auth = open" in lines
    assert len(lines) == len(Settings.model_fields)


@pytest.mark.parametrize(
    "text", ['lake = "ftp://x"', '[[queues]]\nname = "q"\ntags = { "holdfast:protect" = "yes" }']
)
def test_check_config_refuses_what_serve_would(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)

    said = run("check-config", "--config", file)

    assert (said.status, said.out) == (2, "")
    assert said == run("serve", "--config", file)


def test_jobs_without_spark_name_both_ways_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqs_api.commands.archive_command.find_spec", lambda name: None)

    for arguments in (["--help"], ["archive", "--lake", "lake"]):
        assert run("jobs", *arguments) == Said(
            2,
            "",
            "holdfast jobs needs pyspark: `make jobs` installs and runs it; without make, in a "
            "checkout: pip install '.[spark]'",
        )


WRONG_USES = (
    ("credentials", "--data", "DATA", "disable", "AKIANOBODY"),
    ("credentials", "--data", "DATA", "rotate", "AKIANOBODY"),
    ("credentials", "--data", "DATA", "add", "--account", "12"),
    ("credentials", "--data", "DATA", "add", "--account", "٠" * 12),
    ("credentials", "--data", "DATA/missing", "list"),
    ("credentials", "--data", "DATA/master.key", "list"),
    ("credentials", "frobnicate"),
    ("credentials", "--data", "DATA", "frobnicate"),
    ("credentials", "--data", "DATA", "add", "--user", "nobody"),
    ("credentials", "--data", "DATA", "add", "--expires-in", "soon"),
    ("credentials", "--data", "DATA", "session", "--duration", "37h"),
    ("credentials", "--data", "DATA", "enable", "AKIANOBODY"),
    ("credentials", "--data", "DATA", "remove", "AKIANOBODY"),
    ("users", "--data", "DATA", "add", "a b"),
    ("users", "--data", "DATA", "add", "ann", "--tag", "x"),
    ("users", "--data", "DATA", "remove", "nobody"),
    ("users", "--data", "DATA", "--account", "1", "list"),
    ("users", "--data", "DATA/missing", "list"),
    ("keys", "--data", "DATA", "add", "aws/mine"),
    ("keys", "--data", "DATA", "add", "aws/sqs"),
    ("keys", "--data", "DATA", "rotate", "nobody"),
    ("keys", "--data", "DATA", "disable", "aws/sqs"),
    ("keys", "--data", "DATA", "--account", "12", "list"),
    ("keys", "--data", "DATA", "grant", "aws/sqs", "--to", "222222222222"),
    ("keys", "--data", "DATA", "grant", "nobody", "--to", "222222222222"),
    ("keys", "--data", "DATA", "revoke", "aws/sqs", "--from", "222222222222"),
    ("keys", "--data", "DATA", "change-master", "--to", "DATA/format.json"),
    ("keys", "--data", "DATA/missing", "list"),
    ("policy", "check", "--data", "DATA", "--action", "Fly", "--queue", "q"),
    ("policy", "check", "--data", "DATA", "--action", "SendMessage", "--queue", "q"),
    ("policy", "check", "--data", "DATA", "--action", "SendMessage", "--queue", "arn:x"),
    ("serve", "--port", "many"),
    ("serve", "--port", "65536"),
    ("serve", "--durability", "some"),
    ("serve", "--account", "12"),
    ("serve", "--lake", "ftp://x"),
    ("serve", "--auth", "none"),
    ("serve", "--auth", "open", "--host", "0.0.0.0"),
    ("serve", "--config", "DATA/missing.toml"),
    ("check-config", "--config", "DATA/master.key"),
    ("check-config", "--frobnicate"),
    ("serve", "here"),
    ("serve", "--restore-deleted-s", "1209601"),
    ("restore-queue",),
    ("restore-queue", "q", "--url", "file:///etc/passwd"),
    ("restore-queue", "q", "--url", "http://127.0.0.1:1"),
    ("restore-queue", "q", "--url", "http://"),
    ("frobnicate",),
)


@pytest.mark.parametrize("arguments", WRONG_USES, ids=" ".join)
def test_wrong_use_ends_with_2_and_leaves_no_output(data: Path, arguments: tuple[str, ...]) -> None:
    said = run(*(argument.replace("DATA", str(data)) for argument in arguments))

    assert (said.status, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1, said.err


def test_keys_under_another_master_key_are_refused_in_one_line(data: Path) -> None:
    (data / "master.key").write_bytes(Fernet.generate_key())

    said = run("credentials", "--data", data, "list")

    assert said.status != 0
    assert "master key" in said.err


@pytest.mark.parametrize("text", ["abc", "", "äöü", "A" * 42, "no base64 at all!"])
def test_a_master_key_that_is_none_is_refused_with_what_one_is(
    data: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", text)

    said = run("credentials", "--data", data, "list")

    assert said == Said(
        2,
        "",
        "HOLDFAST_MASTER_KEY: must be base64 of 32 bytes, for example from: openssl rand -base64 "
        "32",
    )


@pytest.mark.parametrize("own", [True, False])
def test_another_master_key_is_refused_with_the_one_that_is_expected(
    data: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", Fernet.generate_key().decode())
    if not own:
        (data / "master.key").unlink()

    said = run("credentials", "--data", data, "list")

    assert (said.status, said.out) == (2, "")
    expected = (
        f"HOLDFAST_MASTER_KEY is not the master key of {data}: expected is the one of its first "
        "start, "
        "or of the last holdfast keys change-master"
    )
    hint = f"; without a given one, {data / 'master.key'} is used"
    assert said.err == expected + (hint if own else "")


def test_damaged_keys_are_refused_in_one_line(data: Path) -> None:
    for suffix in ("-wal", "-shm"):
        (data / f"records.sqlite{suffix}").unlink(missing_ok=True)
    known = run("credentials", "--data", data, "list")
    (data / "records.sqlite").write_bytes(b"no database" * 1000)
    repaired = run("credentials", "--data", data, "list")
    for name in ("records.sqlite", "records.sqlite.copy"):
        (data / name).write_bytes(b"no database" * 1000)

    said = run("credentials", "--data", data, "list")

    assert (repaired.status, repaired.out) == (0, known.out)
    assert said.status != 0
    assert "records.sqlite.copy is damaged too" in said.err


def test_looking_at_the_keys_of_a_foreign_folder_leaves_nothing_there(tmp_path: Path) -> None:
    run("credentials", "--data", tmp_path, "list")

    assert list(tmp_path.iterdir()) == []


# -- data folders ----------------------------------------------------------------------------------

FOLDERS: dict[str, str] = {
    "not json": "{",
    "not an object": "[]",
    "without shards": '{"format": 1}',
    "no shard": '{"format": 1, "shards": {}}',
    "another format": '{"format": 99, "shards": {"0": "shard-0"}}',
    "another format with another map": '{"format": 99, "folders": []}',
}


def _refused_folders(root: Path) -> dict[str, Path]:
    """Data folders that cannot be used."""
    folders = {"file": root / "file", "below a file": root / "file" / "data"}
    folders["file"].write_text("x")
    for number, (kind, text) in enumerate(FOLDERS.items()):
        folders[kind] = root / str(number)
        folders[kind].mkdir()
        (folders[kind] / "format.json").write_text(text)
    folders["shards without a map"] = root / "shards"
    (root / "shards" / "shard-0").mkdir(parents=True)
    folders["catalog is a folder"] = root / "catalog"
    (root / "catalog" / "records.sqlite").mkdir(parents=True)
    folders["master key is empty"] = root / "master"
    folders["master key is empty"].mkdir()
    (root / "master" / "master.key").write_text("")
    return folders


KINDS = (
    *("file", "below a file", "shards without a map", "catalog is a folder", "master key is empty"),
    *FOLDERS,
)


async def _refusal(data: Path) -> str:
    """The reason for which a service does not start on this folder."""
    try:
        node = await start_node(Settings(port=0, data=data))
    except NodeRefused as refusal:
        return str(refusal)
    await node.stop()
    pytest.fail("it started")


@pytest.mark.parametrize("kind", KINDS)
async def test_service_refuses_a_data_folder_in_one_line(tmp_path: Path, kind: str) -> None:
    text = await _refusal(_refused_folders(tmp_path)[kind])

    assert "\n" not in text
    if kind.startswith("another format"):
        assert "format 99" in text


def _with_damaged_catalog(folder: Path) -> Path:
    """A data folder whose catalog is no database."""
    folder.mkdir()
    folder_master_key(folder, SystemEntropy(), may_make=True)
    (folder / "records.sqlite").write_bytes(Random(1).randbytes(20_000))
    return folder


def _without_catalog(folder: Path) -> Path:
    """A data folder whose shard holds a queue with a message, and whose catalog is missing."""
    shard = open_folder(folder)[0]
    with changing(shard) as changes:
        changes.put(message_key(1, 1), encode_row(StoredMessage("id", 1, 1, b"x")))
        write_queue(changes, 1, QueueRow(2, 1, 1, 0), {0: 1})
    return folder


CATALOGS = ("cannot open the records", "its records.sqlite is missing")


async def test_a_missing_catalog_costs_no_message_however_often_it_is_tried(
    tmp_path: Path,
) -> None:
    data = _without_catalog(tmp_path / "data")

    for _ in range(2):
        assert CATALOGS[1] in await _refusal(data)

    with rows_of(open_folder(data)[0]) as found:
        rows = StoredRows(found)
        assert [(queue_id, row.waiting) for queue_id, row in rows.queues()] == [(1, 1)]
        assert rows.messages(1, [1]) != [None]


# -- in processes ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_service_that_cannot_start_ends_with_1_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        commands = (
            ("serve", "--port", "0", "--data", tmp_path / "file"),
            ("serve", "--port", port, "--data", tmp_path / "data"),
            ("serve", "--port", "0", "--data", _with_damaged_catalog(tmp_path / "damaged")),
            ("serve", "--port", "0", "--data", _without_catalog(tmp_path / "without")),
            ("serve", "--port", "0", "--data", "/proc/holdfast"),
            ("serve", "--port", "0", "--data", tmp_path),
        )
        with ThreadPoolExecutor(len(commands)) as pool:
            answers = list(pool.map(lambda command: _process(*command), commands))

    for said in answers:
        assert (said.status, said.out) == (1, "")
        assert len(said.err.splitlines()) == 1, said.err
        assert said.err.startswith("holdfast: ")
    assert (
        answers[1].err == f"holdfast: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another with --port\n"
    )
    reasons = (*CATALOGS, "no folders can be made in /proc", "not empty: it has")
    assert all(reason in said.err for said, reason in zip(answers[2:], reasons, strict=True)), (
        answers
    )


async def test_a_start_that_cannot_listen_makes_no_key_that_is_never_shown(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = rf"cannot listen on 127\.0\.0\.1:{port}: .*; choose another with --port$"
        with pytest.raises(NodeRefused, match=wanted):
            await start_node(Settings(data=tmp_path / "data", port=port))

    node = await start_node(Settings(data=tmp_path / "data", port=0))
    key = node.first_key
    known = key is not None and node.worker.verifier.credentials.find(key.access_key_id)
    await node.stop()
    assert known


@pytest.mark.slow
def test_the_address_to_paste_is_one_that_this_machine_can_connect_to(tmp_path: Path) -> None:
    arguments = ("serve", "--host", "0.0.0.0", "--port", "0", "--data", tmp_path / "data")
    with _start(*arguments) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith("listening on "):
                    break
        finally:
            process.terminate()

    port = lines[-1].rpartition(":")[2]
    assert lines[-1] == f"listening on http://0.0.0.0:{port}"
    assert f"export AWS_ENDPOINT_URL=http://127.0.0.1:{port}" in lines


@pytest.mark.slow
def test_a_second_service_on_a_folder_names_the_first(tmp_path: Path) -> None:
    with _start("serve", "--port", "0", "--data", tmp_path / "data") as first:
        assert first.stdout is not None
        address = next(line for line in first.stdout if "listening" in line).rpartition("//")[2]
        try:
            said = _process("serve", "--port", "0", "--data", tmp_path / "data")
            used = f"in use by process {first.pid}, which listens on {address}"
            assert (said.status != 0, said.out) == (True, "")
            assert said.err == f"holdfast: data folder {tmp_path / 'data'} is {used}"
            (tmp_path / "data" / "service.json").unlink()  # else the service makes the backup
            said = _process("backup", tmp_path / "backup", "--data", tmp_path / "data")
            assert (said.status != 0, said.out) == (True, "")
            assert said.err == f"holdfast: data folder {tmp_path / 'data'} is {used}"
        finally:
            first.terminate()


@pytest.mark.slow
def test_process_answers_stops_at_once_and_logs_no_secret(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--data", tmp_path / "data")
    with _start(*arguments) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("listening on ")):
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended before it listened"
        address = re.findall(r"http://(\S+):(\d+)", lines[-1])[0]
        second = _process(*arguments)
        idle = [socket.create_connection((address[0], int(address[1]))) for _ in range(20)]
        idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert idle[0].recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        for connection in idle:
            connection.close()

    secret = re.findall(r"SECRET_ACCESS_KEY=(\S+)", "".join(lines))[0]
    assert process.returncode == 0
    assert out == ""
    assert secret not in err
    assert "stopped_with_requests_running" not in err
    kept = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert {"records.sqlite", "master.key"} <= {path.name for path in kept}
    readable = [path.name for path in kept if path.stat().st_mode & 0o077]
    assert not readable, "for their owner only"
    assert not (tmp_path / "data").stat().st_mode & 0o077
    assert (second.status, second.out, len(second.err.splitlines())) == (1, "", 1)


_INTERRUPTED = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "sqs_api.commands.command_line":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
sys.argv[1:] = ["version"]
from sqs_api.__main__ import main
main()
"""


def test_ctrl_c_while_a_command_reads_its_code_ends_it_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-EP", "-c", _INTERRUPTED],
        env=ENVIRONMENT,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_service_runs_without_its_standard_streams(tmp_path: Path, closed: str) -> None:
    arguments = ["serve", "--port", "0", "--data", "data", "--auth", "open"]
    command = [sys.executable, "-m", "sqs_api", *arguments]
    environment = ENVIRONMENT | {"PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command], env=environment, cwd=tmp_path
    )
    try:
        url = _noted_url(tmp_path / "data", process)
        assert b"ListQueuesResult" in urlopen(f"{url}/?Action=ListQueues", timeout=30).read()
    finally:
        process.terminate()
    assert process.wait(timeout=60) == 0


@pytest.mark.slow
def test_a_service_starts_although_nobody_reads_its_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    arguments = ["serve", "--port", "0", "--data", str(tmp_path / "data"), "--auth", "open"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sqs_api", *arguments],
        env=ENVIRONMENT,
        cwd=CHECKOUT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = _noted_url(tmp_path / "data", process)
        assert b"ListQueuesResult" in urlopen(f"{url}/?Action=ListQueues", timeout=30).read()
    finally:
        process.terminate()
    assert "start_not_shown" in process.communicate(timeout=60)[1]
    assert process.returncode == 0
    os.close(reader)
    os.close(writer)


def _noted_url(data: Path, process: subprocess.Popen[Any]) -> str:
    """The address that a service which has just started noted in its data folder."""
    note = data / "service.json"
    while not note.exists():
        assert process.poll() is None, f"it ended with {process.returncode}"
        sleep(0.05)
    return str(json.loads(note.read_text())["url"])


def test_a_model_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "holdfast").touch()

    said = run("sdk-model", "--to", tmp_path)

    assert (said.status, said.err.count("\n")) == (1, 0)
    assert said.err.startswith(f"cannot write {tmp_path / 'holdfast'}")
