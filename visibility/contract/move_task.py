"""Move tasks, as they are stored, their handles, and the filters that choose their messages. Values
only."""

from __future__ import annotations

import base64

import msgspec

from visibility.contract.errors import InvalidParameterValue

CANARY = "canary"
CAME_BACK = "came back"
BY_OPERATOR = "operator"
"""Reasons for which a task is paused."""


class MessageFilter(msgspec.Struct, frozen=True, array_like=True):
    """Conditions that must all hold; one at its default always does. Stored form: only append.

    `message_id` is the beginning of the message's id, or the whole of one that it had before,
    `source` the name of a dead letter's source queue. A
    message was sent at or after `sent_from_ms`, and before `sent_until_ms`. `text` is a part of the
    body; `attribute` has conditions NAME, NAME=VALUE or NAME^=BEGINNING, one a line, `json` such
    ones with the PATH of a field of a JSON body.
    `failure` is the id of a failure, see `content/failures.py`.
    """

    message_id: str | None = None
    group: str | None = None
    source: str | None = None
    received_min: int = 0
    received_max: int | None = None
    sent_from_ms: int = 0
    sent_until_ms: int | None = None
    text: str | None = None
    attribute: str | None = None
    json: str | None = None
    failure: str | None = None

    @property
    def reads_bodies(self) -> bool:
        """True if the outcome tells something of bodies or attributes."""
        return bool(self.text or self.attribute or self.json or self.failure)

    @property
    def opens(self) -> bool:
        """True if messages must be opened to know the outcome."""
        return self.reads_bodies or self.group is not None


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """Limits of a move task beyond its rate; 0 is none. Stored form: only append.

    The rate rises evenly for `ramp_s` seconds. The task pauses once it has moved `canary` messages,
    and whenever another `stop_after` of its messages have come back to its queue.
    """

    ramp_s: int = 0
    canary: int = 0
    stop_after: int = 0


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The share of another part in a task of a queue with several parts, as it was last heard of.
    Stored form: only append.

    The part may have moved `granted` messages. `selected` is kept until it begins. It `is_walked`
    when it has nothing left to move, and `is_ended` when its own task is over or the part is gone.
    """

    number: int
    drains: bool = False
    selected: list[int] | None = None
    granted: int = 0
    has_begun: bool = False
    is_walked: bool = False
    is_ended: bool = False
    to_move: int = 0
    moved: int = 0
    stayed: int = 0
    looked_at: int = 0
    came_back: int = 0
    failure_reason: str | None = None


class MoveTask(msgspec.Struct, frozen=True, array_like=True):
    """A message move task. `rate` is in messages a second (0: as fast as possible). `to_move` is
    the number of messages that a plan counted (`is_planned`), else of those that were visible.

    The walk goes over the sequences from `cursor` to before `until_sequence`, or over `selected`
    ones. `stayed` messages could not be moved, the first of them for `failure_reason`: then the
    task fails at its end. If there are `targets` (ARNs), messages go to those only.

    With a `filter`, `looked_at` messages were compared with it; `selected` is empty then, so that a
    host of a version before filters moves none instead of all. The rate counts from
    `paced_from_ms` (0: the start), when `paced_moved` messages had moved. `came_back` moved
    messages are in the queue again; arrivals below `watched` were looked at. `sources` are the
    ARNs that moved messages came from as dead letters, see `move_pace.py`. A task that `undoes`
    another, named by its id, returns that one's messages; `undone_at_ms` is set in the other.

    An `edit` is a JSON merge patch of the bodies that move; `selected` is empty then, too.

    Of a queue with several parts the home has the task and its own numbers, and each other part a
    task with the same id at its `place` among the `shares`, from 1 on. All of them move what was
    `granted`, by the latest `order`, and wait for that while `until_sequence` is 0; see
    `shared_moves.py`.
    """

    number: int
    task_id: str
    source_arn: str
    destination_arn: str | None
    rate: int
    started_at_ms: int
    to_move: int
    until_sequence: int
    cursor: int = 0
    moved: int = 0
    status: str = "RUNNING"
    failure_reason: str | None = None
    selected: list[int] | None = None
    stayed: int = 0
    targets: list[str] | None = None
    filter: MessageFilter | None = None
    pace: Pace = Pace()
    paused: str = ""
    paced_from_ms: int = 0
    paced_moved: int = 0
    looked_at: int = 0
    came_back: int = 0
    watched: int = 0
    started_by: str = ""
    note: str = ""
    ended_at_ms: int = 0
    sources: list[str] = []
    undoes: str = ""
    undone_at_ms: int = 0
    is_planned: bool = False
    edit: str = ""
    shares: list[Share] = []
    place: int = 0
    granted: int = 0
    order: int = 0
    is_walked: bool = False

    @property
    def is_granted(self) -> bool:
        """True for the task of a queue with several parts, and for a part's share of one."""
        return bool(self.shares) or self.place > 0

    @property
    def charged(self) -> int:
        """The messages that count against rate and canary: moved ones, and those granted."""
        if not self.is_granted:
            return self.moved
        own = self.moved if self.is_walked else max(self.moved, self.granted)
        return own + sum(
            each.moved if each.is_walked or each.is_ended else max(each.moved, each.granted)
            for each in self.shares
        )

    @property
    def returned(self) -> int:
        """The moved messages that came back, to whichever part."""
        return self.came_back + sum(each.came_back for each in self.shares)

    @property
    def picked(self) -> list[int] | None:
        """The selected sequences; None if the walk goes over all."""
        return None if self.opens else self.selected

    @property
    def opens(self) -> bool:
        """True if each step compares messages with a filter, or edits them."""
        return self.filter is not None or bool(self.edit)

    @property
    def is_shared(self) -> bool:
        """True if it is the task of several parts, or one part's share of it."""
        return bool(self.shares or self.place)

    @property
    def is_active(self) -> bool:
        """True while the task has work to do."""
        return self.status in ("RUNNING", "CANCELLING")


def whole(task: MoveTask) -> MoveTask:
    """The task with the sums of its shares, and without the messages that it selected."""
    shares = task.shares
    reasons = (each.failure_reason for each in shares if each.failure_reason is not None)
    to_move = 0 if task.is_planned else sum(each.to_move for each in shares)
    return msgspec.structs.replace(
        task,
        selected=None,
        shares=[],
        to_move=task.to_move + to_move,
        moved=task.moved + sum(each.moved for each in shares),
        stayed=task.stayed + sum(each.stayed for each in shares),
        looked_at=task.looked_at + sum(each.looked_at for each in shares),
        came_back=task.returned,
        failure_reason=task.failure_reason or next(reasons, None),
    )


class TaskHandle(msgspec.Struct, frozen=True):
    """The content of a task handle; clients can decode it."""

    task_id: str = msgspec.field(name="taskId")
    source_arn: str = msgspec.field(name="sourceArn")


def encode_handle(task: MoveTask) -> str:
    """The handle of a task: base64 of JSON, as AWS's."""
    return base64.b64encode(msgspec.json.encode(TaskHandle(task.task_id, task.source_arn))).decode()


def decode_handle(handle: str) -> TaskHandle:
    """Decode a handle. Raises InvalidParameterValue."""
    try:
        return msgspec.json.decode(base64.b64decode(handle, validate=True), type=TaskHandle)
    except (ValueError, msgspec.MsgspecError):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.") from None
