"""Writes two weeks of history of a queue into the data folder of a stopped service.

python -m sqs_api.tests.filled_history DATA NAME: 120 sends a minute, and 100 visible messages, more
by one for each day before now.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cluster.clock import SystemClock
from sqs_api.cloudwatch.minute_store import MinuteStore
from sqs_api.cloudwatch.stored_hours import values_of
from sqs_api.tests.serving import ACCOUNT, REGION

_DAY = 24 * 60


def fill(data: Path, name: str, now: int) -> None:
    """Fill the minutes before one."""
    store = MinuteStore(data / "history.sqlite", 64 << 20)
    store.open()
    for minute in range(now - 14 * _DAY, now):
        visible = 100 + (now - minute) // _DAY
        values = {"ApproximateNumberOfMessagesVisible": visible, "NumberOfMessagesSent": 120}
        store.write(minute, {(ACCOUNT, REGION, name): values_of(values)})
    while store.tidy(now):
        pass
    store.close()


if __name__ == "__main__":
    fill(Path(sys.argv[1]), sys.argv[2], int(SystemClock().wall_s()) // 60)
