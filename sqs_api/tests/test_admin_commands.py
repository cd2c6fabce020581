"""Commands that ask a running service: the queue they address, and their output if it is away."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from compat_tests.made_certificates import Authority
from sqs_api.http.http_limits import TimedOut
from sqs_api.settings.config import AuthMode
from sqs_api.settings.service_note import read_note
from sqs_api.tests.commands import Said, run
from sqs_api.tests.operator_client import add_user, keys_of
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import until
from visibility.tests import prepared

REGION = "us-east-1"
PLACES = (("1" * 12, REGION), ("2" * 12, "eu-west-1"), ("2" * 12, REGION))


async def _delete(served: Served, account: str, region: str) -> None:
    catalog = served.node.owner.catalog
    queue = await catalog.create_queue((account, region, "q"), {}, {})
    await catalog.delete_queue(queue)


async def _run(*arguments: object) -> Said:
    return await asyncio.to_thread(run, *arguments)


# -- restore-queue ---------------------------------------------------------------------------------


async def test_a_queue_of_several_accounts_is_restored_where_it_is_said(data: Path) -> None:
    async with serving(data, restore_deleted_s=1000) as served:
        for place in PLACES:
            await _delete(served, *place)
        restore = ("restore-queue", "q", "--data", data)
        unclear = await _run(*restore)
        half = await _run(*restore, "--account", "2" * 12)
        nowhere = await _run(*restore, "--account", "3" * 12)
        no_account = await _run(*restore, "--account", "3")
        first = await _run(*restore, "--account", "1" * 12)
        second = await _run(*restore, "--account", "2" * 12, "--region", "eu-west-1")
        last = await _run(*restore)

    one, two, three = (f"account {account} in {region}" for account, region in PLACES)
    several = "several queues q can be restored: of {}; say which with --account and --region"
    assert unclear == Said(2, "", several.format(f"{one}, {two}, {three}"))
    assert half == Said(2, "", several.format(f"{two}, {three}"))
    assert nowhere == Said(2, "", "no deleted queue q can be restored")
    assert no_account == Said(2, "", "--account: must be 12 digits")
    assert [first.out, second.out, last.out] == [
        f"restored q of {place}\n" for place in (one, two, three)
    ]


async def test_the_latest_of_several_deletions_in_one_place_is_undone(data: Path) -> None:
    async with serving(data, restore_deleted_s=1000) as served:
        for _ in range(2):
            await _delete(served, *PLACES[0])
        latest = (await served.ask_page("GET", "deleted-queues")).json[0]["queue_id"]
        said = await _run("restore-queue", "q", "--data", data)
        left = (await served.ask_page("GET", "deleted-queues")).json

    assert said.status == 0
    assert [each["queue_id"] == latest for each in left] == [False]


async def test_what_follows_of_a_purge_that_is_undone_is_counted(data: Path) -> None:
    async with serving(data, restore_deleted_s=1000) as served:
        catalog, router = served.node.owner.catalog, served.node.shards.router
        queue = await catalog.create_queue((*PLACES[0], "q"), {}, {})
        for body in ("in flight", "there"):
            await router.ask(prepared.send(queue, body))
        await router.ask(prepared.receive(queue))
        await served.node.owner.deletions.purge(queue)
        said = await _run("restore-queue", "q", "--data", data)
        listed = await _run("restore-queue", "--list", "--data", data)
        in_json = await _run("restore-queue", "--list", "--json", "--data", data)
        again = await _run("restore-queue", "q", "--data", data)

    (kept,) = json.loads(in_json.out)
    assert (kept["name"], kept["messages"], kept["restoring"]) == ("q", 1, True)
    follows = "1 of them follow; `holdfast restore-queue --list` shows how many"
    assert said.out == f"restored 2 messages of q of account {'1' * 12} in {REGION}\n{follows}\n"
    assert ", 1 messages, left to be restored, " in listed.out
    assert again == Said(2, "", "no deleted queue q can be restored")


# -- answers ---------------------------------------------------------------------------------------


class _OtherServer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = {"/html": b"<html>\n <body>\n\n  not\there\n</body></html>\n", "/": b""}
        content = body["/html" if self.path.startswith("/html") else "/"]
        self.send_response(503)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_server() -> Iterator[str]:
    """The address of a server that is not holdfast."""
    with HTTPServer(("127.0.0.1", 0), _OtherServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/html", "<html> <body> not here </body></html>"), ("", "Service Unavailable")],
)
def test_another_servers_page_is_shown_in_one_line(
    other_server: str, tmp_path: Path, path: str, reason: str
) -> None:
    said = run("backup", tmp_path / "b", "--url", other_server + path)

    assert said == Said(2, "", f"{other_server}{path}: 503 {reason}")


async def test_idle_connections_do_not_keep_commands_out(data: Path, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("sqs.example")
    async with serving(data, tls_certificate=certificate, tls_key=key) as served:
        note = read_note(data)
        assert note is not None
        local = urlsplit(note.admin_url)
        _, pages_server = served.node.worker.transport._servers
        with ExitStack() as idle:
            for _ in range(64):
                address = (local.hostname or "", local.port or 0)
                idle.enter_context(closing(socket.create_connection(address)))
            await until(lambda: len(pages_server.connections) == 64)
            for _ in range(7):
                await pages_server.sweep()
            assert pages_server.counters.timeouts[TimedOut.IDLE] == 64
            said = await _run("backup", tmp_path / "b", "--data", data)

    assert (said.status, said.err) == (0, "")


# -- backups ---------------------------------------------------------------------------------------


async def test_the_master_key_is_put_in_for_the_root_only(data: Path, tmp_path: Path) -> None:
    ann = add_user(data, "ann", "holdfast:Backup")
    root = keys_of(run("credentials", "--data", data, "add"))
    answers = []
    async with serving(data, auth=AuthMode.SIGV4) as served:
        for number, (key, has_key) in enumerate(((ann, True), (ann, False), (root, True))):
            target = str(tmp_path / f"backup {number}")
            body = json.dumps({"target": target, "with_master_key": has_key}).encode()
            answers.append(await served.ask_page("POST", "backups", body, key=key))
        local = await _run("backup", tmp_path / "local", "--data", data, "--with-master-key")

    assert [answer.status for answer in answers] == [403, 200, 200]
    assert answers[0].json["error"] == "with_master_key: this is for the root of the account only."
    assert not (tmp_path / "backup 0").exists()
    assert not list((tmp_path / "backup 1").rglob("master.key"))
    assert list((tmp_path / "backup 2").rglob("master.key"))
    assert (local.status, bool(list((tmp_path / "local").rglob("master.key")))) == (0, True)
