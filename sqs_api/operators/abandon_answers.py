"""The answer that gives up a cluster that is lost for good."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import structlog

from cluster.fleet.abandoning import LostQueue
from cluster.members.member_records import MembershipRefused
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import CHANGE_FLEET, Refused, Route
from sqs_api.operators.emptying_answers import EmptyingPages, of_fleet

_STEP_S = 5.0
"""Time for queues of one request; the next one goes on."""
_log = structlog.get_logger("fleet")


class AskedAbandoning(msgspec.Struct, forbid_unknown_fields=True):
    """The number of a cluster whose messages are lost for good, and its name as the operator typed
    it."""

    cluster: Annotated[int, msgspec.Meta(ge=1)]
    confirm: str


class AbandonedCluster(msgspec.Struct):
    """A cluster that was given up. `queues` are those that gave up parts with this request, each
    with the number of `parts`, and the `messages` that these had at `at_ms`, null if that was never
    published. `left` is the number of queues that still have parts there: ask again."""

    number: int
    name: str
    queues: list[LostQueue]
    left: int


async def abandon_cluster(
    pages: EmptyingPages | None, asked: Asked, given: AskedAbandoning
) -> AbandonedCluster:
    """Give up a cluster that is lost with its messages; its queues go on without them."""
    found = of_fleet(pages)
    asked.noted |= {"cluster": given.cluster}
    until_s = time.monotonic() + _STEP_S
    try:
        done = await found.abandoning.abandon(
            found.fleet.view.fleet,
            given.cluster,
            given.confirm,
            lambda: time.monotonic() < until_s,
        )
    except MembershipRefused as refusal:
        raise Refused(409, f"Not done: {refusal}.") from refusal
    asked.noted |= {
        "queues": len(done.queues),
        "messages": sum(each.messages or 0 for each in done.queues),
    }
    for each in done.queues:
        _log.error("parts_given_up", cluster=given.cluster, **msgspec.structs.asdict(each))
    return AbandonedCluster(done.cluster.number, done.cluster.name, done.queues, done.left)


ROUTES = (
    Route(
        "POST",
        "api/fleet/abandon",
        CHANGE_FLEET,
        abandon_cluster,
        "fleet abandon",
        root_only=True,
    ),
)
