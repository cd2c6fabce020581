"""Browsing with a filter: the shard leaves out what does not match, in pages of bounded work."""

from __future__ import annotations

import pytest

from cluster.tests.test_paced_moves import Service
from visibility.contract.move_task import MessageFilter
from visibility.contract.outcomes import Browsed, BrowsedPage
from visibility.rules import browse
from visibility.rules.browse import BrowseMessages
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared

BODIES = [f'{{"n": {number}}}' for number in range(6)]


def pages(service: Service, wanted: MessageFilter, **more: object) -> list[BrowsedPage]:
    """All pages."""
    found: list[BrowsedPage] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        look = BrowseMessages(after=after, filter=wanted, **more)  # type: ignore[arg-type]
        found.append(service.ask(look))
        after = found[-1].next_token
    return found


def shown(found: list[BrowsedPage]) -> list[Browsed]:
    return [each for page in found for each in page.messages]


@pytest.fixture
def service() -> Service:
    service = Service()
    service.let_die(*BODIES)
    return service


def test_one_message_is_found_by_its_id_and_all_others_are_looked_at(service: Service) -> None:
    everything = shown(pages(service, MessageFilter()))
    wanted = everything[3]

    found = pages(service, MessageFilter(message_id=wanted.message.message_id))
    begins = pages(service, MessageFilter(message_id=wanted.message.message_id[:8]))

    assert len(everything) == len(BODIES)
    assert shown(found) == shown(begins) == [wanted]
    assert sum(page.looked_at for page in found) == len(BODIES)
    assert not shown(pages(service, MessageFilter(message_id=wanted.message.message_id[1:])))


def test_a_moved_message_is_found_by_the_id_that_it_had(service: Service) -> None:
    before = shown(pages(service, MessageFilter()))[0].message
    service.ask(MoveSelected())
    service.let_die()

    (found,) = shown(pages(service, MessageFilter(message_id=before.message_id)))

    assert found.message.message_id != before.message_id
    assert found.message.data == before.data


def test_a_page_looks_at_so_many_messages_and_shows_at_most_the_limit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "SEARCHED_MAX", 4)
    missing = MessageFilter(message_id="0" * 36)

    assert [page.looked_at for page in pages(service, missing)] == [4, 2]
    assert [len(page.messages) for page in pages(service, MessageFilter(), limit=1)] == [1] * 6
    monkeypatch.setattr(browse, "SEARCHED_BYTES", 1)
    assert [page.looked_at for page in pages(service, missing)] == [1] * 6


def test_receives_and_states_are_those_of_now(service: Service) -> None:
    service.driver.submit(prepared.receive(service.dead, 2))
    often = shown(pages(service, MessageFilter(received_min=2)))

    assert [each.state for each in often] == ["in flight"] * 2
    assert not shown(pages(service, MessageFilter(received_min=3)))


def test_delayed_messages_are_left_out_likewise() -> None:
    service = Service()
    service.driver.submit(prepared.send(service.dead, "later", delay_s=60))
    (delayed,) = shown(pages(service, MessageFilter(), delayed=True))
    message_id = delayed.message.message_id

    assert shown(pages(service, MessageFilter(message_id=message_id), delayed=True)) == [delayed]
    (page,) = pages(service, MessageFilter(message_id="x"), delayed=True, limit=2)[:1]
    assert (page.messages, page.looked_at) == ([], 1)
