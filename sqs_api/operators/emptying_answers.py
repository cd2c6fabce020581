"""Answers about clusters that are emptied: begin, cancel, how far it is, and remove."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from cluster.catalog.catalog_records import name_of
from cluster.fleet.abandoning import Abandoning
from cluster.fleet.fleet_operations import set_draining
from cluster.fleet.fleet_records import FIRST, ClusterState, FleetCluster
from cluster.fleet.plan_records import Mode, Seen
from cluster.fleet.removing import Removal, is_open, left_on
from cluster.members.member_records import MembershipRefused
from cluster.parts.part_readings import read_parts
from cluster.shards.router import Router
from sqs_api.admin.asked import Asked
from sqs_api.admin.fleet_pages import FleetPages
from sqs_api.admin.routes import CHANGE_FLEET, READ_FLEET, Refused, Route
from sqs_api.operators.plan_answers import PlanPages
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import PartReading

_SHOWN = 50
"""Parts of a cluster that are named, and asked."""
_TURN = "its turn: few parts are under way at once, and a queue changes once in 10 minutes"
_NOT_ON = (
    "the manager is in mode {mode}: `holdfast fleet resume --mode on` lets it move them, "
    "`holdfast fleet apply` moves one"
)


class AskedEmptying(msgspec.Struct, forbid_unknown_fields=True):
    """The number of the cluster to empty; with `cancel` it is not emptied any more."""

    cluster: Annotated[int, msgspec.Meta(ge=1)]
    cancel: bool = False


class AskedRemoval(msgspec.Struct, forbid_unknown_fields=True):
    """The number of the emptied cluster that leaves the fleet for good."""

    cluster: Annotated[int, msgspec.Meta(ge=1)]


class RemovedCluster(msgspec.Struct):
    """A cluster that was removed. Its `hosts` stop, and do not start again; usage and audit log of
    their requests lie in their folders only."""

    number: int
    name: str
    hosts: list[str]


class PartLeft(msgspec.Struct):
    """A part, or a whole queue, that is still in the cluster: `messages` is null where its shard
    does not answer; `waits_for` says what it waits for."""

    queue: str
    account: str
    part: int
    shard: int
    state: str
    messages: int | None
    waits_for: str


class EmptiedCluster(msgspec.Struct):
    """A cluster that is emptied. `to_move` and `under_way` are numbers of parts, `kept` the number
    of deleted or purged queues whose messages it keeps. `messages` is null while a shard does not
    answer, or with more than 50 parts; `parts` are at most 50 of them. `blocked` is the reason why
    nobody moves its parts now, empty if somebody does. `stays` is the reason why it cannot be
    removed now, empty if it can."""

    number: int
    name: str
    to_move: int
    under_way: int
    kept: int
    messages: int | None
    blocked: str
    stays: str
    parts: list[PartLeft]


class EmptiedClusters(msgspec.Struct):
    """The clusters that are emptied."""

    clusters: list[EmptiedCluster]


class EmptyingPages(NamedTuple):
    """The part that answers; a single host and a gateway have none."""

    fleet: FleetPages
    plan: PlanPages
    router: Router
    removal: Removal
    abandoning: Abandoning


def of_fleet(pages: EmptyingPages | None) -> EmptyingPages:
    """The part of a host of a fleet. Raises Refused on other hosts."""
    if pages is None:
        raise Refused(404, "Only the hosts of a fleet know its clusters: ask one of them.")
    return pages


async def show_emptied_clusters(pages: EmptyingPages | None, asked: Asked) -> EmptiedClusters:
    """Show the clusters that are emptied, how far it is, and what it waits for."""
    found = of_fleet(pages)
    clusters = found.fleet.view.fleet.clusters.values()
    shown = [await _shown(found, asked, each) for each in clusters if _is_emptied(each)]
    return EmptiedClusters(shown)


async def drain_cluster(
    pages: EmptyingPages | None, asked: Asked, given: AskedEmptying
) -> EmptiedClusters:
    """Let the manager move all queues of a cluster to others, or cancel that."""
    found = of_fleet(pages)
    asked.noted |= {"cluster": given.cluster, "cancel": given.cancel}
    root, seen = found.fleet.root, found.fleet.view.fleet
    try:
        changed = await set_draining(root, seen, given.cluster, is_draining=not given.cancel)
    except MembershipRefused as refusal:
        raise Refused(409, f"Not done: {refusal}.") from refusal
    clusters = {**found.fleet.view.fleet.clusters, changed.number: changed}.values()
    shown = [await _shown(found, asked, each) for each in clusters if _is_emptied(each)]
    return EmptiedClusters(shown)


async def remove_cluster(
    pages: EmptyingPages | None, asked: Asked, given: AskedRemoval
) -> RemovedCluster:
    """Remove an emptied cluster from the fleet, for good."""
    found = of_fleet(pages)
    asked.noted |= {"cluster": given.cluster}
    if given.cluster != FIRST and found.fleet.is_of(given.cluster):
        raise Refused(
            409,
            "Not removed: this host would stop, and with it the line of its audit log about this. "
            "Ask a host of another cluster.",
        )
    hosts = found.fleet.hosts_of(given.cluster)
    try:
        removed = await found.removal.remove(found.fleet.view.fleet, given.cluster)
    except MembershipRefused as refusal:
        raise Refused(409, f"Not removed: {refusal}.") from refusal
    return RemovedCluster(removed.number, removed.name, hosts)


def _is_emptied(cluster: FleetCluster) -> bool:
    return cluster.state is ClusterState.DRAINING


async def _shown(pages: EmptyingPages, asked: Asked, cluster: FleetCluster) -> EmptiedCluster:
    left = left_on(pages.fleet.catalog, cluster.numbers)
    seen = await pages.plan.manager.records_or_none()
    refused = await _refusals(pages, seen)
    readings = await _readings(pages, asked, left.parts[:_SHOWN])
    parts = [_part_left(each, readings, refused) for each in left.parts[:_SHOWN]]
    counts = [each.messages for each in parts if each.messages is not None]
    is_known = len(counts) == len(left.parts)
    to_move = sum(map(is_open, left.parts))
    return EmptiedCluster(
        cluster.number,
        cluster.name,
        to_move,
        len(left.parts) - to_move,
        left.kept,
        sum(counts) if is_known else None,
        _blocked(seen) if to_move else "",
        await pages.removal.reason_against(cluster.number),
        parts,
    )


def _blocked(seen: Seen | None) -> str:
    if seen is None:
        return "etcd does not answer"
    if seen.holder is None:
        return "no host plans now"
    return "" if seen.mode is Mode.ON else _NOT_ON.format(mode=seen.mode.value)


async def _refusals(pages: EmptyingPages, seen: Seen | None) -> dict[str, str]:
    """The reasons of the last plan by queue id."""
    plan = (await pages.plan.plan_of(seen)).plan if seen is not None else None
    refusals = plan.refusals if plan is not None else ()
    return {each.of: str(each.reason) for each in refusals if each.wanted == "move"}


async def _readings(
    pages: EmptyingPages, asked: Asked, parts: Sequence[QueueDefinition]
) -> dict[int, PartReading]:
    """The readings of these parts by queue id, without those whose shard does not answer."""
    queues = {name_of(part): part for part in parts}
    whole = [pages.fleet.catalog.find(name) for name in queues]
    found = await asyncio.gather(
        *[
            read_parts(pages.router, queue, asked.caller, f"emptying-{queue.queue_id}")
            for queue in whole
            if queue is not None
        ]
    )
    return {
        queue_id: reading
        for readings in found
        for queue_id, reading in readings.items()
        if reading is not None
    }


def _part_left(
    part: QueueDefinition, readings: Mapping[int, PartReading], refused: Mapping[str, str]
) -> PartLeft:
    reading, is_moved = readings.get(part.queue_id), not is_open(part)
    home = part.parts[0].queue_id if part.parts else part.queue_id
    if reading is None:
        waits_for = "its shard to answer"
    elif is_moved:
        waits_for = reading.waits_for
    else:
        waits_for = refused.get(str(home), _TURN)
    return PartLeft(
        part.name,
        part.account,
        part.part_number,
        part.shard,
        "draining" if is_moved else "open",
        None if reading is None else reading.visible + reading.in_flight + reading.delayed,
        waits_for,
    )


ROUTES = (
    Route("GET", "api/fleet/emptied", READ_FLEET, show_emptied_clusters, "fleet status"),
    Route("POST", "api/fleet/drain", CHANGE_FLEET, drain_cluster, "fleet drain-cluster"),
    Route("POST", "api/fleet/remove", CHANGE_FLEET, remove_cluster, "fleet remove-cluster"),
)
