"""Access to the pages under /_holdfast/: every row of the table, in both modes."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.signing import SigningKey, signed_headers
from cluster.clock import SystemClock
from compat_tests.made_certificates import Authority
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.routes import RESERVED, Route
from sqs_api.archiving.exporter import Exporter, SealedShard
from sqs_api.http.server import loopback_of
from sqs_api.operators.api import ROUTES
from sqs_api.settings.config import AuthMode
from sqs_api.settings.origins import KnownHosts
from sqs_api.settings.service_note import ServiceNote, read_note
from sqs_api.tests.commands import Said, run
from sqs_api.tests.operator_client import add_user, keys_of
from sqs_api.tests.served import Served, page_request, serving
from sqs_api.tests.serving import Answer

HOST = {"host": "localhost"}
ALLOWED = "holdfast:ListDeletedQueues"
PAGES = [route for route in ROUTES if not route.is_of_console]


def _path(page: Route) -> str:
    """A path of the page that names nothing there is."""
    return page.path.replace("{queue_id}", "7")


async def _ask_all(served: Served, **asked: Any) -> dict[str, Answer]:
    """The answers of all pages, by action."""
    return {
        page.event: await served.ask_page(page.method, _path(page), b"{}", **asked)
        for page in PAGES
    }


@pytest.fixture(autouse=True)
def nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process would write to the lake."""

    async def look(exporter: Exporter) -> None:
        return

    async def seal(exporter: Exporter) -> list[SealedShard]:
        return []

    monkeypatch.setattr(Exporter, "look", look)
    monkeypatch.setattr(Exporter, "seal", seal)


@pytest_asyncio.fixture
async def closed(data: Path, root: SigningKey, tmp_path: Path) -> AsyncIterator[Served]:
    """A service that checks signatures, with every page."""
    lake = str(tmp_path / "lake")
    async with serving(data, auth=AuthMode.SIGV4, lake=lake, restore_deleted_s=1000) as served:
        yield served


def _note(data: Path) -> ServiceNote:
    note = read_note(data)
    assert note is not None
    return note


def _local_key(data: Path) -> SigningKey:
    note = _note(data)
    return SigningKey(note.access_key_id, note.secret_access_key, "us-east-1")


# -- signatures ------------------------------------------------------------------------------------


async def test_the_root_of_another_account_is_not(data: Path) -> None:
    tenant = keys_of(run("credentials", "--data", data, "add", "--account", "2" * 12))
    async with serving(data, auth=AuthMode.SIGV4, lake=str(data / "lake")) as served:
        answers = await _ask_all(served, key=tenant)

    for action, answer in answers.items():
        assert answer.status == 403, action
        assert f"not authorized to perform: {action} on resource: *" in answer.json["error"]


async def test_a_user_may_do_what_a_policy_names_and_nothing_else(data: Path) -> None:
    keys = {
        "one": add_user(data, "one", ALLOWED),
        "all": add_user(data, "all", "holdfast:*"),
        "but": add_user(data, "but", "holdfast:*", but=ALLOWED),
        "sqs": add_user(data, "sqs", "sqs:*"),
    }
    async with serving(data, auth=AuthMode.SIGV4, lake=str(data / "lake")) as served:
        answers = {name: await _ask_all(served, key=key) for name, key in keys.items()}

    for page in PAGES:
        let_in = {name for name, each in answers.items() if each[page.event].status != 403}
        allowed = {"one", "all"} if page.action == ALLOWED else {"all", "but"}
        assert let_in == (set() if page.root_only else allowed), page.action


async def test_a_presigned_address_is_not_taken(closed: Served, root: SigningKey) -> None:
    query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0"

    assert (await closed.ask_page("GET", f"archive?{query}")).status == 403


async def test_a_request_that_changes_something_is_taken_once(
    closed: Served, root: SigningKey, tmp_path: Path
) -> None:
    body = json.dumps({"target": str(tmp_path / "backup")}).encode()
    headers = {"host": "localhost"}
    target = RESERVED + "backups"
    signed = signed_headers(root, "POST", target, headers, body, SystemClock().wall_s())

    first = await closed.ask(page_request("POST", target, signed, body))
    again = await closed.ask(page_request("POST", target, signed | {"x-more": "1"}, body))

    assert first.status == 200
    assert (again.status, again.json["error"]) == (
        403,
        "This very request was sent before: sign another one.",
    )


# -- the key of commands on this machine -----------------------------------------------------------


async def test_the_local_key_is_its_owners_alone_and_goes_with_the_service(
    data: Path, root: SigningKey
) -> None:
    keys = []
    for _ in range(2):
        async with serving(data, auth=AuthMode.SIGV4) as served:
            assert stat.S_IMODE((data / "service.json").stat().st_mode) == 0o600
            assert _note(data).url == _note(data).admin_url == served.address
            keys.append(_local_key(data))
            mine = await served.ask_page("GET", "deleted-queues", key=keys[-1])
            earlier = await served.ask_page("GET", "deleted-queues", key=keys[0])
        assert not (data / "service.json").exists()
        assert mine.status == 200

    assert keys[0] != keys[1]
    assert (earlier.status, keys[0] != keys[1]) == (403, True)


async def test_the_local_key_is_none_to_sqs(closed: Served, data: Path) -> None:
    headers = {"host": "localhost", "x-amz-target": "AmazonSQS.ListQueues"}
    signed = signed_headers(_local_key(data), "POST", "/", headers, b"{}", SystemClock().wall_s())

    answer = await closed.ask(page_request("POST", "/", signed, b"{}"))

    assert answer.status == 403
    assert b"UnrecognizedClientException" in answer.body


_OF_PROXIES = ["x-forwarded-for", "x-forwarded-proto", "forwarded", "via", "x-real-ip"]


async def test_the_local_key_does_not_come_by_a_proxy(
    closed: Served, data: Path, root: SigningKey
) -> None:
    for header in _OF_PROXIES:
        passed_on = {header: "127.0.0.1"}

        mine = await closed.ask_page("GET", "archive", key=_local_key(data), more=passed_on)
        roots = await closed.ask_page("GET", "archive", key=root, more=passed_on)

        assert (mine.status, roots.status) == (403, 200), header


@pytest.mark.parametrize(
    ("source_ip", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("", False), ("unix", False)],
)
def test_local_is_who_comes_by_loopback(source_ip: str, is_local: bool) -> None:
    assert AdminRequest("GET", b"/", {}, b"", source_ip, False).is_local == is_local


# -- hosts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", [AuthMode.SIGV4, AuthMode.OPEN])
async def test_a_host_that_is_not_ours_is_refused(
    data: Path, root: SigningKey, auth: AuthMode
) -> None:
    async with serving(data, auth=auth, lake=str(data / "lake")) as served:
        answers = await _ask_all(served, key=root, host="rebound.example")
        metrics = await served.ask_page("GET", "metrics", key=root, host="rebound.example")

    for action, answer in (answers | {"metrics": metrics}).items():
        assert answer.status == 403, action
        assert "does not know the host 'rebound.example'" in answer.json["error"], action


async def test_metrics_for_anyone_are_for_any_host_and_probes_stay_open(data: Path) -> None:
    async with serving(data, metrics="anyone") as served:
        metrics = await served.ask_page("GET", "metrics", host="prometheus.example")
        probes = [
            await served.ask(page_request("GET", path, {"host": "probe.example"}, b""))
            for path in ("/healthz", "/readyz")
        ]

    assert [metrics.status, *(probe.status for probe in probes)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("listens_on", "header", "is_known"),
    [
        ("127.0.0.1", "localhost:1", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "127.0.0.1:9", True),
        ("127.0.0.1", "[::1]:9", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1:9324", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("0.0.0.0", "10.0.0.2", True),
        ("::", "[2001:db8::1]:1", True),
        ("0.0.0.0", "evil.example", False),
        ("box", "box:9324", True),
        ("box", "10.0.0.2", True),
        ("127.0.0.1", "sqs.example:443", True),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "localhost@evil.example", False),
        ("127.0.0.1", "evil.example@localhost", False),
        ("127.0.0.1", "localhost, evil.example", False),
        ("127.0.0.1", "localhost,localhost", False),
        ("127.0.0.1", "", False),
    ],
)
def test_known_hosts(listens_on: str, header: str, is_known: bool) -> None:
    hosts = KnownHosts(listens_on, "https://SQS.example/path")

    assert (header.encode() in hosts) == is_known


# -- open mode -------------------------------------------------------------------------------------


async def test_open_mode_asks_programs_on_this_machine_for_no_signature(data: Path) -> None:
    async with serving(data, lake=str(data / "lake")) as served:
        mine = await _ask_all(served)
        proxied = await _ask_all(served, more={"via": "1.1 p"})
        browser = await _ask_all(served, more={"origin": "http://localhost:9324"})

    for action, answer in mine.items():
        assert answer.status in (200, 400, 404, 409), action
        assert (proxied[action].status, browser[action].status) == (403, 403), action


# -- commands --------------------------------------------------------------------------------------


async def test_commands_on_this_machine_need_no_options(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATA", str(data))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    async with serving(data, auth=AuthMode.SIGV4, restore_deleted_s=1000) as served:
        queue = await served.node.owner.catalog.create_queue(("0" * 12, "us-east-1", "q"), {}, {})
        await served.node.owner.catalog.delete_queue(queue)
        backup = await asyncio.to_thread(run, "backup", tmp_path / "b")
        restored = await asyncio.to_thread(run, "restore-queue", "q")
        again = await asyncio.to_thread(run, "restore-queue", "q", "--data", data)

    assert (backup.status, backup.err) == (0, "")
    assert restored == Said(0, "restored q of account 000000000000 in us-east-1\n", "")
    assert again == Said(2, "", "no deleted queue q can be restored")


@pytest.mark.parametrize("mutual", [False, True])
async def test_commands_on_this_machine_need_no_options_with_tls(
    data: Path, tmp_path: Path, mutual: bool
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("sqs.example")
    tls = {"tls_certificate": certificate, "tls_key": key}
    if mutual:
        tls["tls_client_ca"] = authority.file
    async with serving(data, auth=AuthMode.SIGV4, **tls) as served:
        note = _note(data)
        said = await asyncio.to_thread(run, "backup", tmp_path / "b", "--data", data)
        unsigned, sqs, metrics = [
            await Served(served.node, data, note.admin_url).ask(
                page_request(method, path, HOST, b"")
            )
            for method, path in (
                ("POST", "/_holdfast/backups"),
                ("POST", "/?Action=ListQueues"),
                ("GET", "/_holdfast/metrics"),
            )
        ]

    assert (served.address[:8], note.url) == ("https://", served.address)
    assert (said.status, said.err) == (0, "")
    assert (unsigned.status, sqs.status, metrics.status) == (403, 404, 200)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "[::1]"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("localhost", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("10.0.0.7", None),
        ("box.example", None),
    ],
)
def test_where_commands_on_this_machine_reach_the_service(host: str, loopback: str | None) -> None:
    assert loopback_of(host) == loopback


def test_policy_check_knows_the_actions_of_the_pages(data: Path) -> None:
    add_user(data, "one", ALLOWED)
    check = ("policy", "check", "--data", data, "--user", "one", "--action")

    allowed = run(*check, ALLOWED)
    denied = run(*check, "holdfast:Backup")

    arn = "arn:aws:iam::000000000000:user/one"
    assert allowed.out.startswith(f"allowed: {arn} {ALLOWED} *\n")
    assert denied.out.startswith(f"denied: {arn} holdfast:Backup *\n")
    assert "no identity-based policy allows the holdfast:Backup action" in denied.out
    assert run(*check, "holdfast:Nothing").err == "--action: there is no action holdfast:Nothing"
    assert run(*check, "SendMessage").err == "--queue: is needed for this action"
