"""LoadHistory: the reports of hosts over the last half hour. Pure: time comes with the reports.

It is in memory only, but for the peaks. A planner that has just begun knows nothing else, and so
moves and shrinks nothing before it has watched for as long as the rules ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from cluster.fleet.loads import (
    LATE_MS,
    REPORT_MS,
    HostLoad,
    PartLoad,
    ShardLoad,
    Utilisation,
    utilisation,
)
from cluster.fleet.peaks import Peaks
from cluster.fleet.plan_table import Cluster
from cluster.fleet.thresholds import (
    HOT_WINDOWS,
    KEPT_MS,
    RELIEVE_ABOVE,
    SPLIT_AT,
    full_clusters,
    is_far,
    is_hot,
    is_uneven,
)

MINUTE_MS = 60_000
WATCHED_MINUTES = 30
_AHEAD_MS = 3_600_000
"""A report that is so much older than the last one follows it: that one's clock was ahead."""
_WEEK_DAYS = 7
_DAY_MS = 86_400_000

_Key = TypeVar("_Key", int, str)


class PartSeen:
    """The reports of one part."""

    __slots__ = ("at_ms", "hot", "last", "lately", "maxima", "shard")

    def __init__(self) -> None:
        self.last = PartLoad("", 0, 0.0)
        self.shard = -1
        self.at_ms = 0
        self.hot = 0
        """Windows in a row in which it was hot enough to be split."""
        self.lately: tuple[float, ...] = ()
        """The load of the last windows in a row, as many as a split asks for, the newest first."""
        self.maxima: deque[tuple[int, float]] = deque(maxlen=WATCHED_MINUTES + 1)
        """The most that was asked of it, by minute."""

    def add(self, at_ms: int, shard: ShardLoad, load: PartLoad) -> None:
        """Take over a window's report."""
        in_a_row = shard.shard == self.shard and 0 < at_ms - self.at_ms <= LATE_MS
        self.hot = (self.hot if in_a_row else 0) + 1 if is_hot(shard, load) else 0
        self.lately = (load.asked, *(self.lately[: HOT_WINDOWS - 1] if in_a_row else ()))
        self.last, self.shard, self.at_ms = load, shard.shard, at_ms
        minute = at_ms // MINUTE_MS
        last, most = self.maxima[-1] if self.maxima else (-1, 0.0)
        if last != minute:
            self.maxima.append((minute, load.asked))
        elif load.asked > most:
            self.maxima[-1] = minute, load.asked

    def greatest(self, now_ms: int) -> tuple[int, float]:
        """Minutes of the last 30 that have a report, and the most that was asked in them."""
        first = now_ms // MINUTE_MS - WATCHED_MINUTES
        seen = [asked for minute, asked in self.maxima if minute >= first]
        return min(len(seen), WATCHED_MINUTES), max(seen, default=0.0)


class LoadHistory:
    """Belongs to one planner; `observe` is called with all known reports before each plan."""

    def __init__(self, window_ms: int = REPORT_MS, kept_ms: int = KEPT_MS) -> None:
        """`window_ms`: the time that each report is about; `kept_ms`: the time for which peaks
        count."""
        self.window_ms = window_ms
        self.utilisation: dict[str, Utilisation] = {}
        """The use of each cluster, as last reported."""
        self.loops: dict[str, int] = {}
        """Hosts of each cluster that report."""
        self.reported_ms: dict[str, int] = {}
        """The time of the newest report of each cluster."""
        self.silent_since_ms: dict[str, int] = {}
        """Clusters of which no majority of hosts reports."""
        self.ill: frozenset[str] = frozenset()
        """Clusters of which a host does not report."""
        self.full: frozenset[str] = frozenset()
        """Clusters that take no new parts: filled to 80 %, and not below 70 % since."""
        self.overloaded_since_ms: dict[str, int] = {}
        self.shard_overloaded_since_ms: dict[int, int] = {}
        self.uneven_since_ms: dict[str, int] = {}
        """Clusters with clearly more than the mean."""
        self.far_since_ms: dict[str, int] = {}
        """Clusters far above the mean."""
        self.mean = 0.0
        """Mean load of the clusters that report."""
        self.deaf = 0
        """Windows in a row in which less than half of the hosts were heard."""
        self.shards: dict[int, ShardLoad] = {}
        self.shard_ms: dict[int, int] = {}
        """The time of the report of each shard in `shards`."""
        self.parts: dict[tuple[str, int], PartSeen] = {}
        self.peaks = Peaks(kept_ms)
        self._days: dict[int, float] = {}
        self._forgot_ms = 0

    def observe(
        self,
        clusters: Mapping[str, Cluster],
        reports: Iterable[HostLoad],
        now_ms: int,
        name_of: Callable[[str], str] = str,
    ) -> None:
        """Take over the newest report of each host; one that is known already changes nothing.
        `name_of` gives the name of the queue of an id."""
        fresh: dict[str, list[HostLoad]] = {name: [] for name in clusters}
        for report in reports:
            if report.cluster in fresh and now_ms - report.at_ms <= LATE_MS:
                fresh[report.cluster].append(report)
                self._observe_shards(report)
        if any(fresh.values()):
            hot = self._hot_queues(now_ms)
            self.peaks.observe({name_of(each): asked for each, asked in hot.items()}, now_ms)
        for name, hosts in fresh.items():
            self._observe_cluster(clusters[name], hosts, now_ms)
        self.ill = frozenset(n for n, hosts in fresh.items() if len(hosts) < clusters[n].hosts)
        heard_hosts = sum(map(len, fresh.values()))
        is_deaf = 2 * heard_hosts < sum(each.hosts for each in clusters.values())
        self.deaf = self.deaf + 1 if is_deaf else 0
        heard = {
            name: self.utilisation[name].load
            for name in clusters
            if name in self.utilisation and name not in self.silent_since_ms
        }
        self.full = full_clusters(self.full, heard)
        counted = [load for name, load in heard.items() if not clusters[name].is_draining]
        self.mean = sum(counted) / len(counted) if counted else 0.0
        for name in clusters:
            is_now = name in heard and is_uneven(heard[name], self.mean)
            _since(self.uneven_since_ms, name, is_now, now_ms)
            is_now = name in heard and is_far(heard[name], self.mean)
            _since(self.far_since_ms, name, is_now, now_ms)
        day = now_ms // _DAY_MS
        self._days[day] = max(self._days.get(day, 0.0), sum(heard.values()))
        if not 0 <= now_ms - self._forgot_ms < MINUTE_MS:
            self._forget(clusters, now_ms)

    def growth(self, now_ms: int) -> float:
        """Clusters that a week added to the load of the fleet; 0 before it is known."""
        day = now_ms // _DAY_MS
        before, today = self._days.get(day - _WEEK_DAYS), self._days.get(day)
        return max(0.0, today - before) if before is not None and today is not None else 0.0

    def _observe_cluster(self, cluster: Cluster, hosts: list[HostLoad], now_ms: int) -> None:
        name = cluster.name
        is_silent = 2 * len(hosts) <= cluster.hosts
        _since(self.silent_since_ms, name, is_silent, now_ms)
        if hosts:
            self.utilisation[name] = utilisation(hosts)
            self.loops[name] = len(hosts)
            self.reported_ms[name] = max(host.at_ms for host in hosts)
        is_over = not is_silent and self.utilisation[name].load > RELIEVE_ABOVE
        _since(self.overloaded_since_ms, name, is_over, now_ms)

    def _observe_shards(self, report: HostLoad) -> None:
        for shard in report.shards:
            if 0 <= self.shard_ms.get(shard.shard, -1) - report.at_ms < _AHEAD_MS:
                continue
            self.shards[shard.shard] = shard
            self.shard_ms[shard.shard] = report.at_ms
            is_over = shard.asked > RELIEVE_ABOVE
            _since(self.shard_overloaded_since_ms, shard.shard, is_over, report.at_ms)
            for load in shard.parts:
                key = (load.queue, load.number)
                seen = self.parts.get(key)
                if seen is None:
                    seen = self.parts[key] = PartSeen()
                seen.add(report.at_ms, shard, load)

    def _hot_queues(self, now_ms: int) -> dict[str, float]:
        """The load of all parts of a queue in each of as many windows as a split asks for, by
        queue; of those that are worth one."""
        totals: dict[str, list[float]] = {}
        for (queue, _), seen in self.parts.items():
            if now_ms - seen.at_ms <= LATE_MS:
                total = totals.setdefault(queue, [0.0] * HOT_WINDOWS)
                for window, asked in enumerate(seen.lately):
                    total[window] += asked
        return {queue: least for queue, of in totals.items() if (least := min(of)) >= SPLIT_AT}

    def _forget(self, clusters: Mapping[str, Cluster], now_ms: int) -> None:
        """Drop what is too old to count, once a minute."""
        self._forgot_ms = now_ms
        oldest_ms = now_ms - WATCHED_MINUTES * MINUTE_MS
        self.parts = {k: seen for k, seen in self.parts.items() if seen.at_ms >= oldest_ms}
        self.peaks.forget(now_ms)
        shards = {shard for each in clusters.values() for shard in each.shards}
        for known in (self.shards, self.shard_ms, self.shard_overloaded_since_ms):
            for shard in known.keys() - shards:
                del known[shard]
        for by_name in (
            self.utilisation,
            self.loops,
            self.reported_ms,
            self.silent_since_ms,
            self.overloaded_since_ms,
            self.uneven_since_ms,
            self.far_since_ms,
        ):
            for name in by_name.keys() - clusters.keys():
                del by_name[name]
        day = now_ms // _DAY_MS
        self._days = {d: load for d, load in self._days.items() if d >= day - _WEEK_DAYS}


def _since(since_ms: dict[_Key, int], key: _Key, is_now: bool, now_ms: int) -> None:
    """Keep the time since which something is so."""
    if is_now:
        since_ms.setdefault(key, now_ms)
    else:
        since_ms.pop(key, None)
