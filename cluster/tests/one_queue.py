"""OneQueue: a queue and the driver of its shard, for the story of a policy."""

from __future__ import annotations

from cluster.tests.driver import Driver
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.tests import prepared


class OneQueue:
    """The part that such stories share. Each makes its `queue` and its `driver`."""

    queue: QueueDefinition
    driver: Driver

    def counts(self, queue: QueueDefinition | None = None) -> QueueCounters:
        """The exact counters, by default of the queue."""
        answer = self.driver.submit(prepared.counters(queue or self.queue)).answer
        assert isinstance(answer, QueueCounters)
        return answer

    def restart(self) -> None:
        """Begin anew with what is stored, as a new leader does."""
        self.driver = self.driver.restarted()
