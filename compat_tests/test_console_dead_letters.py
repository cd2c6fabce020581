"""The dead letters of all queues in a real browser: by severity, both ways, by team, with a chart
of the service's own past and one thing to do next."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import XSS, count, make_dead_letters, sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_jobs import Operator, name_for, slow

pytestmark = pytest.mark.slow
__all__ = ["slow"]

SHOWN = "Dead-letter queues"


@pytest.fixture(scope="module")
def teams(opened: NodeProcess) -> NodeProcess:
    """Dead letters of two teams, and of none."""
    client = sqs(opened)
    for name, messages, team in (
        ("inbox-big", 9, "shop"),
        ("inbox-small", 1, "shop"),
        ("inbox-middle", 4, XSS),
        ("inbox-none", 2, ""),
    ):
        make_dead_letters(client, name, *"x" * messages)
        if team:
            client.tag_queue(QueueUrl=f"{name}-dead", Tags={"team": team})
    make_dead_letters(client, "inbox-empty")
    return opened


def order(tab: Any) -> list[str]:
    """The names in the table, and the headings of groups."""
    firsts = tab.page.get_by_role("region", name=SHOWN).locator("tbody tr > :first-child")
    return [text.removesuffix("-dead") for text in firsts.all_inner_texts()]


def see_order(tab: Any, *names: str) -> None:
    eventually(lambda: order(tab) == [*names])


def test_the_list_is_sorted_both_ways_and_keeps_it_in_its_address(
    browser: Any, teams: NodeProcess
) -> None:
    tab = tab_of(browser, teams, "/dead-letters?search=inbox-")
    down = ["inbox-big", "inbox-middle", "inbox-none", "inbox-small"]
    see_order(tab, *down)
    tab.press("Messages")
    see_order(tab, *down)
    heading = tab.page.get_by_role("columnheader", name="Messages")
    expect(heading).to_have_attribute("aria-sort", "descending")
    tab.press("Messages")
    see_order(tab, *reversed(down))
    expect(heading).to_have_attribute("aria-sort", "ascending")
    tab.page.reload()
    see_order(tab, *reversed(down))
    tab.page.get_by_label("Empty ones, too").check()
    see_order(tab, "inbox-empty", *reversed(down))

    assert tab.faults == []


def test_rows_say_how_many_came_and_chart_the_services_past(
    browser: Any, teams: NodeProcess
) -> None:
    tab = tab_of(browser, teams, "/dead-letters?search=inbox-big")
    line = tab.page.get_by_role("row").filter(has_text="inbox-big-dead")
    line.get_by_text("+9", exact=True).wait_for()
    line.get_by_role("img", name="messages in the last hour: at most 9, lately 9").wait_for()

    expect(line.get_by_text("low", exact=True)).to_have_count(1)
    expect(line.locator("a.button")).to_have_text(["Redrive"])
    assert tab.faults == []


def test_the_worst_queue_of_a_team_is_found_and_redriven(
    browser: Any, teams: NodeProcess, slow: bool
) -> None:
    client, name = sqs(teams), name_for("worst", slow)
    make_dead_letters(client, name, *"x" * 12)
    client.tag_queue(QueueUrl=f"{name}-dead", Tags={"team": name})
    operator = Operator(tab_of(browser, teams), slow=slow)
    operator.click("Dead letters")
    operator.select("Group by a tag", "team")
    operator.tab.page.get_by_text(f"{name} 1 queue, 12 messages").wait_for()
    operator.click(f"Redrive {name}-dead")
    operator.click("Dry run")
    operator.click("Start")
    operator.fill(f"Type {name}-dead", f"{name}-dead")
    operator.click("Redrive all")
    operator.tab.see("12 of 12 moved.")

    assert operator.done == 7
    assert operator.posted() == [f"queues/{name}-dead/redrives"]
    assert (count(client, name), count(client, f"{name}-dead")) == (12, 0)
    assert operator.tab.faults == []


def test_teams_are_shown_as_text_the_worst_first(browser: Any, teams: NodeProcess) -> None:
    tab = tab_of(browser, teams, "/dead-letters?search=inbox-&tag=team")
    see_order(
        tab,
        "shop 2 queues, 10 messages",
        "inbox-big",
        "inbox-small",
        f"{XSS} 1 queue, 4 messages",
        "inbox-middle",
        "without team 1 queue, 2 messages",
        "inbox-none",
    )

    assert tab.faults == []


def test_the_groups_have_no_findings_and_fit_a_phone(browser: Any, teams: NodeProcess) -> None:
    tab = tab_of(browser, teams, "/dead-letters?search=inbox-&tag=team")
    tab.page.get_by_role("link", name="Redrive inbox-big-dead").wait_for()

    tab.check_looks(390, height=800)
