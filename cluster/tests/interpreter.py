"""The commands of the transcripts in `scenarios/`: `word argument name=value ...`, each answered in
lines of text.

    queue NAME [AwsAttribute=value] [dead-letters-to=NAME max=N]      again: changes attributes
    send QUEUE BODY [delay=S] [group=G] [id=DEDUPLICATION]           FIFO: shows the sequence number
    send-batch QUEUE BODY... [delay=S]            send-groups QUEUE GROUP-NAME...   named bodies
    receive QUEUE [most=N] [timeout=S] [wait=S] [as=POLLER] [attempt=ID]
    delete QUEUE BODY/DELIVERY...                 change QUEUE BODY/DELIVERY S
    give-back QUEUE BODY/DELIVERY                 hang-up POLLER
    purge QUEUE         restore QUEUE (undo its last purge)        drop QUEUE
    forget QUEUE (its definition)         count QUEUE
    time S              passes; shows polls answered meanwhile
    believe S           retention acts on this instant; `believe all`: on the clock again
    in-flight QUEUE N   as if N other messages had been received
    move QUEUE [to=QUEUE] [rate=N]      tasks QUEUE      cancel QUEUE
    browse QUEUE [delayed=yes]
    restart             as after a clean stop

`BODY/2` is the handle of the second delivery that the service counted for that message.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from cluster.tests.driver import Driver, Reply
from visibility.content.receipts import sequence_number
from visibility.contract import results
from visibility.contract.limits import VISIBILITY_TIMEOUT
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.move_task import encode_handle
from visibility.contract.operations import (
    CancelMessageMoveTask,
    ListMessageMoveTasks,
    StartMessageMoveTask,
)
from visibility.contract.outcomes import Answer, BrowsedPage, Deliveries
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.tags import ARCHIVE_TAG
from visibility.rows.row_keys import SPAN_BITS
from visibility.rules.browse import BrowseMessages
from visibility.rules.message_events import MessagesReceived
from visibility.rules.queues import QueueChanged
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

Options = dict[str, str]


class Interpreter:
    """One shard and the pollers that wait on it."""

    def __init__(self) -> None:
        self.known = KnownQueues()
        self.driver = Driver(self.known)
        self.queues: dict[str, QueueDefinition] = {}
        self.purged: dict[str, QueueDefinition] = {}
        """The definition of each queue before its last purge."""
        self.sequences: dict[tuple[str, str], int] = {}
        """The sequence of a body in a queue, known once it was received there."""
        self.pollers: dict[str, Reply] = {}

    def run(self, command: str) -> list[str]:
        """Run a command; returns its answer, and the polls that it answered."""
        words = [word for word in command.split() if "=" not in word]
        options = dict(word.split("=", 1) for word in command.split() if "=" in word)
        action: Callable[[list[str], Options], list[str]] = getattr(
            self, "do_" + words[0].replace("-", "_")
        )
        return action(words[1:], options) + self._answered_polls()

    def _answered_polls(self) -> list[str]:
        lines: list[str] = []
        for name, reply in list(self.pollers.items()):
            if not reply.waits:
                del self.pollers[name]
                lines += [f"{name}: {line}" for line in self._told(reply)]
        return lines

    def _submit(self, request: Request) -> list[str]:
        return self._told(self.driver.submit(request))

    def _told(self, reply: Reply) -> list[str]:
        if reply.refusal is not None:
            return [f"{type(reply.refusal).__name__}: {reply.refusal.message}"]
        return self._answer(reply.request.queue, reply.answer)

    def _answer(self, queue: QueueDefinition, answer: Answer) -> list[str]:
        if isinstance(answer, Deliveries):
            pairs = zip(answer.leases, answer.messages, strict=True)
            return [self._delivery(queue, *pair) for pair in pairs] or ["nothing"]
        if isinstance(answer, QueueCounters):
            return [
                f"{answer.visible} visible, {answer.in_flight} in flight, {answer.delayed} delayed"
            ]
        if isinstance(
            answer,
            results.SendMessageBatchResult
            | results.DeleteMessageBatchResult
            | results.ChangeMessageVisibilityBatchResult,
        ):
            entries = [f"{entry.id}: done" for entry in answer.successful or ()]
            return entries + [_refused(entry) for entry in answer.failed or ()]
        if isinstance(answer, results.CancelMessageMoveTaskResult):
            return [f"{answer.approximate_number_of_messages_moved} moved so far"]
        if isinstance(answer, results.SendMessageResult) and answer.sequence_number is not None:
            return [f"number {int(answer.sequence_number) - int(sequence_number(0))}"]
        return ["done"]

    def _delivery(self, queue: QueueDefinition, lease: Lease, message: StoredMessage | None) -> str:
        assert message is not None
        body = message.data.decode()
        self.sequences[queue.name, body] = message.original_sequence or lease.sequence
        first_s = (lease.first_received_at_ms - START_MS) / 1000
        source = message.dead_letter_source_arn
        came_from = f", from {source.rpartition(':')[2]}" if source else ""
        return f"{body}/{lease.receive_count}, first received at {first_s:g} s{came_from}"

    def _receipt(self, queue: str, text: str) -> Receipt:
        body, _, delivery = text.partition("/")
        return Receipt(self.sequences[queue, body], int(delivery))

    # -- commands ----------------------------------------------------------------------------------

    def do_queue(self, words: list[str], options: Options) -> list[str]:
        target = options.pop("dead-letters-to", None)
        most = int(options.pop("max", "1"))
        known = self.queues.get(words[0])
        archive = options.pop("archive", None)
        defined = prepared.queue_named(
            words[0],
            known.queue_id if known else len(self.queues) + 1,
            dead_letters_to=self.queues[target] if target else None,
            max_receive_count=most,
            tags={ARCHIVE_TAG: archive} if archive else None,
            **options,
        )
        if known:  # the scope of the creation stays
            defined = replace(defined, deduplication_scope=known.deduplication_scope)
        self.queues[words[0]] = self.known.define(defined)
        return self._submit(prepared.prepared(self.queues[words[0]], QueueChanged()))

    def do_send(self, words: list[str], options: Options) -> list[str]:
        return self._submit(
            prepared.send(
                self.queues[words[0]],
                words[1],
                delay_s=_seconds(options, "delay"),
                group=options.get("group"),
                deduplication_id=options.get("id"),
            )
        )

    def do_send_groups(self, words: list[str], options: Options) -> list[str]:
        groups = [body.partition("-")[0] for body in words[1:]]
        self._submit(prepared.send_batch(self.queues[words[0]], words[1:], groups=groups))
        return ["done"]

    def do_send_batch(self, words: list[str], options: Options) -> list[str]:
        delay_s = _seconds(options, "delay")
        return self._submit(prepared.send_batch(self.queues[words[0]], words[1:], delay_s=delay_s))

    def do_receive(self, words: list[str], options: Options) -> list[str]:
        queue = self.queues[words[0]]
        policy = queue.settings.redrive_policy
        arns = {known.arn: known for known in self.queues.values()}
        request = prepared.receive(
            queue,
            _seconds(options, "most"),
            timeout_s=_seconds(options, "timeout"),
            wait_s=_seconds(options, "wait"),
            dead_letter_queue=arns.get(policy.dead_letter_target_arn) if policy else None,
            attempt=options.get("attempt"),
        )
        reply = self.driver.submit(request)
        if not reply.waits:
            return self._told(reply)
        self.pollers[options["as"]] = reply
        return [f"{options['as']} waits"]

    def do_delete(self, words: list[str], options: Options) -> list[str]:
        queue = self.queues[words[0]]
        receipts = [self._receipt(words[0], text) for text in words[1:]]
        if len(receipts) == 1:
            return self._submit(prepared.delete(queue, receipts[0]))
        return self._submit(prepared.delete_batch(queue, receipts))

    def do_change(self, words: list[str], options: Options) -> list[str]:
        receipt = self._receipt(words[0], words[1])
        return self._submit(prepared.change(self.queues[words[0]], receipt, int(words[2])))

    def do_give_back(self, words: list[str], options: Options) -> list[str]:
        receipt = self._receipt(words[0], words[1])
        return self._submit(prepared.give_back(self.queues[words[0]], [receipt]))

    def do_hang_up(self, words: list[str], options: Options) -> list[str]:
        reply = self.pollers.pop(words[0])
        self.driver.state.waits.remove(reply.ticket.number)
        return ["done"]

    def do_purge(self, words: list[str], options: Options) -> list[str]:
        purged = self.queues[words[0]]
        self.purged[words[0]] = purged
        self.queues[words[0]] = self.driver.purge(purged)
        return ["done"]

    def do_restore(self, words: list[str], options: Options) -> list[str]:
        step = self.driver.restore(self.purged[words[0]], self.queues[words[0]])
        return ["done" if step.is_done else f"again in {step.again_in_ms / 1000:g} s"]

    def do_drop(self, words: list[str], options: Options) -> list[str]:
        self.driver.drop(self.queues[words[0]])
        return ["done"]

    def do_forget(self, words: list[str], options: Options) -> list[str]:
        del self.known.queues[self.queues[words[0]].queue_id]
        return ["done"]

    def do_count(self, words: list[str], options: Options) -> list[str]:
        return self._submit(prepared.counters(self.queues[words[0]]))

    def do_time(self, words: list[str], options: Options) -> list[str]:
        self.driver.pass_time(round(float(words[0]) * 1000))
        return [f"at {(self.driver.now_ms - START_MS) / 1000:g} s"]

    def do_believe(self, words: list[str], options: Options) -> list[str]:
        trusted_ms = 0 if words[0] == "all" else START_MS + round(float(words[0]) * 1000)
        self.driver.trusted_ms = trusted_ms
        return ["done"]

    def do_in_flight(self, words: list[str], options: Options) -> list[str]:
        queue_id = self.queues[words[0]].queue_id
        now_ms = self.driver.now_ms
        queue = self.driver.state.queue(queue_id)
        first = queue.next_sequence
        until_ms = now_ms + VISIBILITY_TIMEOUT.high * 1000
        sequences = range(first, first + int(words[1]))
        queue.spans.clear()
        queue.spans[first >> SPAN_BITS] = len(sequences)
        leases = [Lease(sequence, until_ms, 1, 0, now_ms, now_ms) for sequence in sequences]
        queue.next_sequence = queue.head = first + len(leases)
        queue.waiting += len(leases)
        queue.counts.sent += len(leases)
        received = MessagesReceived(queue_id, now_ms, leases)
        received.apply(self.driver.state)
        return ["done"]

    def do_move(self, words: list[str], options: Options) -> list[str]:
        queue = self.queues[words[0]]
        target = self.queues[options["to"]] if "to" in options else None
        operation = StartMessageMoveTask(
            source_arn=queue.arn,
            destination_arn=target.arn if target else None,
            max_number_of_messages_per_second=_seconds(options, "rate"),
        )
        request = Request(operation, queue, prepared.CALLER, "request", destination=target)
        return self._submit(request)

    def do_tasks(self, words: list[str], options: Options) -> list[str]:
        operation = ListMessageMoveTasks(max_results=10)
        answer = self.driver.submit(prepared.prepared(self.queues[words[0]], operation)).answer
        assert isinstance(answer, results.ListMessageMoveTasksResult)
        return [
            f"{task.status}: {task.approximate_number_of_messages_moved} of "
            f"{task.approximate_number_of_messages_to_move}"
            + (f", {task.failure_reason}" if task.failure_reason else "")
            + (", has a handle" if task.task_handle else "")
            for task in answer.results or ()
        ] or ["none"]

    def do_cancel(self, words: list[str], options: Options) -> list[str]:
        queue = self.queues[words[0]]
        tasks = self.driver.state.queue(queue.queue_id).tasks
        handle = encode_handle(tasks[max(tasks)])
        return self._submit(prepared.prepared(queue, CancelMessageMoveTask(task_handle=handle)))

    def do_browse(self, words: list[str], options: Options) -> list[str]:
        lines: list[str] = []
        after = None
        while True:
            operation = BrowseMessages(delayed="delayed" in options, after=after, limit=2)
            page = self.driver.submit(prepared.prepared(self.queues[words[0]], operation)).answer
            assert isinstance(page, BrowsedPage)
            lines += [f"{found.message.data.decode()} {found.state}" for found in page.messages]
            after = page.next_token
            if after is None:
                return lines or ["nothing"]

    def do_restart(self, words: list[str], options: Options) -> list[str]:
        self.driver.store.sync_all()
        self.driver = Driver(self.known, store=self.driver.store, now_ms=self.driver.now_ms)
        self.pollers.clear()
        return ["done"]


def _seconds(options: Options, name: str) -> int | None:
    return int(options[name]) if name in options else None


def _refused(entry: results.BatchResultErrorEntry) -> str:
    return f"{entry.id}: {entry.code}"
