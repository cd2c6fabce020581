"""The console in a real browser: who signs in, what a viewer sees, and what attackers do not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import XSS, count, make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.pages import ask

pytestmark = pytest.mark.slow

VIEWER = ("holdfast:ListQueues", "holdfast:GetQueue", "holdfast:BrowseMessages")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service that checks signatures."""
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    node = NodeProcess(tmp_path_factory.mktemp("closed"), variables=variables).start()
    yield node
    node.close()


def user_key(node: NodeProcess, name: str, *actions: str) -> dict[str, str]:
    """The access key of a new user who may do this."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    policy = {"name": name, "policy": "p", "document": document}
    status, added = ask(node.url, node.credentials, "api/users", {"name": name, "with_key": True})
    assert status == 200, added
    status, put = ask(node.url, node.credentials, "api/users/policies", policy)
    assert status == 200, put
    key = added["key"]
    return {
        "AWS_ACCESS_KEY_ID": key["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": key["secret_access_key"],
    }


def signed_in(browser: Any, node: NodeProcess, place: str, key: dict[str, str]) -> Tab:
    tab = tab_of(browser, node, place)
    tab.sign_in(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
    return tab


# -- signing in ------------------------------------------------------------------------------------

REQUESTS = [
    {"method": "GET", "path": "/_holdfast/api/queues", "query": {}, "headers": {}, "body": ""},
    {
        "method": "GET",
        "path": "/_holdfast/api/queues/q.fifo/messages",
        "query": {"text": "a b+c/ä~*'()!", "json": "a[0]=1&2", "B": "", "a-b": "x"},
        "headers": {},
        "body": "",
    },
    {
        "method": "POST",
        "path": "/_holdfast/api/a b/é",
        "query": {},
        "headers": {"content-type": "application/json", "x-holdfast-nonce": "a  b"},
        "body": '{"body": "ü😀"}',
    },
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: each["path"])
@pytest.mark.parametrize("token", [None, "a/token+="])
def test_the_page_signs_as_botocore_does(
    browser: Any, opened: NodeProcess, request_: dict[str, Any], token: str | None
) -> None:
    tab = tab_of(browser, opened)
    key = {"accessKeyId": "AKIA1", "secret": "s/e+c", "region": "eu-west-1", "sessionToken": token}
    host = opened.url.removeprefix("http://")
    headers, query = tab.page.evaluate(
        """async ([key, request]) => {
            const signing = await import("/_holdfast/console/signing.js");
            const query = signing.queryOf(request.query);
            const now = new Date("2026-01-02T03:04:05.678Z");
            return [await signing.signedHeaders(key, { ...request, query }, now), query];
        }""",
        [key, {**request_, "host": host}],
    )

    url = f"{opened.url}{request_['path']}" + (f"?{query}" if query else "")
    sent = {name: text for name, text in headers.items() if name != "authorization"}
    expected = AWSRequest(request_["method"], url, {**sent, "host": host}, request_["body"])
    expected.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials("AKIA1", "s/e+c", token), "sqs", "eu-west-1")
    signature = auth.signature(
        auth.string_to_sign(expected, auth.canonical_request(expected)), expected
    )

    assert headers["x-amz-date"] == "20260102T030405Z"
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_a_key_signs_in_and_its_secret_stays_in_the_page(browser: Any, closed: NodeProcess) -> None:
    sqs(closed).create_queue(QueueName="first")
    exports = closed.exports()
    tab = tab_of(browser, closed)
    tab.sign_in("AKIAWRONG", "wrong")
    tab.see("No access key AKIAWRONG is in use here")
    tab.sign_in(exports["AWS_ACCESS_KEY_ID"], "wrong")
    tab.see(f"This is not the secret of {exports['AWS_ACCESS_KEY_ID']}.")
    tab.sign_in(exports["AWS_ACCESS_KEY_ID"], exports["AWS_SECRET_ACCESS_KEY"])
    tab.see("first")
    tab.page.reload()
    tab.see("first")

    secret = exports["AWS_SECRET_ACCESS_KEY"]
    for request in tab.requests:
        sent = f"{request.url} {request.headers} {request.post_data}"
        assert secret not in sent
        assert request.url.startswith(closed.url)
    assert tab.page.evaluate("localStorage.length") == 0
    assert tab.page.evaluate("document.cookie") == ""
    tab.press("Sign out")
    tab.page.get_by_label("Secret access key").wait_for()
    tab.page.wait_for_function("sessionStorage.length === 0")
    assert tab.faults == []


def test_a_session_that_ends_asks_to_sign_in_again(browser: Any, closed: NodeProcess) -> None:
    key = user_key(closed, "leaver", *VIEWER)
    tab = signed_in(browser, closed, "/queues", key)
    tab.page.get_by_role("heading", name="Queues").wait_for()

    removed = run_command(
        "credentials", "--data", str(closed.data), "remove", key["AWS_ACCESS_KEY_ID"]
    )
    assert removed.returncode == 0, removed.stderr

    tab.page.get_by_label("Secret access key").wait_for()
    expect(tab.page.get_by_role("dialog").get_by_role("alert")).to_contain_text(
        "The access key of your session was disabled: sign in again."
    )


# -- roles -----------------------------------------------------------------------------------------


def test_a_viewer_reads_no_body_and_changes_nothing(browser: Any, closed: NodeProcess) -> None:
    make_dead_letters(sqs(closed), "viewed", "the secret body")
    key = user_key(closed, "viewer", *VIEWER)
    tab = signed_in(browser, closed, "/queues/viewed-dead", key)
    tab.see("Lost in")
    tab.settle()
    for name in ("Send", "Redrive", "Purge"):
        expect(tab.page.get_by_text(name, exact=True)).to_have_count(0)
    tab.press("Messages")
    tab.see("Bodies are masked")
    tab.page.locator("tbody a").first.click()
    tab.see("The body is masked")

    assert "the secret body" not in tab.page.content()
    tab.go("/queues/viewed-dead/messages?text=secret")
    tab.see("this needs holdfast:readmessagebodies on viewed-dead: your policies do not allow it.")
    assert tab.faults == []


# -- attacks ---------------------------------------------------------------------------------------


def test_bodies_tags_attributes_and_policies_are_text(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    attributes = {"kind": {"DataType": "String", "StringValue": XSS}}
    make_dead_letters(client, "attack", XSS, MessageGroupId="<b>g", MessageAttributes=attributes)
    client.tag_queue(QueueUrl="attack-dead", Tags={"<img src=x onerror=alert(1)>": XSS})
    places = (
        "/queues/attack-dead",
        "/queues/attack-dead/messages?text=%3Cimg",
        f"/queues?search={XSS}",
        "/queues/%3Cscript%3Ealert(1)%3C/script%3E",
    )
    tab = tab_of(browser, opened)
    for place in places:
        tab.go(place)
        tab.settle()
        expect(tab.page.locator("main img, main script")).to_have_count(0)
    tab.go("/queues/attack-dead/messages")
    tab.page.locator("tbody a").first.click()
    tab.see("Message attributes")
    expect(tab.page.locator("pre.body")).to_contain_text(XSS)
    expect(tab.page.locator("main img, main script")).to_have_count(0)
    tab.press("Edit and resend")
    tab.fill("Body", XSS + "!")
    tab.page.locator(".diff").wait_for()
    expect(tab.page.locator("main img, main script")).to_have_count(0)

    assert tab.faults == []


class _Evil(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """A page without any policy."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><form method=post></form>")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def evil() -> Iterator[str]:
    """A page of another origin on this machine."""
    server = HTTPServer(("127.0.0.1", 0), _Evil)
    thread = threading.Thread(target=partial(server.serve_forever, 0.05))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_another_origin_changes_and_reads_nothing(
    browser: Any, opened: NodeProcess, evil: str
) -> None:
    """In open mode, in which no signature protects."""
    client = sqs(opened)
    client.create_queue(QueueName="victim")
    client.send_message(QueueUrl="victim", MessageBody="x")
    target = f"{opened.url}/_holdfast/api/queues/victim/purge"
    tab = Tab(browser, opened.url)
    tab.page.goto(evil)
    asked: list[int] = []
    tab.page.on("response", lambda response: asked.append(response.status))

    outcomes = tab.page.evaluate(
        """async (target) => {
            const body = JSON.stringify({ confirm: "victim" });
            const kinds = ["application/json", "text/plain"];
            const found = [];
            for (const mode of ["cors", "no-cors"])
                for (const kind of kinds)
                    found.push(await fetch(target, { method: "POST", mode, body,
                        headers: { "content-type": kind } })
                        .then((each) => each.type, () => "failed"));
            const list = target.replace("/victim/purge", "");
            found.push(await fetch(list).then((each) => each.text(), () => "failed"));
            return found;
        }""",
        target,
    )
    with tab.page.expect_navigation():
        tab.page.locator("form").evaluate(
            "(form, to) => { form.action = to; form.enctype = 'text/plain'; form.submit(); }",
            target,
        )

    assert set(outcomes) <= {"failed", "opaque"}
    assert outcomes[-1] == "failed"
    assert 200 not in asked
    assert count(client, "victim") == 1
    framed = tab_of(browser, opened)
    assert (
        framed.page.request.get(f"{opened.url}/_holdfast/console").headers["x-frame-options"]
        == "DENY"
    )
