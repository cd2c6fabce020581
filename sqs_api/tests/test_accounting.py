"""Administrative actions and denied calls are in the audit log, calls of accounts in the usage."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.auth_errors import MissingAuthenticationToken
from auth.caller import Caller
from cluster.tests.virtual_time import SettableClock
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.audit import AuditFile, AuditLog
from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.usage import Usage, read_usage
from sqs_api.gateway.usage_journal import journals_in
from sqs_api.tests.serving import ACCOUNT, REGION, Service, json_request, running, until
from visibility.contract.actions import ACTIONS
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.model import QueueDefinition

CALLER = Caller(ACCOUNT, REGION, "AIDA", "AKIA", "ann")


class Files:
    """An audit log and a usage, each with a settable clock."""

    def __init__(self, folder: Path) -> None:
        self.clock = SettableClock()
        self.audit_file = folder / "audit.log"
        self.usage_file = folder / "usage.sqlite"
        self.audit = AuditLog(AuditFile(self.audit_file), self.clock.wall_s, host=None, workers=1)
        self.usage = Usage(self.usage_file, self.clock.wall_s, days_kept=3)
        self.accounting = Accounting(self.usage, self.audit)

    def count(
        self, account: str, queue: QueueDefinition | None, bytes_in: int, bytes_out: int
    ) -> None:
        """An answered request."""
        caller = Caller(account, REGION, "AIDA", "AKIA", None)
        nobody: Any = None
        exchange = Exchange(nobody, nobody, "1", 0.0, bytes_in, caller=caller, queue=queue)
        exchange.action = ACTIONS["ReceiveMessage"]
        self.accounting.answered(exchange, 200, bytes_out, 0.001)

    def restart(self) -> None:
        """A new process over the same files."""
        self.usage = Usage(self.usage_file, self.clock.wall_s, days_kept=3)
        self.accounting = Accounting(self.usage, self.audit)

    def lines(self) -> list[dict[str, Any]]:
        """The written lines; closes the log."""
        self.audit.close()
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def _authenticate(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    user = headers.get(b"who", b"").decode()
    if not user:
        raise MissingAuthenticationToken
    return Caller(ACCOUNT, REGION, "AIDA", "AKIA", None if user == "root" else user)


@pytest_asyncio.fixture
async def service(files: Files) -> AsyncIterator[Service]:
    accounting = files.accounting
    async with running(authenticate=_authenticate, enforced=True, accounting=accounting) as parts:
        yield parts


async def _ask(service: Service, who: str, action: str, **members: Any) -> int:
    headers = {"who": who} if who else {}
    return (await service.ask(json_request(action, headers=headers, **members))).status


async def test_who_changed_what_is_noted_and_messages_are_not(
    service: Service, files: Files
) -> None:
    await _ask(service, "root", "CreateQueue", QueueName="q", Attributes={"DelaySeconds": "7"})
    await _ask(service, "root", "SendMessage", QueueUrl="q", MessageBody="secret body")
    await _ask(service, "root", "ReceiveMessage", QueueUrl="q")
    await _ask(service, "root", "ListQueues")
    await _ask(service, "root", "TagQueue", QueueUrl="q", Tags={"a": "b"})
    await _ask(service, "root", "PurgeQueue", QueueUrl="q")
    await _ask(service, "root", "DeleteQueue", QueueUrl="missing")

    lines = files.lines()

    seen = [(line["event"], line["queue"], line["outcome"]) for line in lines]
    assert seen == [
        ("CreateQueue", "q", "ok"),
        ("TagQueue", "q", "ok"),
        ("PurgeQueue", "q", "ok"),
        ("DeleteQueue", "missing", "AWS.SimpleQueueService.NonExistentQueue"),
    ]
    created = lines[0]
    assert created["attributes"] == {"DelaySeconds": "7"}
    assert created["account"] == ACCOUNT
    assert created["access_key_id"] == "AKIA"
    assert created["source_ip"] == "127.0.0.1"
    assert created["request_id"]
    assert created["time"].endswith("+00:00")
    assert "secret body" not in files.audit_file.read_text()


async def test_denied_calls_are_noted_with_who_made_them(service: Service, files: Files) -> None:
    await _ask(service, "ann", "SendMessage", QueueUrl="q", MessageBody="x")
    await _ask(service, "", "SendMessage", QueueUrl="q", MessageBody="x")

    known, unknown = files.lines()

    assert (known["event"], known["user"], known["outcome"]) == ("denied", "ann", "AccessDenied")
    assert known["action"] == "SendMessage"
    assert (unknown["outcome"], "account" in unknown) == ("MissingAuthenticationToken", False)


@pytest.mark.parametrize("who", ["ann", ""])
async def test_denied_transactions_are_noted_too(service: Service, files: Files, who: str) -> None:
    await _ask(service, "root", "CreateQueue", QueueName="q")
    send = {"QueueUrl": "q", "MessageBody": "x"}
    headers = {"who": who, "X-Amz-Target": "Holdfast.TransactMessages"}
    await service.ask(json_request("", headers=headers, TransactItems=[{"Send": send}]))

    _, line = files.lines()

    assert (line["event"], line["action"]) == ("denied", "TransactMessages")
    assert line["outcome"] == ("AccessDenied" if who else "MissingAuthenticationToken")
    assert line.get("user") == (who or None)


def test_a_flood_of_denied_calls_is_counted(files: Files) -> None:
    for _ in range(1000):
        files.audit.denied("SendMessage", CALLER, "127.0.0.1", "r", "AccessDenied")
    files.clock.at_ms += 1000
    files.audit.denied("SendMessage", CALLER, "127.0.0.1", "r", "AccessDenied")

    lines = files.lines()

    assert len(lines) == 52
    assert lines[50]["event"] == "denied_omitted"
    assert lines[50]["count"] == 950


async def test_what_a_client_says_at_length_is_left_out(service: Service, files: Files) -> None:
    await _ask(service, "root", "CreateQueue", QueueName="q", tags={"a": "b" * 200_000})

    (line,) = files.lines()

    assert (line["event"], line["outcome"]) == ("CreateQueue", "InvalidParameterValue")
    assert line["details_omitted"] > 200_000
    assert len(json.dumps(line)) < 500


def test_a_log_on_a_full_disk_loses_lines_and_nothing_else() -> None:
    audit = AuditLog(AuditFile(Path("/dev/full")), SettableClock().wall_s, host=None, workers=1)

    for _ in range(3):
        audit.note("lost")
    audit.close()

    assert audit.lost == 3


# -- usage -----------------------------------------------------------------------------------------


async def test_requests_and_bytes_are_counted_by_account_and_queue(
    service: Service, files: Files
) -> None:
    await _ask(service, "root", "CreateQueue", QueueName="q")
    for size in (10, 65 * 1024, 200 * 1024):
        await _ask(service, "root", "SendMessage", QueueUrl="q", MessageBody="x" * size)
    await _ask(service, "root", "ReceiveMessage", QueueUrl="q")
    await _ask(service, "", "ReceiveMessage", QueueUrl="q")
    await files.accounting.write()
    await _ask(service, "root", "ReceiveMessage", QueueUrl="q")
    await files.accounting.write()
    await files.accounting.write()

    without, queue = read_usage(files.usage_file, None, None)

    assert (without.account, without.queue, without.requests) == (ACCOUNT, "", 1)
    assert queue.queue == f"arn:aws:sqs:{REGION}:{ACCOUNT}:q"
    assert (queue.requests, queue.billed_requests) == (5, 1 + 2 + 4 + 1 + 2)
    assert queue.bytes_in > 265 * 1024
    assert queue.bytes_out > 65 * 1024
    assert read_usage(files.usage_file, "1" * 12, None) == []


async def test_days_are_apart_and_forgotten_in_time(files: Files) -> None:
    for _ in range(5):
        files.count(ACCOUNT, None, 1, 1)
        await files.accounting.write()
        files.clock.at_ms += 24 * 3600 * 1000

    rows = read_usage(files.usage_file, None, None)

    assert len(rows) == 4
    assert read_usage(files.usage_file, ACCOUNT, rows[2].day) == rows[2:]
    assert len({row.day for row in rows}) == 4


async def test_what_could_not_be_written_comes_with_the_next_call(files: Files) -> None:
    files.usage_file.mkdir()
    files.count(ACCOUNT, None, 5, 6)
    await files.accounting.write()
    files.usage_file.rmdir()
    files.count(ACCOUNT, None, 5, 6)
    await files.accounting.write()

    (row,) = read_usage(files.usage_file, None, None)
    assert (row.requests, row.bytes_in, row.bytes_out) == (2, 10, 12)


def _counted(files: Files) -> list[tuple[str, int]]:
    return [(row.account, row.requests) for row in read_usage(files.usage_file, None, None)]


def test_what_a_process_that_was_killed_counted_is_read_and_added_once(files: Files) -> None:
    for _ in range(3):
        files.count(ACCOUNT, None, 5, 6)

    assert _counted(files) == [(ACCOUNT, 3)], "while it counts"
    files.restart()
    assert _counted(files) == [(ACCOUNT, 3)]
    files.count("1" * 12, None, 5, 6)
    files.usage.write(*files.usage.take())
    assert _counted(files) == [(ACCOUNT, 3), ("1" * 12, 1)]
    assert journals_in(files.usage_file.parent) == []


def test_a_journal_that_could_not_be_removed_counts_once(files: Files) -> None:
    files.count(ACCOUNT, None, 5, 6)
    journals, _ = files.usage.take()
    kept = {file: file.read_bytes() for file in journals}
    files.usage.write(journals, [])
    for file, content in kept.items():  # as after a power failure
        file.write_bytes(content)

    assert _counted(files) == [(ACCOUNT, 1)]
    for _ in range(2):
        files.usage.write(*files.usage.take())
        assert _counted(files) == [(ACCOUNT, 1)]
    assert journals_in(files.usage_file.parent) == []


def test_a_thousand_queues_of_a_minute_are_told_apart(files: Files) -> None:
    queues = [_queue(number) for number in range(1, 1001)]
    for queue in queues:
        for _ in range(queue.queue_id % 3 + 1):
            files.count(ACCOUNT, queue, queue.queue_id, 0)

    rows = {row.queue: row for row in read_usage(files.usage_file, None, None)}

    assert len(rows) == 1000
    for queue in queues:
        times = queue.queue_id % 3 + 1
        row = rows[queue.arn]
        assert (row.requests, row.bytes_in) == (times, times * queue.queue_id)


def _queue(number: int) -> QueueDefinition:
    attributes = initial_attributes("q", {})
    settings = settings_of(attributes)
    name = f"queue-{number}-" + "x" * (number % 60)
    place = (ACCOUNT, REGION, name)
    return QueueDefinition(number, *place, 1, 0, 0, 0, bytes(32), attributes, {}, settings)


async def test_what_finds_no_room_in_a_journal_is_counted_in_memory(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr("sqs_api.gateway.usage_journal.os.pwrite", lambda *_: 100)
        for _ in range(2):
            files.count(ACCOUNT, None, 5, 6)
        files.count("1" * 12, None, 5, 6)
    files.count("2" * 12, None, 5, 6)
    await files.accounting.write()

    assert _counted(files) == [(ACCOUNT, 2), ("1" * 12, 1), ("2" * 12, 1)]


@pytest.mark.parametrize("lost", [slice(0, 64), slice(64, 128), slice(0, None), slice(96, None)])
def test_a_journal_that_a_power_failure_damaged_is_read_as_far_as_it_goes(
    files: Files, lost: slice
) -> None:
    files.count(ACCOUNT, None, 5, 6)
    (journal,), _ = files.usage.take()
    content = bytearray(journal.read_bytes())
    content[lost] = bytes(len(content[lost]))
    journal.write_bytes(content)

    files.usage.write([journal], [])

    assert _counted(files) == []


def test_a_database_of_version_0_1_is_read_and_goes_on(files: Files) -> None:
    with closing(sqlite3.connect(files.usage_file)) as old, old:
        old.execute(
            "CREATE TABLE usage (day TEXT NOT NULL, account TEXT NOT NULL, queue TEXT NOT NULL, "
            "requests INTEGER NOT NULL, billed_requests INTEGER NOT NULL, bytes_in INTEGER NOT "
            "NULL, "
            "bytes_out INTEGER NOT NULL, PRIMARY KEY (day, account, queue))"
        )
        old.execute("INSERT INTO usage VALUES ('2999-01-01', ?, '', 7, 7, 1, 1)", (ACCOUNT,))

    assert _counted(files) == [(ACCOUNT, 7)]
    files.count(ACCOUNT, None, 5, 6)
    files.usage.write(*files.usage.take())
    assert sum(requests for _, requests in _counted(files)) == 8


def test_a_first_write_that_was_killed_leaves_the_journals(files: Files) -> None:
    files.count(ACCOUNT, None, 5, 6)
    files.usage_file.touch()

    assert _counted(files) == [(ACCOUNT, 1)]


def test_a_write_that_was_killed_is_rolled_back(files: Files, tmp_path: Path) -> None:
    files.count(ACCOUNT, None, 5, 6)
    files.usage.write(*files.usage.take())
    files.count("1" * 12, None, 5, 6)
    with closing(sqlite3.connect(files.usage_file)) as writer:
        writer.execute("PRAGMA cache_size = 1")  # so that it writes before it commits
        rows = [("2999-01-01", str(number), "", 1, 1, 1, 1) for number in range(2000)]
        writer.executemany("INSERT INTO usage VALUES (?,?,?,?,?,?,?)", rows)
        killed = tmp_path / "killed"
        killed.mkdir()
        for file in files.usage_file.parent.glob("usage*"):
            (killed / file.name).write_bytes(file.read_bytes())
    assert (killed / "usage.sqlite-journal").stat().st_size

    found = read_usage(killed / "usage.sqlite", None, None)

    assert [(row.account, row.requests) for row in found] == [(ACCOUNT, 1), ("1" * 12, 1)]


# -- one count for usage and metrics ---------------------------------------------------------------


async def test_metrics_and_usage_are_made_of_one_count(service: Service, files: Files) -> None:
    await _ask(service, "root", "CreateQueue", QueueName="q")
    for member in ("MessageBody", "MessageBody", "Forgotten"):
        await _ask(service, "root", "SendMessage", QueueUrl="q", **{member: "b"})
    before = files.accounting.requests()
    page = await service.metrics.page()
    await files.accounting.write()
    await _ask(service, "root", "SendMessage", QueueUrl="q", MessageBody="b")

    assert before == {
        ("CreateQueue", 200): 1,
        ("SendMessage", 200): 2,
        ("SendMessage", 400): 1,
    }
    assert files.accounting.requests() == before | {("SendMessage", 200): 3}
    assert b'holdfast_requests_total{action="SendMessage",status="200"} 2.0' in page
    assert b'holdfast_request_seconds_count{action="SendMessage"} 3.0' in page
    rows = {row.queue: row.requests for row in read_usage(files.usage_file, None, None)}
    assert rows == {"": 2, f"arn:aws:sqs:{REGION}:{ACCOUNT}:q": 3}


def test_a_journal_of_version_0_1_is_read(files: Files) -> None:
    queue = _queue(1)
    files.count(ACCOUNT, queue, 5, 6)
    (journal,), _ = files.usage.take()
    kind, content = b" ReceiveMessage 200", journal.read_bytes()
    key = f"{ACCOUNT} {queue.arn}".encode()
    length = (len(key) + len(kind)).to_bytes(8, "little")
    assert length + key + kind in content
    old = len(key).to_bytes(8, "little") + key + bytes(len(kind))
    journal.write_bytes(content.replace(length + key + kind, old))

    (row,) = read_usage(files.usage_file, None, None)

    assert (row.account, row.queue, row.requests) == (ACCOUNT, queue.arn, 1)


async def test_the_audit_log_goes_on_in_its_place_after_another_program_moved_it(
    tmp_path: Path,
) -> None:
    """The lines would be in a file that such a program packs and removes."""
    file, moved = tmp_path / "audit.log", tmp_path / "moved"
    lines = AuditFile(file)
    lines.put("first")
    await until(lambda: file.read_text() == "first\n")

    file.rename(moved)
    lines.put("second")
    await until(lambda: file.exists() and file.read_text() == "second\n")
    file.unlink()
    lines.put("third")
    lines.close()

    assert (moved.read_text(), file.read_text(), lines.lost) == ("first\n", "third\n", 0)


async def test_a_log_whose_folder_is_away_goes_on_once_it_is_there_again(tmp_path: Path) -> None:
    folder, moved = tmp_path / "folder", tmp_path / "moved"
    folder.mkdir()
    lines = AuditFile(folder / "audit.log")
    lines.put("first")
    await until(lambda: (folder / "audit.log").read_text() == "first\n")

    folder.rename(moved)
    lines.put("second")
    lines.put("third")
    await until(lambda: lines.lost == 2)
    moved.rename(folder)
    lines.put("fourth")
    lines.close()

    assert (folder / "audit.log").read_text() == "first\nfourth\n"
