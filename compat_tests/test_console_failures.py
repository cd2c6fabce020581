"""The console while the service does not answer: each screen says what it cannot read, and reads it
when one presses Try again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import make_dead_letters, sqs, tab_of
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask

pytestmark = pytest.mark.slow

ANY_KEY = Credentials("AKIAOPEN", "secret", "us-east-1")
QUEUE = "**/api/queues/unread-dead"
SCREENS = [
    ("/queues/unread-dead", QUEUE, "The queue", "Dead letters come from"),
    ("/queues/unread-dead", "**/history?*", "The charts", "Depth"),
    ("/queues/unread-dead/edit", QUEUE, "The queue", "VisibilityTimeout"),
    ("/queues/unread-dead", "**/failures?*", "The failures", "The only message, 1 failure."),
    ("/queues/unread-dead/messages", QUEUE, "The queue", "1 messages looked at"),
    ("/queues/unread-dead/messages/1", "**/messages/1", "The message", "Dead letter of"),
    ("/queues/unread-dead/messages/1/resend", "**/messages/1", "The message", "The body is unch"),
    ("/queues/unread-dead/redrive", QUEUE, "The queue", "How carefully"),
    ("/queues/unread-dead/send", QUEUE, "The queue", "Delay in seconds"),
    ("/users/000000000000/unread", "**/users/show?*", "The user", "Access keys"),
    ("/users", "**/api/roles", "The roles", "Add a user"),
]


@pytest.fixture(scope="module")
def unread(opened: NodeProcess) -> NodeProcess:
    """A service with a dead letter and a user."""
    make_dead_letters(sqs(opened), "unread", "a")
    user = {"name": "unread", "account": "000000000000", "role": None, "with_key": False}
    assert ask(opened.url, ANY_KEY, "api/users", user)[0] == 200
    return opened


@pytest.mark.parametrize(("place", "path", "what", "text"), SCREENS)
def test_what_a_screen_cannot_read_is_said_and_tried_again(
    browser: Any, unread: NodeProcess, place: str, path: str, what: str, text: str
) -> None:
    tab = tab_of(browser, unread, "/hosts")
    tab.page.route(path, lambda route: route.abort("connectionrefused"))
    tab.go(place)
    alert = tab.page.get_by_role("alert")
    told = f"^{re.escape(what)} cannot be read: the service does not answer[.]"
    expect(alert).to_have_text(re.compile(told))
    tab.page.unroute(path)
    tab.press("Try again")
    tab.see(text)
    alert.wait_for(state="detached")
