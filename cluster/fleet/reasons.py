"""The reasons of changes, refusals and warnings, with the figures that they were decided on. Pure.

Operators read them: a balancer that nobody understands is switched off.
"""

from __future__ import annotations

import enum

import msgspec


class Why(enum.Enum):
    """Each value names a reason in logs and metrics; SENTENCES says it."""

    # changes
    HOT_QUEUE = "hot-queue"
    HOT_SHARD = "hot-shard"
    WARM_QUEUE = "warm-queue"
    IDLE_PARTS = "idle-parts"
    CLUSTER_DRAINS = "cluster-drains"
    CLUSTER_OVERLOADED = "cluster-overloaded"
    SHARD_OVERLOADED = "shard-overloaded"
    UNEVEN = "uneven"
    UNDO = "undo"
    # refusals of one change
    CALM = "calm"
    UNDOES = "undoes"
    BUDGET = "budget"
    TRANSFERS = "transfers"
    DISTURBED = "disturbed"
    SILENT = "silent"
    ONE_GROUP = "one-group"
    QUEUE_SCOPE = "queue-scope"
    PARTS_MAX = "parts-max"
    NO_ROOM = "no-room"
    TASK = "task"
    BACKLOG = "backlog"
    UNSEEN = "unseen"
    BUSY_LATELY = "busy-lately"
    PEAKS_UNKNOWN = "peaks-unknown"
    TOO_FEW = "too-few"
    STAYS = "stays"
    # refusals of the whole plan
    MANY_ILL = "many-ill"
    RECORDS_LOST = "records-lost"
    TAKES_TOO_MUCH = "takes-too-much"
    # warnings
    CAPACITY = "capacity"
    SILENT_LONG = "silent-long"
    ONE_ZONE = "one-zone"
    BEYOND_HAND = "beyond-hand"
    # of a later release
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Why | None:
        """A host may ask a planner, or read a record, of a later release."""
        return cls.UNKNOWN if isinstance(value, str) else None


SENTENCES = {
    Why.HOT_QUEUE: "the queue asked for {asked:.0%} of a loop or more in each of three windows",
    Why.HOT_SHARD: "the shard's loop is {loop:.0%} busy, {asked:.0%} of a loop with this queue",
    Why.WARM_QUEUE: "the queue asked for {asked:.0%} of a loop or more in each of three windows, "
    "and cluster {cluster} has {load:.0%} where the mean is {mean:.0%}",
    Why.IDLE_PARTS: "at most {asked:.0%} of a loop was asked of these parts in 30 minutes",
    Why.CLUSTER_DRAINS: "cluster {cluster} is being emptied",
    Why.CLUSTER_OVERLOADED: "cluster {cluster} is above 85 % for 10 minutes, now {load:.0%}",
    Why.SHARD_OVERLOADED: "shard {shard} is above 85 % for 10 minutes, now {load:.0%}",
    Why.UNEVEN: "cluster {cluster} has {load:.0%}, the mean is {mean:.0%}",
    Why.UNDO: "an operator undoes change {undone}",
    Why.CALM: "the queue was changed {ago_s:.0f} s ago, and changes once in 10 minutes",
    Why.UNDOES: "it would undo a change that was made {ago_s:.0f} s ago, within an hour",
    Why.BUDGET: "{spent} of {budget} parts were changed in 10 minutes",
    Why.TRANSFERS: "{transfers} parts are under way from or to cluster {cluster}",
    Why.DISTURBED: "shard {shard}: {what}",
    Why.SILENT: "cluster {cluster} does not report: it may heal itself",
    Why.ONE_GROUP: "one message group has {group:.0%} of the load and cannot be split",
    Why.QUEUE_SCOPE: "the queue stays whole: it deduplicates over all of it, or its tags say so",
    Why.PARTS_MAX: "the queue has {parts} parts with those that drain, and can have {most}",
    Why.NO_ROOM: "no cluster of the account can take {asked:.0%} of a loop more",
    Why.TASK: "a move task, a redrive or a restore reads the queue, or a purge keeps messages",
    Why.BACKLOG: "part {part} still has {messages} messages",
    Why.UNSEEN: "part {part} was reported for {minutes} of 30 minutes",
    Why.BUSY_LATELY: "the queue asked for {asked:.1f} loops within {days:.0f} days, too much for "
    "fewer parts",
    Why.PEAKS_UNKNOWN: "its peaks of {days:.0f} days are known in {hours:.0f} hours: until then it "
    "may need all parts again",
    Why.TOO_FEW: "it would leave the queue without an open part",
    Why.STAYS: "the queue stays where it is: {means}",
    Why.MANY_ILL: "{ill} of {clusters} clusters look ill at once: the link may be what is ill",
    Why.RECORDS_LOST: "{parts} parts are recorded where there were {before}",
    Why.TAKES_TOO_MUCH: "it would drain {drains} of {parts} parts at once",
    Why.CAPACITY: "{room:.1f} clusters of room are left up to 80 %, {wanted:.1f} are wanted",
    Why.ONE_ZONE: "without zone {zone}, which has {voters} of {hosts} voters, no shard of cluster "
    "{cluster} has a leader",
    Why.BEYOND_HAND: "too few of the account's {hand} clusters can take parts of queue {queue}, so "
    "some go to {clusters}",
    Why.SILENT_LONG: "cluster {cluster} has not reported for {minutes} minutes",
    Why.UNKNOWN: "a reason that this release does not know: the host that plans has a later one",
}


class Reason(msgspec.Struct, frozen=True):
    """A reason and its figures."""

    why: Why
    figures: dict[str, str | int | float] = {}

    def __str__(self) -> str:
        """One sentence for people; only name and figures, if another release gave others."""
        try:
            return SENTENCES[self.why].format(**self.figures)
        except (KeyError, ValueError):
            figures = ", ".join(f"{name} {figure}" for name, figure in self.figures.items())
            return f"{self.why.value} ({figures})"


def reason(why: Why, **figures: str | int | float) -> Reason:
    """A reason with the figures that its sentence names."""
    return Reason(why, figures)


class Refusal(msgspec.Struct, frozen=True):
    """A change that was wanted and is not made."""

    wanted: str
    """The kind of change, or `plan` for all of them."""
    of: str
    """The queue, cluster or account."""
    reason: Reason


class Warned(msgspec.Struct, frozen=True):
    """Something that an operator, or the owner of a queue, should do or know."""

    of: str
    reason: Reason
