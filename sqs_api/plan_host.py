"""The manager as a part of a host of a cluster: it runs in each, and one plans."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial

from cluster.fleet.abandoning import Abandoning
from cluster.fleet.depths import DEPTHS, DEPTHS_EVERY_S, DepthBoard
from cluster.fleet.load_meter import Counters, Figures, LoadMeter
from cluster.fleet.load_records import LoadBoard
from cluster.fleet.plan_records import MANAGER, PlanRecords
from cluster.fleet.plan_table import Cluster
from cluster.fleet.planner_key import PlannerHolder, PlannerKey
from cluster.fleet.planning import Parts, Planning
from cluster.fleet.removing import Removal
from cluster.fleet.steps import Steps
from cluster.members.removal import crowded_zones
from cluster.peers.questions import Questions
from sqs_api.admin.fleet_pages import FleetPages
from sqs_api.admin.plan_metrics import PlanMetrics
from sqs_api.admin.shards_left import ShardsLeft
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.measures import Measures
from sqs_api.http.server import Server
from sqs_api.joined import Joined
from sqs_api.operators.emptying_answers import EmptyingPages
from sqs_api.operators.plan_answers import PlanPages
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.shards import Shards


def manager_feature(
    process: Process,
    joined: Joined,
    questions: Questions,
    shards: Shards,
    accounting: Accounting,
    measures: Measures,
    transport: Server,
    fleet: FleetPages,
) -> Feature:
    """The manager's answers, its metrics, and its work each `load_report_s`; in a fleet of one
    cluster that is a look at one number."""
    _, clock, entropy, _ = process
    below = joined.root.below(MANAGER)

    def now_ms() -> int:
        return int(clock.wall_s() * 1000)

    own = PlannerHolder(joined.member.host, f"{entropy.bits128():032x}")
    number = str(joined.member.number)
    manager = Planning(
        Parts(
            records=PlanRecords(below),
            board=LoadBoard(below, joined.lease),
            key=PlannerKey(below, joined.lease, own),
            meter=LoadMeter(own.host, number, shards.router, shards.catalog, now_ms),
            steps=Steps(joined.root, shards.catalog, shards.router, now_ms, entropy.bits128),
            catalog=shards.catalog,
            clusters=partial(_clusters, joined),
            read_counters=partial(_counters, clock.monotonic_s, accounting, measures),
            read_figures=partial(_figures, process, transport),
            now_ms=now_ms,
            window_ms=process.settings.load_report_s * 1000,
        )
    )
    pages = PlanPages(manager, questions, shards.catalog, fleet.status)
    pages.serve()
    left = ShardsLeft(questions, shards.router)
    left.serve()
    removal = Removal(joined.root, shards.catalog, left.ask, now_ms)
    depths = joined.root.below(DEPTHS)
    abandoning = Abandoning(joined.root, depths, shards.catalog, left.ask, now_ms)
    board = DepthBoard(depths, own.host, shards.router, now_ms)

    async def publish_depths() -> None:
        if manager.is_needed:
            await board.publish()

    emptying = EmptyingPages(fleet, pages, shards.router, removal, abandoning)
    return Feature(
        parts={
            PlanPages: pages,
            EmptyingPages: emptying,
        },
        metrics=(PlanMetrics(manager),),
        periodic=(
            Every(process.settings.load_report_s, manager.tick),
            Every(DEPTHS_EVERY_S, publish_depths),
        ),
    )


def _clusters(joined: Joined) -> list[Cluster]:
    """The clusters of the fleet that are founded; none of a fleet of one."""
    fleet, own = joined.fleet, joined.member.number
    if not fleet.founded:
        return []
    zones = {number: tuple(fleet.zones_of(number).values()) for number in fleet.founded}
    zones[own] = tuple(joined.membership.shown.zones.values())
    shards = fleet.founded | {own: joined.cluster.numbers}
    draining = fleet.fleet.draining
    return [
        Cluster(
            str(number),
            tuple(shards[number]),
            len(zones[number]),
            next(iter(crowded_zones(zones[number])), ""),
            number in draining,
            zones[number],
        )
        for number in sorted(shards)
    ]


def _counters(
    monotonic_s: Callable[[], float], accounting: Accounting, measures: Measures
) -> Counters:
    answered = sum(times.count for times in accounting.latencies.values())
    syncs = measures.sync_s
    return Counters(monotonic_s(), time.thread_time(), answered, syncs.total, syncs.count)


def _figures(process: Process, transport: Server) -> Figures:
    disk = shutil.disk_usage(process.settings.data)
    return Figures(disk.used, disk.total, *transport.connections)
