"""Damage a closed data folder at a random place, start the service on it, and look at what it serves.

Each round copies a folder of known messages, flips one bit of a file, cuts it short, overwrites a part of it or removes
it, and starts. Allowed is: to refuse the start in one clear line, or to serve each message as it was sent or not at all,
and to report damage where something is missing. Never allowed: a wrong body or attribute, a message that nobody sent, one
that is silently gone, a traceback or a crash at the start.

`python -m compat_tests.damage --rounds 300`
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from compat_tests.kill9 import say
from compat_tests.known_messages import Folder, Reading, fill, read_back
from compat_tests.node_process import NodeProcess

MESSAGES_EACH = 25  # in each queue, before each of the folder's two ends
FRESH_SECONDS = 200  # a folder is used; its deduplication ids hold for five minutes
KINDS = {
    "*.sst": "table",
    "*.log": "write-ahead log",
    "MANIFEST-*": "MANIFEST",
    "CURRENT": "CURRENT",
    "OPTIONS-*": "OPTIONS",
    "catalog.sqlite*": "catalog",
    "identities.sqlite*": "identities",
    "*.answered": "answered note",
    "keyring.sqlite*": "keyring",
    "master.key": "master key",
    "format.json": "format",
}
"""What a file is, by its name. Others, such as RocksDB's own diary and its lock, hold nothing that is owed."""

REFUSED, WHOLE, REPORTED = "refused the start", "served all", "reported what is missing"
UNCLEAR, CRASHED, WRONG, SILENT = "unclear refusal", "crashed", "served wrong", "silently missing"
ALLOWED = (REFUSED, WHOLE, REPORTED)


class Harm(NamedTuple):
    """One damage."""

    kind: str
    text: str
    """File, what was done to it, where."""


class Finding(NamedTuple):
    """What came of one damage."""

    outcome: str
    text: str
    is_blocked: bool = False
    """Whether a call was answered with an error for ever."""


def main() -> int:
    """Run from the command line; the exit status is 1 when damage was served, hidden or badly told."""
    parser = argparse.ArgumentParser(description="start on damaged folders")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kind", choices=sorted(set(KINDS.values())), help="damage only these")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        made: list[tuple[Path, Folder]] = []
        fresh_until = 0.0
        table: Counter[tuple[str, str]] = Counter()
        blocked = 0
        for number in range(options.rounds):
            chance = random.Random(f"{seed} {number}")
            if time.monotonic() > fresh_until:
                fresh_until = time.monotonic() + FRESH_SECONDS
                made = [
                    make_folder(top / f"{number}-{clean_end}", chance, clean_end=clean_end)
                    for clean_end in (True, False)
                ]
            harm, finding = one_round(top, made[number % 2], chance, options.kind)
            table[harm.kind, finding.outcome] += 1
            blocked += finding.is_blocked
            if finding.outcome not in ALLOWED:
                say(f"round {number}, {harm.text}\n    {finding.outcome}: {finding.text}")
    _show(table, blocked)
    return 1 if any(outcome not in ALLOWED for _, outcome in table) else 0


def make_folder(folder: Path, chance: random.Random, *, clean_end: bool) -> tuple[Path, Folder]:
    """A closed data folder with messages in tables and in the log, and what it holds."""
    node = NodeProcess(folder, "--aws-waits", "off").start()
    known = Folder(node.credentials)
    fill(node, known, chance, MESSAGES_EACH)
    node.stop()
    node.start()
    fill(node, known, chance, MESSAGES_EACH)
    if clean_end:
        node.stop()
    else:
        node.kill()
    return node.data, known


def one_round(
    top: Path, made: tuple[Path, Folder], chance: random.Random, kind: str | None = None
) -> tuple[Harm, Finding]:
    """Damage a copy of the folder by chance and start on it."""
    data, known = made
    here = top / "round"
    shutil.copytree(data, here / "data")
    node = NodeProcess(here, "--aws-waits", "off", credentials=known.credentials)
    try:
        harm = damage(here / "data", chance, kind)
        return harm, _start_and_read(node, known)
    finally:
        node.close()
        shutil.rmtree(here)


def damage(data: Path, chance: random.Random, only: str | None = None) -> Harm:
    """Damage one file of the folder by chance, each kind of file as likely as another."""
    files: dict[str, list[Path]] = {}
    for file in sorted(data.rglob("*")):
        kind = next((kind for pattern, kind in KINDS.items() if file.match(pattern)), None)
        if kind in (only or kind, None) and kind is not None and file.stat().st_size:
            files.setdefault(kind, []).append(file)
    kind = chance.choice(sorted(files))
    file = chance.choice(files[kind])
    content = bytearray(file.read_bytes())
    size = len(content)
    at = chance.randrange(size)
    what = chance.choice(("bit flipped", "bit flipped", "cut", "overwritten", "removed"))
    if what == "bit flipped":
        content[at] ^= 1 << chance.randrange(8)
    elif what == "cut":
        del content[at:]
    elif what == "overwritten":
        end = min(len(content), at + chance.randrange(1, 4096))
        content[at:end] = bytes(end - at)
    if what == "removed":
        file.unlink()
    else:
        file.write_bytes(content)
    return Harm(kind, f"{kind}: {file.relative_to(data)} {what} at {at} of {size}")


def _start_and_read(node: NodeProcess, known: Folder) -> Finding:
    try:
        node.start()
    except AssertionError:
        return _refusal(node)
    if node.output().count("AWS_SECRET_ACCESS_KEY"):
        return Finding(WRONG, "it made a new access key as if the folder were new")
    reading = read_back(node, known)
    reports = _reports(node)
    if not node.running:
        return Finding(CRASHED, node.log_tail(5))
    text = f"{reading.missing} missing; {reading.faults[:1]}; log: {reports[-1:]}"
    if reading.wrong and not _only_forgotten_ids(reading, reports):
        return Finding(WRONG, "; ".join([*reading.wrong[:3], text]), bool(reading.faults))
    if not reading.missing and not reading.faults:
        return Finding(WHOLE, "")
    return Finding(REPORTED if reports else SILENT, text, bool(reading.faults))


def _only_forgotten_ids(reading: Reading, reports: list[str]) -> bool:
    """A deduplication id that cannot be read may be taken for a new one where the damage is reported."""
    return bool(reports) and all("deduplication id" in line for line in reading.wrong)


def _refusal(node: NodeProcess) -> Finding:
    log = node.log.read_text(errors="replace").strip()
    lines = [line for line in log.splitlines() if not line.startswith("{")]
    if node.running or len(lines) != 1 or not lines[0].startswith("holdfast: "):
        return Finding(CRASHED if "Traceback" in log else UNCLEAR, log[-600:] or "nothing was said")
    if str(node.data) not in lines[0] and "shard" not in lines[0]:
        return Finding(UNCLEAR, lines[0])
    return Finding(REFUSED, lines[0])


def _reports(node: NodeProcess) -> list[str]:
    """Lines of the log that warn."""
    found = []
    for line in node.log.read_text(errors="replace").splitlines():
        try:
            level = json.loads(line).get("level")
        except ValueError:
            level = "warning"  # not a line of the log's: a traceback, say
        if level not in ("info", "debug"):
            found.append(line)
    return found


def _show(table: Counter[tuple[str, str]], blocked: int) -> None:
    outcomes = sorted({outcome for _, outcome in table})
    kinds = sorted({kind for kind, _ in table})
    say("  ".join(f"{title:>15}" for title in ("", *outcomes)))
    for kind in kinds:
        numbers = (str(table[kind, outcome]) for outcome in outcomes)
        say("  ".join(f"{cell:>15}" for cell in (kind, *numbers)))
    say(f"in {blocked} rounds some call met an error for ever")


if __name__ == "__main__":
    sys.exit(main())
