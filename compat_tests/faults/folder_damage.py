"""Damage a data folder at a random place, start the service on it, and judge the result.

Traffic fills a folder; it is closed cleanly, or killed. Each round copies it and flips one bit of
its live bytes, every kind with equal probability (`live_bytes.py`), or, in a quarter of the rounds,
cuts the file there, overwrites a part or removes it. Then the service starts and everything is
drained. The service may refuse the start in one clear line; or it may serve each message as it was
sent or not at all, and report the missing ones, with a sufficient count where it counts. Violations
found by the judge, silent losses, tracebacks and crashes are never allowed (rule 36).

`python -m compat_tests.faults.folder_damage --rounds 300`
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.request import urlopen

from compat_tests.faults.drain import drain
from compat_tests.faults.fault_history import History, Outcome
from compat_tests.faults.judge import DEDUPLICATION_S, Verdict, judge
from compat_tests.faults.lanes import KINDS, lanes
from compat_tests.faults.live_bytes import APART, LOG, Span, live_bytes
from compat_tests.faults.retrying_caller import Letter, caller
from compat_tests.faults.run import CommandLine, endpoint_of, say
from compat_tests.faults.traffic import Traffic
from compat_tests.node_process import NodeProcess

TRAFFIC_S = 3.0
"""Before each of the folder's two ends."""

FRESH_S = 200
"""A folder is used for this long; its deduplication ids hold for five minutes."""

PATIENCE_S = 9.0
"""Longer than the traffic hides any message."""

HARMS = ("flip", "cut", "overwrite", "remove")
FLIPS_SHARE = 0.75
APART_SHARE = 0.15
_REPEATED = 40
_AT_LEAST = "at least"
"""In the text of a count that the damage has taken: the log has no more than the queue."""
_REBUILT = "queue_rebuilt"
"""The event of a queue whose leases, with the counts of receives, may be lost."""
_UNRELATED = ("loop_stalled", "clock_leapt")  # a slow machine
_COUNT = re.compile(r"^holdfast_(?:kept_)?messages_quarantined(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
"""The service's count of messages that damage made unreadable; without one, its report is
believed."""

REFUSED, WHOLE, REPORTED = "refused the start", "served all", "reported missing"
UNCLEAR, CRASHED, WRONG, SILENT = "unclear refusal", "crashed", "served wrong", "silently missing"
ALLOWED = (REFUSED, WHOLE, REPORTED)
NO_PLACES: Mapping[str, set[str]] = MappingProxyType({})


class Folder(NamedTuple):
    """A data folder and the history of its traffic."""

    node: NodeProcess
    history: History
    is_killed: bool


class Harm(NamedTuple):
    """One damage."""

    kind: str
    how: str
    text: str


class Finding(NamedTuple):
    """The consequence of one damage."""

    outcome: str
    text: str = ""
    missing: int = 0
    reported: int | None = None
    """The service's count."""

    is_blocked: bool = False
    """Some call failed in every attempt."""

    starts_with_loss: bool = False
    """A start that was refused succeeds with `--accept-loss on`."""


def main() -> int:
    """Run from the command line; exits with 1 if damage was served, hidden or badly reported."""
    line = CommandLine("start on damaged folders", rounds=300)
    line.parser.add_argument("--kind", help="damage only this kind of bytes")
    line.parser.add_argument("--harm", choices=HARMS, help="damage in this way only")
    options = line.parse()
    found: list[tuple[Harm, Finding]] = []
    folders: list[Folder] = []
    fresh_until = 0.0
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for number in range(options.rounds):
            chance = random.Random(f"{options.seed} {number}")
            if time.monotonic() > fresh_until:
                folders = [
                    make_folder(top / f"{number}-{is_killed}", chance, is_killed, options.traffic)
                    for is_killed in (False, True)
                ]
                fresh_until = time.monotonic() + FRESH_S
            folder = folders[options.kind in LOG or number % 2]
            harm, finding = one_round(top, folder, chance, options.kind, options.harm)
            found.append((harm, finding))
            if finding.outcome not in ALLOWED:
                say(f"round {number}, {harm.text}\n    {finding.outcome}: {finding.text}")
    flips = [each for each in found if each[0].how == "flip"]
    show("flips", [each for each in flips if each[0].kind not in APART])
    show("flips, apart", [each for each in flips if each[0].kind in APART])
    show("other harms", [each for each in found if each[0].how != "flip"])
    return 1 if any(finding.outcome not in ALLOWED for _, finding in found) else 0


def make_folder(
    folder: Path, chance: random.Random, is_killed: bool, kinds: tuple[str, ...] = KINDS
) -> Folder:
    """A data folder with messages in tables and in the log, closed cleanly or killed."""
    node = NodeProcess(folder, "--aws-waits", "off").start()
    traffic = Traffic(endpoint_of(node), chance.getrandbits(32))
    asyncio.run(_fill(traffic, kinds))
    node.stop()
    node.start()
    asyncio.run(_fill(traffic, kinds))
    if is_killed:
        node.kill()
    else:
        node.stop()
    return Folder(node, traffic.history, is_killed)


async def _fill(traffic: Traffic, kinds: tuple[str, ...]) -> None:
    await traffic.make_queues(kinds)
    await traffic.run(asyncio.sleep(TRAFFIC_S), lanes(traffic, kinds))


def one_round(
    top: Path,
    folder: Folder,
    chance: random.Random,
    kind: str | None = None,
    how: str | None = None,
) -> tuple[Harm, Finding]:
    """Damage a copy of the folder at random, and start on it."""
    here = Path(tempfile.mkdtemp(dir=top))
    subprocess.run(
        ["cp", "-a", str(folder.node.data), str(here / "data")], check=True
    )  # links stay
    node = NodeProcess(here, "--aws-waits", "off", credentials=folder.node.credentials)
    try:
        spans = live_bytes(here / "data", is_closed=not folder.is_killed)
        harm = damage(here / "data", spans, chance, kind, how)
        return harm, _start_and_judge(here, node, folder.history.fork())
    finally:
        node.close()
        shutil.rmtree(here)


def damage(
    data: Path,
    spans: dict[str, list[Span]],
    chance: random.Random,
    only: str | None,
    how: str | None,
) -> Harm:
    """Damage a random live byte, all kinds with equal probability except those counted
    separately."""
    is_apart = chance.random() < APART_SHARE
    kinds = sorted(kind for kind in spans if (kind in APART) == is_apart)
    kind = only or chance.choice(kinds)
    span = _drawn(spans[kind], chance)
    at = chance.randrange(span.begin, span.end)
    how = how or ("flip" if chance.random() < FLIPS_SHARE else chance.choice(HARMS[1:]))
    content = bytearray(span.file.read_bytes())
    size = len(content)
    if how == "flip":
        content[at] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del content[at:]
    elif how == "overwrite":
        end = min(span.end, at + chance.randrange(1, 4096))
        content[at:end] = bytes(end - at)
    if how == "remove":
        span.file.unlink()
    else:
        span.file.write_bytes(content)
    return Harm(kind, how, f"{kind}, {how}: {span.file.relative_to(data)} at {at} of {size}")


def _drawn(spans: Iterable[Span], chance: random.Random) -> Span:
    """One of the spans, with probability proportional to its length."""
    known = list(spans)
    return chance.choices(known, [span.end - span.begin for span in known])[0]


# -- consequences ----------------------------------------------------------------------------------


def _start_and_judge(here: Path, node: NodeProcess, history: History) -> Finding:
    try:
        node.start()
    except AssertionError:
        return _refusal(here, node, history)
    if node.output().count("AWS_SECRET_ACCESS_KEY"):
        return Finding(WRONG, "it made a new access key as if the folder were new")
    is_blocked = not asyncio.run(_read(node, history))
    if not node.running:
        return Finding(CRASHED, node.log_tail(5))
    reported, reports = _reported(node), _reports(node)
    verdict = judge(history, excuses_faults=True)
    places = history.places()
    return classify(verdict, reported, reports, is_blocked=is_blocked, places=places)


async def _read(node: NodeProcess, history: History) -> bool:
    """Repeat recent deduplicated sends, then drain; False if some call never succeeded."""
    endpoint = endpoint_of(node)
    since = time.monotonic() - DEDUPLICATION_S + 60
    latest = [
        send
        for send in history.sends
        if send.queue == "order.fifo" and send.outcome is Outcome.DONE and send.begun > since
    ][-_REPEATED:]
    history.sends = list(history.sends)
    async with caller(endpoint, history) as calls:
        for send in latest:
            letter = Letter(
                send.name, f"{send.name}|again", {}, send.group, send.place, 0, send.name
            )
            await calls.send(history.queues[send.queue], [letter])
    return await drain(endpoint, history, patience_s=PATIENCE_S)


def classify(
    verdict: Verdict,
    reported: int | None,
    reports: list[str],
    *,
    is_blocked: bool,
    places: Mapping[str, set[str]] = NO_PLACES,
) -> Finding:
    """The finding for a service that started, by the verdict and by its own reports.

    `places`: the queues that each message was in.
    """
    missing = len(verdict.missing)
    text = f"{missing} missing, {reported} counted; log: {reports[-1:]}"
    wrong = verdict.violations
    if reports:  # counters may be off, and an unreadable id may be taken for a new one
        rebuilt = _rebuilt(reports).keys()
        excused = ("duplicate", "wrong counters")
        forgotten = {each.name for each in wrong if each.rule in excused}
        wrong = [each for each in wrong if each.name not in forgotten]
        wrong = [
            each
            for each in wrong
            if each.rule != "wrong count" or rebuilt.isdisjoint(places.get(each.name, ()))
        ]
    counted = Finding(REPORTED, text, missing, reported, is_blocked)
    if wrong:
        return counted._replace(outcome=WRONG, text=f"{'; '.join(map(str, wrong[:3]))}; {text}")
    if not missing and not is_blocked:
        return counted._replace(outcome=WHOLE)
    uncounted = {queue for queue, messages in _rebuilt(reports).items() if _AT_LEAST in messages}
    to_count = [name for name in verdict.missing if uncounted.isdisjoint(places.get(name, ()))]
    is_covered = bool(reports) if reported is None else len(to_count) <= reported
    if is_covered:
        return counted
    queues = Counter(queue for name in to_count for queue in places.get(name, ()))
    named = [line for line in reports if any(f'"{queue}"' in line for queue in queues)]
    return counted._replace(outcome=SILENT, text=f"{text}; in {dict(queues)}: {named}")


def _rebuilt(reports: list[str]) -> dict[str, str]:
    """The log's words on the messages of each rebuilt queue; their receive counts may have begun
    anew."""
    lines = [json.loads(report) for report in reports if report.startswith("{")]
    rebuilt = [line for line in lines if line.get("event") == _REBUILT]
    return {line["queue"]: line.get("messages", "") for line in rebuilt}


def _refusal(here: Path, node: NodeProcess, history: History) -> Finding:
    log = node.log.read_text(errors="replace").strip()
    lines = [line for line in log.splitlines() if not line.startswith("{")]
    if node.running or len(lines) != 1 or not lines[0].startswith("holdfast: "):
        outcome = CRASHED if "Traceback" in log else UNCLEAR
        return Finding(outcome, log[-600:] or "nothing was said")
    if str(node.data) not in lines[0] and "shard" not in lines[0]:
        return Finding(UNCLEAR, lines[0])
    again = NodeProcess(
        here, "--aws-waits", "off", "--accept-loss", "on", credentials=node.credentials
    )
    try:
        again.start()
    except AssertionError:
        return Finding(REFUSED, lines[0])
    finally:
        again.close()
    return Finding(REFUSED, lines[0], starts_with_loss=True)


def _reported(node: NodeProcess) -> int | None:
    """Messages that the service counts as unreadable; None if it does not count them."""
    with urlopen(f"{node.url}/_holdfast/metrics", timeout=60) as answer:
        counts = _COUNT.findall(answer.read().decode())
    return round(sum(map(float, counts))) if counts else None


def _reports(node: NodeProcess) -> list[str]:
    """Lines of the log that warn of damage, or of anything unknown."""
    found = []
    for line in node.log.read_text(errors="replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            said = {"level": "warning"}  # not a line of the log, for example a traceback
        if said.get("level") not in ("info", "debug") and said.get("event") not in _UNRELATED:
            found.append(line)
    return found


# -- figures ---------------------------------------------------------------------------------------


def show(title: str, found: list[tuple[Harm, Finding]]) -> None:
    """A table of outcomes by kind, and the share of starts that damage prevented."""
    if not found:
        return
    table = Counter((harm.kind, finding.outcome) for harm, finding in found)
    outcomes = sorted({outcome for _, outcome in table})
    say(f"{title:<16}" + "".join(f"{outcome:>18}" for outcome in outcomes) + "   missing/counted")
    for kind in sorted({kind for kind, _ in table}):
        of = [finding for harm, finding in found if harm.kind == kind]
        counted = [finding.reported for finding in of if finding.reported is not None]
        cells = "".join(f"{table[kind, outcome]:>18}" for outcome in outcomes)
        missing = sum(finding.missing for finding in of)
        say(f"{kind:<16}{cells}   {missing}/{sum(counted) if counted else 'not counted'}")
    refused = [finding for _, finding in found if finding.outcome in (REFUSED, UNCLEAR, CRASHED)]
    recovered = sum(finding.starts_with_loss for finding in refused)
    blocked = sum(finding.is_blocked for _, finding in found)
    say(
        f"{len(refused)} of {len(found)} prevented the start ({len(refused) / len(found):.0%}), "
        f"{recovered} of these start with --accept-loss on; in {blocked} a call never succeeded"
    )


if __name__ == "__main__":
    sys.exit(main())
