"""TABLE: the metrics of the manager. The host that plans has them; others say that they do not."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from typing_extensions import override

from cluster.fleet.plan_records import Mode
from cluster.fleet.planning import Planning
from sqs_api.gateway.metrics import Source


class PlanMetrics(Source):
    """The metrics of a host of a fleet of several clusters; other hosts have none."""

    def __init__(self, manager: Planning) -> None:
        self._manager = manager

    @override
    async def read(self) -> None:
        """These are all in memory."""

    @override
    def collect(self) -> Iterator[Metric]:
        manager = self._manager
        if not manager.is_needed:
            return
        yield _gauge("manager_plans", "1 on the host that plans.", float(manager.has_key))
        yield CounterMetricFamily(
            "holdfast_manager_records_unreadable",
            "Times that the manager's records could not be read.",
            value=float(manager.unreadable_reads),
        )
        yield CounterMetricFamily(
            "holdfast_manager_gave_up",
            "Times that this host let another one plan, since it heard less than half of all.",
            value=float(manager.planner.gave_up),
        )
        if not manager.has_key:
            return
        planner, shown = manager.planner, manager.shown
        mode = GaugeMetricFamily("holdfast_manager_mode", "1 for the mode.", labels=("mode",))
        for each in Mode:
            mode.add_metric((each.value,), float(each is planner.mode))
        yield mode
        plan = shown.plan
        at_s = plan.at_ms / 1000 if plan is not None else 0.0
        yield _gauge("manager_plan_time_seconds", "Time of the last plan, since 1970.", at_s)
        for name, text, count in (
            ("planned_changes", "Changes of the last plan.", plan.changes if plan else ()),
            ("refused_changes", "Refusals of the last plan.", plan.refusals if plan else ()),
            ("warnings", "Warnings of the last plan.", plan.warnings if plan else ()),
        ):
            yield _gauge(f"manager_{name}", text, float(len(count)))
        load = GaugeMetricFamily(
            "holdfast_cluster_load", "Share of what a cluster can carry.", labels=("cluster",)
        )
        for cluster, share in sorted(shown.loads.items()):
            load.add_metric((cluster,), share)
        yield load
        silent = GaugeMetricFamily(
            "holdfast_cluster_silent",
            "1 while no majority of a cluster's hosts reports.",
            labels=("cluster",),
        )
        for cluster in sorted(shown.loads):
            silent.add_metric((cluster,), float(cluster in planner.history.silent_since_ms))
        yield silent
        yield from _decisions(manager)


def _decisions(manager: Planning) -> Iterator[Metric]:
    decided = CounterMetricFamily(
        "holdfast_manager_decisions",
        "Changes by kind, reason and outcome; the same one counts once an hour.",
        labels=("kind", "why", "outcome"),
    )
    for labels, count in sorted(manager.planner.decided.items()):
        decided.add_metric(labels, count)
    yield decided
    refused = CounterMetricFamily(
        "holdfast_manager_refusals",
        "Changes that were wanted and not made; the same one counts once an hour.",
        labels=("wanted", "why"),
    )
    for named, count in sorted(manager.planner.refused.items()):
        refused.add_metric(named, count)
    yield refused


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", text, value=value)
