"""Empty screens of the console in a real browser: they say what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service without a queue."""
    node = NodeProcess(tmp_path_factory.mktemp("fresh"), "--auth", "open").start()
    yield node
    node.close()


def test_a_first_queue_and_a_first_message_are_a_link_away(
    browser: Any, fresh: NodeProcess
) -> None:
    tab = tab_of(browser, fresh, "/queues")
    tab.press("Create the first one")
    tab.page.get_by_role("heading", name="Create a queue").wait_for()
    tab.go("/redrives")
    tab.press("Look at the dead letters")
    tab.see("nothing waits for you")
    sqs(fresh).create_queue(QueueName="first")
    tab.go("/queues/first/messages")
    tab.press("Send a message")
    tab.page.get_by_role("heading", name="Send to first").wait_for()
    tab.go("/queues/first/messages?text=nowhere")
    tab.press("Show all messages")
    tab.see("The queue is empty.")

    expect(tab.page).not_to_have_url(re.compile("text="))
    assert tab.faults == []


def test_a_queue_that_was_deleted_meanwhile_can_be_brought_back(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="lately")
    tab = tab_of(browser, opened, "/queues/lately")
    tab.see("In flight")
    client.delete_queue(QueueUrl="lately")
    tab.page.get_by_role("heading", name="This cannot be shown").wait_for()
    tab.press("Recently deleted")
    tab.press("Restore lately")
    tab.see("lately has its messages back.")

    assert tab.faults == []
