"""Gaps of a run with faults, and the evidence that is kept of lost messages."""

from __future__ import annotations

import json
from pathlib import Path

from compat_tests.faults.evidence import write_evidence
from compat_tests.faults.fault_history import History, Outcome, Queue, Send
from compat_tests.faults.gaps import Gap, Moment, acknowledged, gap_of, table


def _history(*ends: float, queue: str = "plain") -> History:
    history = History(drain_begun=100.0)
    history.queues[queue] = Queue(queue, "url")
    for number, end in enumerate(ends):
        name = f"{queue}/{number}"
        history.sends.append(Send(name, queue, "content", end - 0.1, end, Outcome.DONE, "id"))
    return history


def test_the_longest_gap_that_meets_a_fault_counts() -> None:
    ends = [1.0, 3.0, 4.0, 4.5, 9.5, 20.0]

    assert gap_of(ends, Moment("kill", 3.5, 6.0)) == Gap(5.0, 4.5)
    assert gap_of(ends, Moment("kill", 3.5, 4.2)) == Gap(1.0, 3.0)
    assert gap_of([], Moment("kill", 3.5, 4.2)).seconds == 0.0


def test_refused_sends_and_passing_queues_do_not_count() -> None:
    history = _history(1.0, 2.0)
    history.sends += _history(1.5, queue="passing-1").sends
    history.sends.append(Send("x", "plain", "content", 1.0, 1.2, Outcome.UNKNOWN))

    assert acknowledged(history) == {"plain": [1.0, 2.0]}


def test_each_kind_of_fault_has_a_line() -> None:
    moments = [
        Moment("kill", 1.5, 1.6, 2.0),
        Moment("kill", 4.0, 4.1, 6.0),
        Moment("cut", 2.5, 3.0),
    ]

    kill, cut = table(_history(1.0, 2.0, 5.0), moments)

    assert kill.startswith(
        "kill: 2 rounds; without an acknowledged send p50 2.00 s, at most 3.00 s"
    )
    assert kill.endswith("load p50 4.00, at most 6.00")
    assert cut.startswith("cut: 1 rounds; without an acknowledged send p50 3.00 s")


def test_evidence_has_all_operations_on_the_queue_of_a_lost_message(tmp_path: Path) -> None:
    history = _history(1.0, 2.0)
    history.sends += _history(1.5, queue="other").sends

    write_evidence(tmp_path / "kept", history, ["plain/1#id"], ["lost: plain/1"])

    found = json.loads((tmp_path / "kept/evidence.json").read_text())
    assert [each["name"] for each in found["sends"]] == ["plain/0", "plain/1"]
    assert found["sends"][0]["ended"].endswith("Z")
    assert (found["messages"], found["notes"]) == (["plain/1"], ["lost: plain/1"])
