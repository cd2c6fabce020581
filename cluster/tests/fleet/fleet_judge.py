"""Judge: looks at every plan from outside, from its own notes of all changes."""

from __future__ import annotations

from collections import Counter

from cluster.fleet.plan import Plan
from cluster.fleet.plan_table import Change, Kind, PartState
from cluster.tests.fleet.made_fleet_records import FleetRecords

_CALM_MS, _UNDO_MS = 600_000, 3_600_000


class Judge:
    """`judge` is called with each plan before its changes are made, `made` with each change that
    was made; both add findings."""

    def __init__(self, records: FleetRecords) -> None:
        self._records = records
        self._made: dict[str, list[tuple[int, Change]]] = {}
        self._recent: list[tuple[int, int]] = []
        self.findings: list[str] = []
        self.share_max = 0.0
        """The greatest share of all parts that was changed in ten minutes."""

    def judge(self, plan: Plan, now_ms: int) -> None:
        """A plan whose changes are all made now."""
        for change in plan.changes:
            self.made(change, now_ms)
        for refusal in plan.refusals:
            if not str(refusal.reason):
                self.findings.append(f"no reason for refusing {refusal}")

    def made(self, change: Change, now_ms: int) -> None:
        """One change, before the records have it."""
        if not str(change.reason):
            self.findings.append(f"no reason for {change}")
        self._budget(change, now_ms)
        self._transfers(change)
        self._calm(change, now_ms)
        queue = self._records.queues[change.queue]
        stays = [part for part in queue.open_parts if part.number not in change.drains]
        if not stays and not change.opens:
            self.findings.append(f"{change.queue} would have no open part")
        if queue.version != change.version:
            self.findings.append(f"{change.queue} was changed from another version")
        for number in change.drains:
            part = queue.part(number)
            if part is None or part.state is not PartState.OPEN:
                self.findings.append(f"{change.queue}: part {number} is not open")
        self._made.setdefault(change.queue, []).append((now_ms, change))

    def _budget(self, change: Change, now_ms: int) -> None:
        parts = max(len(change.drains), len(change.opens))
        self._recent = [each for each in self._recent if now_ms - each[0] < _CALM_MS]
        self._recent.append((now_ms, parts))
        spent = sum(count for _, count in self._recent)
        self.share_max = max(self.share_max, spent / self._records.parts)
        if spent > max(8, self._records.parts / 100):
            self.findings.append(f"{spent} parts were changed in ten minutes")

    def _transfers(self, change: Change) -> None:
        if not change.drains:
            return
        cluster_of = self._records.fleet().cluster_of
        under_way: Counter[str] = Counter()
        for queue_id, number in self._records.under_way():
            part = self._records.queues[queue_id].part(number)
            assert part is not None
            under_way[cluster_of[part.shard]] += 1
        for name in {cluster_of[shard] for shard in change.leaves}:
            if under_way[name] >= 2:
                self.findings.append(f"{under_way[name]} parts leave {name} already")

    def _calm(self, change: Change, now_ms: int) -> None:
        for at_ms, before in self._made.get(change.queue, []):
            if now_ms - at_ms < _CALM_MS:
                self.findings.append(f"{change.queue} was changed twice in ten minutes")
            if now_ms - at_ms >= _UNDO_MS:
                continue
            if {before.kind, change.kind} == {Kind.SPLIT, Kind.SHRINK}:
                self.findings.append(f"{change.queue}: {change.kind} undoes {before.kind}")
            if set(before.leaves) & set(change.opens) and before.drains:
                self.findings.append(f"{change.queue} returns to a shard that it left")
            if change.kind is Kind.MOVE and set(before.opens) & set(change.leaves):
                self._returns(before, change)

    def _returns(self, before: Change, change: Change) -> None:
        cluster_of = self._records.fleet().cluster_of
        left = {cluster_of[shard] for shard in before.leaves} if before.drains else set()
        queue = self._records.queues[change.queue]
        left -= {cluster_of[part.shard] for part in queue.open_parts}
        if left & {cluster_of[shard] for shard in change.opens}:
            self.findings.append(f"{change.queue} returns to a cluster that it left")
