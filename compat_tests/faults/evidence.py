"""Evidence of a run that broke a promise: what the clients did to the messages concerned and to
their queues, beside the data folders and the logs of the hosts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from compat_tests.faults.fault_history import Change, Delete, History

_TOLD_APART = "#"
"""Between the name of a message and the id of one of its copies, see `repeats.py`."""


def write_evidence(
    folder: Path, history: History, messages: Iterable[str], notes: list[str]
) -> None:
    """Write `evidence.json`: every operation on these messages, and on their queues as a whole."""
    names = {name.partition(_TOLD_APART)[0] for name in messages}
    queues = {send.queue for send in history.sends if send.name in names}
    settled: list[Change | Delete] = [*history.changes, *history.deletes]
    found = {
        "notes": notes,
        "drain_begun": wall(history.drain_begun) if names else "",
        "queues": [each for each in history.queues.values() if each.name in queues],
        "removals": [each for each in history.removals if each.queue in queues],
        "restorations": [each for each in history.restorations if each.queue in queues],
        "sends": [each for each in history.sends if each.queue in queues],
        "deliveries": [each for each in history.deliveries if each.queue in queues],
        "settled": [each for each in settled if each.delivery.queue in queues],
        "messages": sorted(names),
        "unknown_receives": dict(history.unknown_receives),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evidence.json").write_text(json.dumps(_shown(found), indent=1))


def keep_folders(folder: Path, kept: Path) -> None:
    """Keep the data and the logs of a stopped cluster."""
    shutil.copytree(folder / "data", kept / "data", dirs_exist_ok=True)


def _shown(value: Any) -> Any:
    """As JSON, with the kind of each operation and its times of the wall clock, as logs have
    them."""
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_shown(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    if not is_dataclass(value):
        return value
    members = {field.name: _shown(getattr(value, field.name)) for field in fields(value)}
    for name in ("begun", "ended"):
        if name in members:
            members[name] = wall(members[name])
    return {"kind": type(value).__name__, **members}


def wall(monotonic_s: float) -> str:
    """The time as logs show it."""
    at_s = time.time() - time.monotonic() + monotonic_s
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
    return f"{text}.{int(at_s % 1 * 1000):03}Z"
