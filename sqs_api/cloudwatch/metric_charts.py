"""Charts: the series of one queue over up to two weeks, from what each host measured and stored.

Each host adds its minutes up to periods, so that two weeks are some hundred points on the way. A
leader keeps what it measured: after a failover the series of the two continue each other.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cluster.catalog.catalog_records import QueueName
from sqs_api.admin.every_host import EveryHost
from sqs_api.cloudwatch.history import History
from sqs_api.cloudwatch.metric_statistics import Window
from sqs_api.cloudwatch.metric_table import ACTIVE
from sqs_api.cloudwatch.minute_store import RUNNING
from sqs_api.cloudwatch.recorder import Recorder
from sqs_api.cloudwatch.stored_hours import COLUMNS, PLACES, Minutes, Values, add

_SERIES = "history:series"


class _Asked(msgspec.Struct, array_like=True):
    name: QueueName
    window: Window


class _Known(msgspec.Struct, array_like=True):
    """Second at which a period begins: measured values, which lack zeros."""

    periods: dict[int, dict[int, float]]


_decode = msgspec.msgpack.Decoder(_Known).decode
_encode = msgspec.msgpack.encode


class Charted(NamedTuple):
    """Values by metric and the second at which their period begins: of a state the greatest, of a
    count the sum. Zeros are left out."""

    series: dict[str, dict[int, float]]
    running: set[int]
    """The periods in which a host ran."""
    active: set[int]
    """Those with a value."""
    is_complete: bool
    """False if a host did not answer."""


class Charts:
    """Asks all hosts, and adds up."""

    def __init__(self, history: History, recorder: Recorder | None, hosts: EveryHost) -> None:
        """Without a recorder there is only what memory has."""
        self._history = history
        self._recorder = recorder
        self._hosts = hosts
        hosts.serve(_SERIES, self._here)

    async def of(self, name: QueueName, window: Window) -> Charted:
        """The series of a queue, of all hosts."""
        heard = await self._hosts.ask(_SERIES, _encode(_Asked(name, window)))
        periods: Minutes = {}
        for part in heard.parts:
            for at_s, values in _decode(part).periods.items():
                add(periods.setdefault(at_s, {}), values)
        series: dict[str, dict[int, float]] = {metric: {} for metric in COLUMNS}
        for at_s, values in periods.items():
            for place, value in values.items():
                series[COLUMNS[place]][at_s] = value
        active = {at_s for at_s, values in periods.items() if values}
        return Charted(series, set(periods), active, not heard.missing)

    # -- this host's part --------------------------------------------------------------------------

    async def _here(self, body: bytes) -> bytes:
        name, window = msgspec.structs.astuple(msgspec.msgpack.decode(body, type=_Asked))
        minutes = await self._minutes(name, window.begin, window.end)
        periods: Minutes = {}
        for minute, values in minutes.items():
            at_s = minute * 60 - (minute * 60 - window.begin_s) % window.period_s
            add(periods.setdefault(at_s, {}), values)
        return _encode(_Known(periods))

    async def _minutes(self, name: QueueName, begin: int, end: int) -> Minutes:
        """The minutes in which this process ran, with what is known of the queue: what is stored,
        what only memory has, and the minute under way."""
        stored: Minutes = {}
        running: Minutes = {}
        if self._recorder is not None:
            found = await self._recorder.read([name, RUNNING], begin, end)
            stored, running = found[name], found[RUNNING]
        in_memory = await self._in_memory(name, begin, end)
        now = self._history.minute
        for minute, values in in_memory.items():
            if minute not in stored:
                stored[minute] = values
            elif minute == now:  # the process began in it, and its last run ended in it
                add(stored[minute], values)
        if self._recorder is not None and begin <= now < end:
            stored.setdefault(now, {})
        return {minute: {} for minute in running} | stored

    async def _in_memory(self, name: QueueName, begin: int, end: int) -> Minutes:
        found = await self._history.points({name: COLUMNS}, begin, end, with_hours=False)
        minutes: dict[int, Values] = {}
        for metric, points in found[name].items():
            for minute, value in points.minutes:
                values = minutes.setdefault(minute, {})
                if metric != ACTIVE:
                    values[PLACES[metric]] = value
        return minutes
