"""Gaps: the longest time without an acknowledged send in each fault, as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from compat_tests.faults.evidence import wall
from compat_tests.faults.fault_history import History, Outcome


class Moment(NamedTuple):
    """One fault, from its beginning until all processes were ready again."""

    fault: str
    begun: float
    ended: float
    load: float = 0.0
    """Processes that ran or waited for a processor, in the mean of the last minute."""
    hit: str = ""
    """Names of the processes that the fault hit."""
    led: str = ""
    """The leaders before the fault."""


class Gap(NamedTuple):
    """The longest time without an acknowledged send in one fault, and its beginning."""

    seconds: float
    after: float


def gap_of(ends: Sequence[float], moment: Moment) -> Gap:
    """The longest time between two of these acknowledgements that meets the moment."""
    found = [
        Gap(after - before, before)
        for before, after in pairwise(sorted(ends))
        if before < moment.ended and after > moment.begun
    ]
    return max(found, default=Gap(0.0, moment.begun))


def acknowledged(history: History) -> dict[str, list[float]]:
    """Times of acknowledged sends, by queue, for the queues that get messages all the time."""
    ends: dict[str, list[float]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.DONE and not send.queue.startswith("passing"):
            ends[send.queue].append(send.ended)
    return ends


def table(history: History, moments: Sequence[Moment]) -> list[str]:
    """One line for each kind of fault. A queue with one sender shows that sender's retries, too,
    which boto3 makes up to 7 s after its first attempt."""
    ends = acknowledged(history)
    all_ends = [each for times in ends.values() for each in times]
    lines = []
    for fault in dict.fromkeys(moment.fault for moment in moments):
        found = [moment for moment in moments if moment.fault == fault]
        gaps = [gap_of(all_ends, moment).seconds for moment in found]
        of_queues = [_worst(ends, moment) for moment in found]
        _, queue = max(of_queues)
        lines.append(
            f"{fault}: {len(found)} rounds; without an acknowledged send {_p50_max(gaps)}, to one "
            f"queue {_p50_max(seconds for seconds, _ in of_queues)} ({queue}); "
            f"load {_p50_max((moment.load for moment in found), unit='')}"
        )
    return lines


def told_of(history: History, moment: Moment) -> str:
    """One fault, with times that can be found in the logs of the hosts."""
    ends = acknowledged(history)
    gap = gap_of([each for times in ends.values() for each in times], moment)
    return (
        f"{wall(moment.begun)} {moment.fault} {moment.hit}, led by {moment.led}, until "
        f"{wall(moment.ended)}: "
        f"{gap.seconds:.2f} s without an acknowledged send from {wall(gap.after)} on; "
        f"load {moment.load:.1f}"
    )


def _worst(ends: dict[str, list[float]], moment: Moment) -> tuple[float, str]:
    return max(
        ((gap_of(times, moment).seconds, queue) for queue, times in ends.items()),
        default=(0.0, "any queue"),
    )


def _p50_max(values: Iterable[float], unit: str = " s") -> str:
    found = list(values)
    return f"p50 {median(found):.2f}{unit}, at most {max(found):.2f}{unit}"
