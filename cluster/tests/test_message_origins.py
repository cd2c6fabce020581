"""Origins: redrives, undos and edits make new messages, which know what they were at first."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair
from visibility.content.edits import edit_of
from visibility.contract.death import MAX_RECEIVES, Death
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter, MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import BrowsedPage
from visibility.contract.stored_message import Origin, StoredMessage, Tried
from visibility.rules.browse import BrowseMessages
from visibility.rules.move_pace import prefix_of
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.resend import ResendMessage
from visibility.tests import prepared
from visibility.tests.packed import send_packed
from visibility.tests.prepared import START_MS, KnownQueues

NAMES = [f"{suffix or 'standard'} {place}" for suffix in ("", ".fifo") for place in ("one", "two")]


class Story(ShardPair):
    """A source and its dead-letter queue, in one shard or in two."""

    def __init__(self, suffix: str, *, is_split: bool) -> None:
        super().__init__(suffix, max_receive_count=2)
        if not is_split:
            letters = prepared.queue_named("letters" + suffix, 2)
            source = prepared.queue_named(
                "source" + suffix,
                1,
                dead_letters_to=letters,
                max_receive_count=2,
                VisibilityTimeout="5",
            )
            self.letters, self.source = letters, source
            self.queues = KnownQueues(self.source, self.letters)
            self.shards = [Driver(self.queues), Driver(self.queues, seed=1)]

    def die(self) -> None:
        """Let the source's messages be received too often, ten seconds apart."""
        target = self.queues.dead_letter_queue(self.source)
        for _ in range(3):
            request = prepared.receive(self.source, 10, dead_letter_queue=target)
            self.shards[self.source.shard].submit(request)
            self.pass_time(10_000)
        self.deliver()

    def ask(
        self,
        queue: QueueDefinition,
        operation: Operation,
        to: QueueDefinition | None = None,
        part: object = None,
    ) -> object:
        """Ask for an operation, and let everything arrive."""
        request = Request(
            operation,
            queue,
            prepared.CALLER,
            "request",
            () if part is None else (part,),  # type: ignore[arg-type]
            destination=to,
        )
        answer = self.shards[queue.shard].submit(request).answer
        self.pass_time(1_000)
        for source in (0, 1):
            self.deliver(source)
        self.check()
        return answer

    def found(self, queue: QueueDefinition) -> list[StoredMessage]:
        """The messages of a queue, not received."""
        page = self.shards[queue.shard].submit(prepared.prepared(queue, BrowseMessages())).answer
        assert isinstance(page, BrowsedPage)
        return [each.message for each in page.messages]

    def only(self, queue: QueueDefinition) -> StoredMessage:
        """The only message of a queue."""
        (message,) = self.found(queue)
        return message

    def redrive(self, edit: str = "") -> MoveTask:
        """Redrive all dead letters to their source."""
        self.ask(self.letters, MoveSelected(edit=edit))
        tasks = self.shards[self.letters.shard].state.queue(self.letters.queue_id).tasks
        assert tasks[max(tasks)].status == "COMPLETED"
        return tasks[max(tasks)]

    def undo(self, task: MoveTask) -> None:
        """Bring back what was not received."""
        wanted = MessageFilter(message_id=prefix_of(task.task_id), received_max=0)
        undo = MoveSelected(filter=wanted, undoes=task.task_id, sources=task.sources)
        self.ask(self.source, undo, to=self.letters)

    def edit(self, queue: QueueDefinition, sequence: int, body: str, to: QueueDefinition) -> None:
        """Have an edited copy take a message's place."""
        content = prepared.content(body, to, group=self.group)
        self.ask(queue, ResendMessage(replaces=sequence), to, content)


@pytest.fixture(params=NAMES)
def story(request: pytest.FixtureRequest) -> Story:
    kind, place = request.param.split()
    return Story("" if kind == "standard" else kind, is_split=place == "two")


def test_what_was_sent_and_died_has_no_origin(story: Story) -> None:
    story.send("a")
    assert story.only(story.source).origin is None

    story.die()

    assert story.only(story.letters).origin is None


def test_a_redriven_message_knows_its_first_id_and_time_and_its_receives(story: Story) -> None:
    story.send("a")
    first = story.only(story.source)
    story.die()

    story.redrive()

    message = story.only(story.source)
    assert message.message_id != first.message_id
    assert (message.receive_count, message.first_received_at_ms) == (0, 0)
    assert message.origin == Origin(
        first.message_id, START_MS, 2, redrives=1, before=Tried("", 0, 2, START_MS)
    )


def test_an_undo_gives_back_what_was(story: Story) -> None:
    story.send("a")
    first = story.only(story.source)
    story.die()
    dead = story.only(story.letters)
    task = story.redrive()
    redriven = story.only(story.source)
    story.pass_time(60_000)
    undone_at_ms = story.shards[0].now_ms

    story.undo(task)

    again = story.only(story.letters)
    kept = msgspec.structs.replace(
        again, clock_ms=dead.clock_ms, joined_at_ms=dead.joined_at_ms, origin=None
    )
    assert kept == dead
    assert again.origin == Origin(
        first.message_id,
        START_MS,
        redrives=1,
        undone_id=redriven.message_id,
        undone_at_ms=undone_at_ms,
    )
    assert again.death == Death(MAX_RECEIVES, START_MS + 20_000, 0)
    assert again.receive_count == 2
    assert again.joined_at_ms > dead.joined_at_ms


def test_an_undone_message_is_lost_no_earlier_than_without_the_redrive(story: Story) -> None:
    story.send("a")
    story.die()
    retained_ms = story.only(story.letters).retained_from_ms
    story.pass_time(1_000)
    task = story.redrive()
    moved_ms = story.only(story.source).sent_at_ms

    story.undo(task)

    assert story.only(story.letters).retained_from_ms >= moved_ms > retained_ms


def test_every_redrive_adds_its_receives_and_the_first_id_stays(story: Story) -> None:
    story.send("a")
    first = story.only(story.source)
    story.die()
    story.redrive()
    second = story.only(story.source)
    story.die()
    dead = story.only(story.letters)
    assert dead.origin == second.origin

    task = story.redrive()

    origin = story.only(story.source).origin
    assert origin is not None
    assert (origin.message_id, origin.sent_at_ms) == (first.message_id, START_MS)
    assert (origin.receive_count, origin.redrives) == (4, 2)
    assert origin.before is not None
    assert origin.before.message_id == second.message_id

    story.undo(task)

    again = story.only(story.letters)
    assert (again.message_id, again.receive_count) == (dead.message_id, dead.receive_count)
    assert again.origin is not None
    assert (again.origin.receive_count, again.origin.message_id) == (2, first.message_id)


def test_what_was_received_since_keeps_its_new_id(story: Story) -> None:
    story.send("a")
    story.die()
    task = story.redrive()
    story.receive(story.source)
    story.pass_time(10_000)

    story.undo(task)

    assert story.found(story.letters) == []
    assert story.only(story.source).message_id.startswith(prefix_of(task.task_id))


def test_a_redrive_with_an_edit_counts_it_and_its_undo_does_not_take_it_back(story: Story) -> None:
    sent = send_packed(story.source, '{"a":1}', group=story.group)
    story.shards[story.source.shard].submit(sent)
    first = story.only(story.source)
    story.die()
    task = story.redrive(edit_of({"a": 2}))

    story.undo(task)

    again = story.only(story.letters)
    assert again.message_id == first.message_id
    assert again.origin is not None
    assert (again.origin.edits, again.origin.redrives, again.origin.receive_count) == (1, 1, 0)
    assert again.origin.edited_at_ms > START_MS


def test_an_edited_copy_knows_what_it_replaced(story: Story) -> None:
    story.send("a")
    first = story.only(story.source)
    story.die()

    story.edit(story.letters, 1, "b", story.source)

    copy = story.only(story.source)
    assert (copy.data, copy.receive_count) == (b"b", 0)
    assert copy.death == Death(MAX_RECEIVES, START_MS + 20_000, 0)
    assert copy.dead_letter_source_arn is None
    assert copy.origin is not None
    assert (copy.origin.message_id, copy.origin.sent_at_ms) == (first.message_id, START_MS)
    assert (copy.origin.receive_count, copy.origin.edits) == (2, 1)
    assert copy.origin.before is None


def test_a_message_that_was_received_and_waits_again_is_edited_with_its_receives(
    story: Story,
) -> None:
    story.send("a")
    story.receive(story.source)
    story.pass_time(10_000)

    story.edit(story.source, 1, "b", story.source)

    origin = story.only(story.source).origin
    assert origin is not None
    assert origin.receive_count == 1


def test_a_restart_keeps_the_origin(story: Story) -> None:
    story.send("a")
    story.die()
    story.redrive()
    before = story.only(story.source)

    story.restart(story.source.shard)

    assert before.origin is not None
    assert story.only(story.source) == before


def test_an_undo_takes_only_what_its_own_redrive_moved(story: Story) -> None:
    """A message that an earlier version redrove has that redrive's id as its first one."""
    story.send("a")
    story.die()
    task = story.redrive()
    story.die()
    other = story.redrive()
    message = story.only(story.source)

    story.undo(task)

    assert story.only(story.source) == message
    assert message.message_id.startswith(prefix_of(other.task_id))
