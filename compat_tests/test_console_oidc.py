"""The console in a real browser signs in with a real OpenID Connect provider (npm's oidc-provider).

It needs Node and what `make .venv/.oidc` installs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import SENT, sqs
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.ports import free_ports
from compat_tests.test_console_once import click_unnoticed

TOOLS = Path(sys.prefix) / "oidc"
PROVIDER = Path(__file__).parent / "oidc" / "provider.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("node") is None or not (TOOLS / "node_modules" / "oidc-provider").exists(),
        reason="needs Node and oidc-provider: make .venv/.oidc",
    ),
]


class Provider:
    """The provider, for one console."""

    def __init__(self, address: str) -> None:
        (self.port,) = free_ports(1)
        self.issuer = f"http://127.0.0.1:{self.port}"
        self._address = address
        self.start()

    def start(self) -> None:
        """Wait until it answers."""
        command = ["node", str(PROVIDER), str(self.port), self._address]
        self._process = subprocess.Popen(
            command, cwd=TOOLS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        assert any(line == "ready\n" for line in self._process.stdout), "it did not start"

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, Provider]]:
    """A service with a provider."""
    (port,) = free_ports(1)
    provider = Provider(f"http://127.0.0.1:{port}")
    variables = {
        "HOLDFAST_PORT": str(port),
        "HOLDFAST_OIDC_ISSUER": provider.issuer,
        "HOLDFAST_OIDC_CLIENT_ID": "holdfast",
        "HOLDFAST_OIDC_CLIENT_SECRET": "secret of the client",
        "HOLDFAST_OIDC_ROLES": "sre=operator,staff=watcher",
    }
    node = NodeProcess(tmp_path_factory.mktemp("oidc"), variables=variables)
    node.port = port
    node.start()
    sqs(node).create_queue(QueueName="first")
    yield node, provider
    node.close()
    provider.stop()


@pytest.fixture
def node(parts: tuple[NodeProcess, Provider]) -> NodeProcess:
    return parts[0]


def tab_at(browser: Any, node: NodeProcess, place: str = "/queues") -> Tab:
    """A tab that reaches this machine only: the provider's page asks for a font elsewhere."""
    tab = Tab(browser, node.url)
    tab.context.route(lambda url: "//127.0.0.1:" not in url, lambda route: route.abort())
    tab.go(place)
    return tab


def log_in(page: Any, who: str) -> None:
    """At the provider."""
    page.get_by_placeholder("Enter any login").fill(who)
    page.get_by_placeholder("and password").fill("x")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def at_provider(tab: Tab) -> None:
    tab.page.get_by_role("button", name="Sign in with 127.0.0.1").click()


def test_a_person_signs_in_at_the_provider_with_the_strongest_role_of_a_claim(
    browser: Any, node: NodeProcess
) -> None:
    tab = tab_at(browser, node, "/queues?search=fir")
    at_provider(tab)
    log_in(tab.page, "ann.staff.sre")
    tab.see("first")
    links = tab.page.locator("nav a:visible")
    expect(links).to_have_text(["Queues", "Dead letters", "Redrives", "Audit", "Hosts"])
    names = {each["name"] for each in tab.context.cookies() if "holdfast" in each["name"]}
    listed = run_command("users", "--data", str(node.data), "list").stdout

    expect(tab.page).to_have_url(re.compile(r"/_holdfast/console#/queues\?search=fir$"))
    assert names == {f"holdfast-{urlsplit(node.url).port}"}
    assert "ann" in listed
    tab.page.get_by_role("link", name="ann", exact=True).wait_for()
    tab.page.reload()
    tab.see("first")
    assert [each for each in tab.faults if "ERR_FAILED" not in each] == []


def test_a_person_who_loses_the_role_is_signed_out_everywhere(
    browser: Any, node: NodeProcess
) -> None:
    tab = tab_at(browser, node)
    at_provider(tab)
    log_in(tab.page, "leaver.sre")
    tab.see("first")
    again = tab_at(browser, node)
    at_provider(again)
    log_in(again.page, "leaver.staff")
    again.see("refused")  # the subject is another one

    done = run_command("users", "--data", str(node.data), "remove-policy", "leaver", "operator")
    assert done.returncode == 0, done.stderr
    tab.see("Your rights have changed")


@pytest.mark.parametrize("who", ["guest", "guest.others"])
def test_nobody_signs_in_without_a_role(browser: Any, node: NodeProcess, who: str) -> None:
    tab = tab_at(browser, node)
    at_provider(tab)
    log_in(tab.page, who)
    tab.see("You have no role here")

    assert "guest" not in run_command("users", "--data", str(node.data), "list").stdout


def test_a_user_of_the_service_is_not_taken_over(browser: Any, node: NodeProcess) -> None:
    assert run_command("users", "--data", str(node.data), "add", "payroll").returncode == 0
    tab = tab_at(browser, node)
    at_provider(tab)
    log_in(tab.page, "payroll.sre")
    tab.see("The sign-in was refused.")
    shown = run_command("users", "--data", str(node.data), "show", "payroll").stdout

    assert "operator" not in shown


def test_a_session_that_ends_goes_on_by_the_provider_in_another_tab(
    browser: Any, node: NodeProcess
) -> None:
    tab = tab_at(browser, node)
    at_provider(tab)
    log_in(tab.page, "typist.sre")
    tab.see("first")
    tab.go("/queues/first/send")
    tab.fill("Body", "typed")
    tab.context.clear_cookies(name=f"holdfast-{urlsplit(node.url).port}")
    click_unnoticed(tab, "Send")
    with tab.context.expect_page() as opened:
        tab.page.get_by_role("dialog").get_by_role("button", name="Sign in with 127").click()
    opened.value.get_by_role("link", name="typist", exact=True).wait_for()
    tab.see(SENT)

    expect(tab.page.get_by_role("dialog")).to_have_count(0)


def test_two_tabs_sign_in_at_the_same_time(browser: Any, node: NodeProcess) -> None:
    """As after a browser restored its tabs: the way that began later does not end the other."""
    first = tab_at(browser, node)
    first.page.get_by_role("button", name="Sign in with 127").wait_for()
    with first.context.expect_page() as opened:
        first.page.evaluate("open(location.href, '_blank', 'noopener')")
    second = opened.value
    at_provider(first)
    first.page.get_by_placeholder("Enter any login").wait_for()
    second.get_by_role("button", name="Sign in with 127").click()
    second.get_by_placeholder("Enter any login").wait_for()
    log_in(first.page, "tabber.sre")

    first.see("first")
    second.go_back()
    second.get_by_role("link", name="tabber", exact=True).wait_for()


# -- attacks ---------------------------------------------------------------------------------------


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Do not follow."""


def go(node: NodeProcess, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, Location and cookie of an answer."""
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        answer = build_opener(_Stay).open(Request(f"{node.url}/_holdfast/{path}", headers=sent))
    except HTTPError as error:
        answer = error
    with answer:
        cookie = answer.headers.get("Set-Cookie") or ""
        return answer.status or answer.code, answer.headers.get("Location", ""), cookie


def test_only_the_browser_that_asked_comes_back(node: NodeProcess) -> None:
    status, place, cookie = go(node, "sign-in")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(place).query).items()}
    mine = cookie.partition(";")[0]
    _, _, others = go(node, "sign-in")
    back = f"sign-in/back?code=x&state={asked['state']}"
    refused = f"{urlsplit(node.url).path}/_holdfast/console?sign_in=refused"

    assert status == 303
    assert asked.keys() >= {"state", "nonce", "code_challenge"}
    assert asked["code_challenge_method"] == "S256"
    assert "HttpOnly; SameSite=Lax" in cookie
    assert go(node, back)[1] == refused
    assert go(node, back, cookie=others.partition(";")[0])[1] == refused
    assert go(node, back.replace("code=x", "error=access_denied"), cookie=mine)[1] == refused
    assert go(node, back, cookie=mine)[1:] == (refused, ""), "the provider knows no such code"


def cookies(node: NodeProcess, sent: str) -> list[str]:
    """The cookies that the begin of a way sets in a browser that has these."""
    try:
        answer = build_opener(_Stay).open(
            Request(f"{node.url}/_holdfast/sign-in", headers={"Cookie": sent})
        )
    except HTTPError as error:
        answer = error
    with answer:
        return answer.headers.get_all("Set-Cookie") or []


def test_ways_that_were_not_ended_do_not_pile_up_in_the_browser(node: NodeProcess) -> None:
    kept = [go(node, "sign-in")[2].partition(";")[0] for _ in range(4)]
    (one,) = cookies(node, "; ".join(kept[:3]))
    many = cookies(node, "; ".join([*kept, "holdfast-sign-in-else=x"]))

    assert "Max-Age=600" in one
    assert sorted(each.partition("=")[0] for each in many[:-1]) == sorted(
        each.partition("=")[0] for each in kept
    )
    assert all("Max-Age=0" in each for each in many[:-1])
    assert "Max-Age=600" in many[-1]


def test_the_way_begins_at_this_service_and_takes_no_place_to_return_to(
    node: NodeProcess,
) -> None:
    there = "sign-in?redirect_uri=https://evil.example&next=https://evil.example"

    assert "evil" not in go(node, there)[1]
    assert go(node, "sign-in", host="evil.example")[0] == 403
    assert go(node, "sign-in", sec_fetch_site="cross-site")[0] == 403


def test_a_provider_that_is_down_is_said_and_keys_still_sign_in(
    browser: Any, parts: tuple[NodeProcess, Provider]
) -> None:
    node, provider = parts
    exports = node.exports()
    tab = tab_at(browser, node)
    provider.stop()
    try:
        node.stop()
        node.start()  # without the provider's document
        at_provider(tab)
        tab.see("The provider does not answer")
        tab.sign_in(exports["AWS_ACCESS_KEY_ID"], exports["AWS_SECRET_ACCESS_KEY"])
        tab.see("first")
    finally:
        provider.start()
    eventually(lambda: go(node, "sign-in")[1].startswith(provider.issuer))
