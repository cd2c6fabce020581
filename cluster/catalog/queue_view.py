"""The queues as they are defined now: the catalog's memory, for reading. Synchronous; constant time on the hot path."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cluster.catalog.catalog_rows import QueueName
from cluster.catalog.kept_queues import KeptQueues
from visibility.contract.errors import QueueDoesNotExist
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.naming import parse_arn
from visibility.contract.redrive_policies import redrive_allowed


class QueueView:
    """All queues of a node, and those that were deleted or purged. Changed by the catalog only."""

    def __init__(self, restore_window_ms: int) -> None:
        self.kept = KeptQueues(restore_window_ms)
        """Queues that were deleted or purged."""
        self._queues: dict[QueueName, QueueDefinition] = {}
        self._by_id: dict[int, QueueDefinition] = {}
        self._targets: dict[int, tuple[QueueDefinition, QueueDefinition | None]] = {}
        """Answers of `dead_letter_queue` by the source's id, with the source they are for. Empty after every change."""

    def __iter__(self) -> Iterator[QueueDefinition]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def queue(self, account: str, region: str, name: str) -> QueueDefinition:
        """The queue of that name. Raises QueueDoesNotExist."""
        queue = self._queues.get((account, region, name))
        if queue is None:
            raise QueueDoesNotExist()
        return queue

    def all_queues(self) -> Iterator[QueueDefinition]:
        """See `Definitions.all_queues`."""
        return iter(self)

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, None if it was deleted; a queue that can be restored counts as deleted."""
        return self._by_id.get(queue_id)

    def queue_of_arn(self, arn: str) -> QueueDefinition | None:
        """The queue an ARN names, None if it names none."""
        parsed = parse_arn(arn)
        return self._queues.get((parsed.account, parsed.region, parsed.name)) if parsed else None

    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        """The queue that takes over what this one's redrive policy sends away, as things are now.

        None without a policy, and while its target is missing, of another account, region or type, or does not allow this
        source. Constant time, for the hot path.
        """
        known = self._targets.get(queue.queue_id)
        if known is None or known[0] is not queue:
            known = self._targets[queue.queue_id] = (queue, self._find_target(queue))
        return known[1]

    def _find_target(self, queue: QueueDefinition) -> QueueDefinition | None:
        policy = queue.settings.redrive_policy
        target = None if policy is None else self.queue_of_arn(policy.dead_letter_target_arn)
        if (
            target is None
            or (target.account, target.region) != (queue.account, queue.region)
            or target.settings.fifo is not queue.settings.fifo
            or not redrive_allowed(target.attributes, queue.arn)
        ):
            return None
        return target

    def renewed(self, request: Request) -> Request | None:
        """The request with the definitions of now; None if its queue is gone."""
        queue = self.successor(request.queue.queue_id)
        if queue is None:
            return None
        target = self.dead_letter_queue(queue)
        if queue is request.queue and target is request.dead_letter_queue:
            return request
        return msgspec.structs.replace(request, queue=queue, dead_letter_queue=target)

    def names(self, account: str, region: str, prefix: str) -> list[str]:
        """Names of an account's queues in a region, sorted."""
        return sorted(
            name
            for (owner, place, name) in self._queues
            if owner == account and place == region and name.startswith(prefix)
        )

    def dead_letter_sources(self, target: QueueDefinition) -> list[QueueDefinition]:
        """The queues of the target's account and region whose redrive policy names it, allowed or not, by name."""
        sources = [
            queue
            for queue in self
            if (policy := queue.settings.redrive_policy)
            and (queue.account, queue.region) == (target.account, target.region)
            and policy.dead_letter_target_arn.endswith(f":{target.name}")
            and self.queue_of_arn(policy.dead_letter_target_arn) is self._by_id.get(target.queue_id)
        ]
        return sorted(sources, key=lambda queue: queue.name)

    def successor(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, or the one that continues it after purges; None if it was deleted."""
        while (queue := self._by_id.get(queue_id)) is None:
            kept = self.kept.get(queue_id)
            if kept is None or not kept.continued_as:
                return None
            queue_id = kept.continued_as
        return queue

    def continued(self) -> list[tuple[int, int]]:
        """See `Definitions.continued`."""
        pairs = [(each.queue.queue_id, each.continued_as) for each in self.kept]
        return sorted(pair for pair in pairs if pair[1])

    # -- change -------------------------------------------------------------------------------------------------------

    def _keep(self, queue: QueueDefinition) -> QueueDefinition:
        self._targets.clear()
        self._queues[queue.account, queue.region, queue.name] = queue
        self._by_id[queue.queue_id] = queue
        return queue

    def _remove(self, queue: QueueDefinition) -> None:
        self._targets.clear()
        del self._queues[queue.account, queue.region, queue.name]
        del self._by_id[queue.queue_id]
