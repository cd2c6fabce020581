"""Announcer: the form that all announcements have; Watch: what makes them.

    {"type", "timestamp", "text", "data": {"queue": ARN, "account", "region", "name", ...}}

`text` says the same in a sentence: Slack, and what takes its messages, shows that. So it has no
words of clients beside names of queues and codes: Slack would read what is marked up in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from sqs_api.admin.routes import RESERVED
from visibility.contract.model import QueueDefinition

SLICE = 100
"""Queues looked at before other work may run."""
Deliver = Callable[[str, bytes], None]
"""Takes the id and the body of an event."""


class Watch(Protocol):
    """Announces what it sees in a look at all queues."""

    def begin(self) -> None:
        """A look begins."""

    def see(self, queues: Sequence[QueueDefinition]) -> None:
        """Some of the queues."""

    async def end(self) -> None:
        """All queues were seen."""


class Announcer:
    """Makes announcements about queues."""

    def __init__(
        self,
        deliver: Deliver,
        wall_s: Callable[[], float],
        bits128: Callable[[], int],
        public_url: str | None,
    ) -> None:
        """With `public_url` there are links to the console."""
        self._deliver = deliver
        self._wall_s = wall_s
        self._bits128 = bits128
        self._public_url = public_url

    def announce(
        self, kind: str, queue: QueueDefinition, text: str, data: Mapping[str, object]
    ) -> None:
        """Begin to deliver an announcement."""
        body = {
            "type": kind,
            "timestamp": datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="seconds"),
            "text": text,
            "data": {
                "queue": queue.arn,
                "account": queue.account,
                "region": queue.region,
                "name": queue.name,
                **data,
            },
        }
        self._deliver(f"msg_{self._bits128():032x}", msgspec.json.encode(body))

    def place(self, queue: QueueDefinition, screen: str = "") -> str | None:
        """The address of a screen of a queue in the console."""
        if self._public_url is None:
            return None
        return f"{self._public_url.rstrip('/')}{RESERVED}console#/queues/{queue.name}{screen}"
