"""The engine's transcripts over the wire (see `transcripts.py`). Stories that wait run
concurrently."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Client, Credentials
from compat_tests.transcripts import STORIES, Late, Story

FILES = {file.stem: file for file in sorted(STORIES.glob("*.txt"))}
MAY_BE_CLUSTER = "COMPAT_ENDPOINT" in os.environ
BETWEEN_SHARDS = pytest.mark.skipif(
    MAY_BE_CLUSTER,
    reason="on two shards, what is behind a dead letter in its group comes with the next receive",
)
NAMES = [
    pytest.param(name, marks=[BETWEEN_SHARDS] * (name == "dead_letters_fifo")) for name in FILES
]
TRIES = 2
SHOWN_LEAST = 400
"""Commands that the stories must give over the wire, so that they do not all turn out
unsupported."""


class Outcome(NamedTuple):
    """The result of one story."""

    commands: int
    differences: list[str]
    late: str = ""
    """Answers that arrived while the machine was too slow to judge, or a leader changed."""


def told(client: Client, name: str) -> Outcome:
    """Run a story on queues of its own."""
    late = ""
    for _ in range(TRIES):
        story = Story(client, uuid.uuid4().hex[:12], may_be_cluster=MAY_BE_CLUSTER)
        try:
            differences = list(story.check(FILES[name].read_text()))
            return Outcome(story.commands, differences)
        except Late as slow:
            late = str(slow)
        finally:
            story.close()
    return Outcome(0, [], late)


def check(outcome: Outcome) -> None:
    if outcome.late:
        pytest.skip(f"the machine is too slow to tell, or a leader changed:\n{outcome.late}")
    assert not outcome.differences, "\n\n".join(outcome.differences)


@pytest.fixture(scope="module")
def outcomes(endpoint: str, credentials: Credentials) -> Iterator[dict[str, Future[Outcome]]]:
    """Every story over JSON, all at once."""
    client = Boto3Client(endpoint, credentials)
    with ThreadPoolExecutor(len(FILES)) as threads:
        yield {name: threads.submit(told, client, name) for name in FILES}
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_story_goes_over_the_wire_as_on_the_engine(
    outcomes: dict[str, Future[Outcome]], name: str
) -> None:
    check(outcomes[name].result())


@pytest.mark.slow
def test_most_commands_of_the_stories_can_be_given(
    outcomes: dict[str, Future[Outcome]],
) -> None:
    found = [each.result() for each in outcomes.values()]
    if any(outcome.late for outcome in found):
        pytest.skip("the machine is too slow to tell")

    assert sum(outcome.commands for outcome in found) >= SHOWN_LEAST


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_story_goes_over_the_query_protocol_as_far_as_it_does_not_wait(
    old: Client, name: str
) -> None:
    check(told(old, name))


def test_wrong_answer_is_found(current: Client) -> None:
    story = Story(current, uuid.uuid4().hex[:12])

    text = "queue q\nsend q a\nreceive q\n----\ndone\ndone\na/2, first received at 0 s"
    try:
        differences = list(story.check(text))
    except Late as slow:
        pytest.skip(f"the machine is too slow to tell:\n{slow}")

    assert len(differences) == 1
