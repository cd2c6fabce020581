"""Sessions of browsers: how they begin, what they may do, and everything that ends them."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.auth_errors import AuthError, SessionEnded
from auth.signing import SigningKey
from cluster.coordination.records import View
from cluster.keys.identity_store import IdentityStore
from cluster.keys.session_store import OF_OWNER_MAX
from sqs_api.admin.routes import RESERVED
from sqs_api.gateway.recheck_refusal import RecheckRefusal
from sqs_api.operators.user_answers import user_of
from sqs_api.settings.config import AuthMode
from sqs_api.tests.conftest import Folder
from sqs_api.tests.operator_client import JSON, add_user
from sqs_api.tests.served import Served, page_request, serving
from sqs_api.tests.serving import Answer, until
from visibility.contract.errors import QueueError

ACCOUNT = "000000000000"
PAGE = {"x-holdfast-console": "1"}


class Browser:
    """A browser at one service: keeps cookies, and sends the header of the console's page."""

    def __init__(self, served: Served, host: str = "localhost:9324") -> None:
        self.served = served
        self.host = host
        self.set_cookie = ""

    @property
    def cookie(self) -> str:
        return self.set_cookie.partition(";")[0]

    async def ask(
        self, method: str, page: str, content: object = None, more: Mapping[str, str] = PAGE
    ) -> Answer:
        headers = {"cookie": self.cookie, **more, **(JSON if method == "POST" else {})}
        body = b"" if content is None else json.dumps(content).encode()
        return await self.served.ask_page(method, f"api/{page}", body, more=headers, host=self.host)

    async def sign_in(self, key: SigningKey, challenge: str | None = None, **more: str) -> Answer:
        if challenge is None:
            challenge = (await self.ask("GET", "sessions/challenge")).json["challenge"]
        body = json.dumps({"challenge": challenge}).encode()
        answer = await self.served.ask_page(
            "POST", "api/sessions", body, key=key, host=self.host, more={**JSON, **more}
        )
        self.set_cookie = answer.headers.get("Set-Cookie", "")
        return answer

    async def status(self, page: str = "caller") -> int:
        return (await self.ask("GET", page)).status


@pytest.fixture(scope="module")
def with_ann(data_to_copy: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(data_to_copy.path, tmp_path_factory.mktemp("ann") / "data"))


@pytest.fixture(scope="module")
def ann(with_ann: Path) -> SigningKey:
    return add_user(with_ann, "ann", "holdfast:*", "sqs:*")


@pytest.fixture
def data(with_ann: Path, ann: SigningKey, tmp_path: Path) -> Path:
    """A data folder with Ann."""
    return Path(shutil.copytree(with_ann, tmp_path / "data"))


@pytest_asyncio.fixture
async def closed(data: Path, ann: SigningKey) -> AsyncIterator[Served]:
    async with serving(data, auth=AuthMode.SIGV4) as served:
        yield served


@pytest_asyncio.fixture
async def browser(closed: Served, ann: SigningKey) -> Browser:
    """Ann is signed in."""
    browser = Browser(closed)
    assert (await browser.sign_in(ann)).status == 200
    return browser


def identities(served: Served) -> IdentityStore:
    return served.node.owner.identities


# -- signing in ------------------------------------------------------------------------------------


async def test_a_signed_challenge_begins_a_session_that_does_what_the_key_may(
    browser: Browser,
) -> None:
    caller = await browser.ask("GET", "caller")
    made = await browser.ask("POST", "queues", {"name": "made"})

    assert (caller.json["user"], caller.json["is_trusted"]) == ("ann", False)
    assert made.status == 200
    assert browser.set_cookie.partition("; ")[2] == (
        "Path=/_holdfast/api/; Max-Age=28800; HttpOnly; SameSite=Strict"
    )
    assert browser.cookie.startswith("holdfast-9324=")


async def test_a_challenge_is_answered_once(browser: Browser, ann: SigningKey) -> None:
    challenge = (await browser.ask("GET", "sessions/challenge")).json["challenge"]
    first = await browser.sign_in(ann, challenge)
    again = await browser.sign_in(ann, challenge, **{"x-other": "1"})

    assert (first.status, again.status) == (200, 400)
    assert again.json["error"] == "The challenge was answered before: sign in again."
    assert "Set-Cookie" not in again.headers


_OF_NOBODY = ["", "AAAA", "ä", "x" * 5_000]


async def test_a_challenge_of_nobody_is_refused(browser: Browser, ann: SigningKey) -> None:
    for challenge in _OF_NOBODY:
        answer = await browser.sign_in(ann, challenge)

        assert (answer.status, "Set-Cookie" in answer.headers) == (400, False), challenge


async def test_no_session_begins_without_an_access_key(browser: Browser, closed: Served) -> None:
    challenge = (await browser.ask("GET", "sessions/challenge")).json["challenge"]
    by_cookie = await browser.ask("POST", "sessions", {"challenge": challenge})
    unsigned = await Browser(closed).ask("POST", "sessions", {"challenge": challenge})

    assert (by_cookie.status, unsigned.status) == (400, 403)


async def test_behind_tls_the_cookie_is_secure_and_no_other_counts(
    data: Path, ann: SigningKey
) -> None:
    async with serving(data, auth=AuthMode.SIGV4, public_url="https://queues.example") as served:
        browser = Browser(served, "queues.example")
        await browser.sign_in(ann)
        plain = Browser(served, "queues.example")
        plain.set_cookie = browser.set_cookie.removeprefix("__Host-")

        assert browser.set_cookie.partition("; ")[2] == (
            "Path=/; Secure; Max-Age=28800; HttpOnly; SameSite=Strict"
        )
        assert browser.cookie.startswith("__Host-holdfast=")
        assert (await browser.status(), await plain.status()) == (200, 403)


async def test_the_store_has_no_token(browser: Browser, closed: Served) -> None:
    token = browser.cookie.partition("=")[2]
    stored = identities(closed)._records.view.records

    assert any(key.startswith("sessions/") for key in stored)
    assert all(
        token not in key and token.encode() not in each.value for key, each in stored.items()
    )


# -- attacks ---------------------------------------------------------------------------------------

FOREIGN = [
    {"origin": "https://evil.example", **PAGE},
    {"sec-fetch-site": "cross-site", **PAGE},
    {"sec-fetch-site": "same-site", **PAGE},
    {"origin": "null", **PAGE},
    {},
]


async def test_a_page_of_another_origin_cannot_use_the_cookie(browser: Browser) -> None:
    for headers in FOREIGN:
        reads = await browser.ask("GET", "queues", more=headers)
        changes = await browser.ask("POST", "queues", {"name": "q"}, more=headers)

        assert (reads.status, changes.status) == (403, 403), headers
    assert (await browser.ask("GET", "queues")).json["queues"] == []


async def test_an_unknown_host_is_refused(browser: Browser) -> None:
    browser.host = "rebound.example:9324"

    assert await browser.status() == 403
    assert await browser.status("sessions/challenge") == 403


async def test_sqs_and_the_pages_for_commands_do_not_take_the_cookie(
    browser: Browser, closed: Served
) -> None:
    headers = {
        "host": browser.host,
        "cookie": browser.cookie,
        "x-amz-target": "AmazonSQS.ListQueues",
        "content-type": "application/x-amz-json-1.0",
        **PAGE,
    }
    of_sqs = await closed.ask(page_request("POST", "/", headers, b"{}"))
    of_command = await closed.ask_page("GET", "deleted-queues", more=headers)

    assert of_sqs.status == of_command.status == 403
    assert "MissingAuthenticationToken" in of_sqs.body.decode()


async def test_a_token_of_nobody_is_a_session_that_has_ended(browser: Browser) -> None:
    browser.set_cookie = "holdfast-9324=" + "A" * 43
    answer = await browser.ask("GET", "caller")

    assert (answer.status, answer.json["code"]) == (403, "SessionEnded")


async def test_a_new_session_has_a_token_of_its_own(browser: Browser, ann: SigningKey) -> None:
    before = browser.cookie
    await browser.sign_in(ann, cookie=before)

    assert browser.cookie != before


async def test_sessions_of_a_user_are_bounded(browser: Browser, ann: SigningKey) -> None:
    other = Browser(browser.served)
    for _ in range(OF_OWNER_MAX):
        await other.sign_in(ann)

    assert len((await other.ask("GET", "sessions")).json) == OF_OWNER_MAX
    assert await browser.status() == 403, "the oldest one has ended"


# -- the end ---------------------------------------------------------------------------------------


async def test_a_session_is_ended_from_another_place(browser: Browser, ann: SigningKey) -> None:
    other = Browser(browser.served)
    await other.sign_in(ann, **{"user-agent": "Phone"})
    listed = (await browser.ask("GET", "sessions")).json
    (there,) = [each for each in listed if not each["is_this"]]
    ended = await browser.ask("POST", "sessions/end", {"session": there["session"]})

    assert (there["user_agent"], ended.json) == ("Phone", {"ended": 1})
    assert (await other.status(), await browser.status()) == (403, 200)


async def test_signing_out_ends_the_session_and_forgets_the_cookie(browser: Browser) -> None:
    (this,) = (await browser.ask("GET", "sessions")).json
    ended = await browser.ask("POST", "sessions/end", {"session": this["session"]})

    assert "Max-Age=0" in ended.headers["Set-Cookie"]
    assert await browser.status() == 403


async def test_nobody_ends_the_sessions_of_others(browser: Browser, root: SigningKey) -> None:
    other = Browser(browser.served)
    await other.sign_in(root)
    (of_root,) = (await other.ask("GET", "sessions")).json
    one = await browser.ask("POST", "sessions/end", {"session": of_root["session"]})
    both = await browser.ask("POST", "sessions/end", {"session": None})

    assert (one.json, both.json) == ({"ended": 0}, {"ended": 1})
    assert await other.status() == 200


async def _disable(store: IdentityStore, key: SigningKey) -> None:
    await store.set_key_enabled(key.access_key_id, False)


async def _remove(store: IdentityStore, key: SigningKey) -> None:
    await store.remove_key(key.access_key_id)


async def _remove_user(store: IdentityStore, key: SigningKey) -> None:
    await store.remove_user(user_of(store, ACCOUNT, "ann"))


async def _give(store: IdentityStore, key: SigningKey) -> None:
    statement = {"Effect": "Deny", "Action": "sqs:*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    await store.put_policy(user_of(store, ACCOUNT, "ann"), "less", document)


async def _tag(store: IdentityStore, key: SigningKey) -> None:
    await store.set_user_tags(user_of(store, ACCOUNT, "ann"), {"team": "other"})


async def _replace_user(store: IdentityStore, key: SigningKey) -> None:
    before = store.policies(user_of(store, ACCOUNT, "ann"))
    await _remove_user(store, key)
    user = await store.add_user(ACCOUNT, "ann", {})
    for name, document in before.items():
        await store.put_policy(user, name, document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_disable, "The access key of your session was disabled: sign in again."),
        (_remove, "The access key of your session was disabled: sign in again."),
        (_remove_user, "The access key of your session was disabled: sign in again."),
        (_replace_user, "The access key of your session was disabled: sign in again."),
        (_give, "Your rights have changed: sign in again."),
        (_tag, "Your rights have changed: sign in again."),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_a_session_ends_with_its_key_and_its_rights(
    browser: Browser, closed: Served, ann: SigningKey, change: Any, said: str
) -> None:
    await change(identities(closed), ann)
    answer = await browser.ask("GET", "caller")

    assert (answer.status, answer.json) == (403, {"error": said, "code": "SessionEnded"})


async def test_a_session_survives_a_restart(data: Path, ann: SigningKey) -> None:
    async with serving(data, auth=AuthMode.SIGV4) as served:
        browser = Browser(served)
        await browser.sign_in(ann)
    async with serving(data, auth=AuthMode.SIGV4) as served:
        browser.served = served

        assert await browser.status() == 200


async def test_access_keys_are_not_read_anew_for_a_session(
    browser: Browser, closed: Served, ann: SigningKey
) -> None:
    """Or each sign-in would empty the caches of signatures."""
    changes: list[str] = []
    identities(closed).subscribe(lambda: changes.append("changed"))
    await browser.sign_in(ann)
    await browser.ask("POST", "sessions/end", {"session": None})

    assert changes == []


async def test_the_audit_log_has_sign_ins_and_the_session_of_changes(
    browser: Browser, data: Path
) -> None:
    (this,) = (await browser.ask("GET", "sessions")).json
    await browser.ask("POST", "queues", {"name": "made"})
    wanted = [(f"holdfast:{what}", this["session"]) for what in ("CreateQueue", "SignIn")]

    async def are_written() -> bool:
        found = (await browser.ask("GET", "audit?limit=10")).json["entries"]
        return [(each["action"], each["details"].get("session")) for each in found[:2]] == wanted

    await until(are_written)  # behind the answers


async def test_open_mode_has_no_sessions(data: Path) -> None:
    async with serving(data) as served:
        answer = await Browser(served).ask("GET", "sessions/challenge")

    assert answer.json["error"] == "Nobody signs in to a service in open mode."


class _Hears(RecheckRefusal):
    """Learns of the commits of another host when it is asked."""

    def __init__(self, hear: Callable[[], None]) -> None:
        self._learn = hear

    def may_lift(self, refusal: QueueError | AuthError) -> bool:
        return isinstance(refusal, SessionEnded)

    async def hear(self, refusal: QueueError | AuthError) -> None:
        self._learn()


async def test_a_session_that_began_elsewhere_is_heard_of_before_it_is_refused(
    browser: Browser, closed: Served
) -> None:
    records = identities(closed)._records
    known = records.view

    def learn() -> None:
        records.view = known

    api: Any = closed.node.admin.pages._below[RESERVED]
    api._recheck = _Hears(learn)
    records.view = View(
        0, {key: each for key, each in known.records.items() if "session" not in key}
    )

    assert await browser.status() == 200
