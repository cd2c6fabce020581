"""Damage to a folder: which bytes it strikes, and the verdict on what the service says of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import rocksdict

from compat_tests.faults import folder_damage as damage
from compat_tests.faults.judge import judge
from compat_tests.faults.live_bytes import live_bytes
from compat_tests.test_faults_judge import END, Story


def test_missing_messages_must_be_covered_by_the_count_of_the_service() -> None:
    story = Story()
    for name in ("a", "b"):
        story.send(name, 1)
    verdict = judge(story.history)

    def outcome(reported: int | None, reports: list[str]) -> str:
        return damage.classify(verdict, reported, reports, is_blocked=False).outcome

    assert outcome(2, []) == damage.REPORTED
    assert outcome(1, ["a block is damaged"]) == damage.SILENT
    assert outcome(None, ["a block is damaged"]) == damage.REPORTED
    assert outcome(None, []) == damage.SILENT


def test_a_queue_whose_counters_are_lost_is_named_without_a_count() -> None:
    story = Story()
    story.send("a", 1)
    verdict, places = judge(story.history), story.history.places()
    rebuilt = '{"event": "queue_rebuilt", "queue": "%s", "messages": "%s missing"}'

    for queue, messages, expected in (
        ("q", "at least 0", damage.REPORTED),
        ("q", "0", damage.SILENT),
        ("letters", "at least 0", damage.SILENT),
    ):
        reports = [rebuilt % (queue, messages)]
        found = damage.classify(verdict, 0, reports, is_blocked=False, places=places)
        assert found.outcome == expected


def test_reported_damage_excuses_a_forgotten_id_and_nothing_else() -> None:
    story = Story()
    story.send("a", 1, message_id="1")
    story.send("a", 2, message_id="2")
    forgotten = judge(story.history)
    story.receive("b", END)
    foreign = judge(story.history)

    for verdict, reports, expected in (
        (forgotten, ["damage"], damage.REPORTED),
        (forgotten, [], damage.WRONG),
        (foreign, ["damage"], damage.WRONG),
    ):
        assert damage.classify(verdict, None, reports, is_blocked=False).outcome == expected


def test_counts_begin_anew_only_in_queues_that_the_log_names_as_rebuilt() -> None:
    story = Story()
    story.send("a", 1)
    story.receive("a", 2, count=2)
    story.receive("a", END, count=1)
    verdict, places = judge(story.history), story.history.places()
    rebuilt = '{"event": "queue_rebuilt", "queue": "%s", "level": "error"}'

    for queue, expected in (("q", damage.REPORTED), ("letters", damage.WRONG)):
        found = damage.classify(verdict, 1, [rebuilt % queue], is_blocked=True, places=places)
        assert found.outcome == expected


def test_live_bytes_of_a_table_are_divided_without_gap(tmp_path: Path) -> None:
    options = rocksdict.Options(raw_mode=True)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(blocks)
    database = rocksdict.Rdict(str(tmp_path / "shard-0"), options)
    for number in range(2000):
        database[b"key %d" % number] = b"value" * 20
    database.flush()
    database.close()
    (tmp_path / "identity").write_bytes(b"slot" + bytes(100))

    spans = live_bytes(tmp_path, is_closed=True)

    tables = {"SST data", "SST index", "SST filter", "SST properties", "SST footer"}
    assert spans.keys() == tables | {"notes", "MANIFEST", "CURRENT", "OPTIONS"}
    assert [(span.begin, span.end) for span in spans["notes"]] == [(0, 4)]
    ranges = sorted((span.begin, span.end) for kind in tables for span in spans[kind])
    (file,) = {span.file for kind in tables for span in spans[kind]}
    assert (ranges[0][0], ranges[-1][1]) == (0, file.stat().st_size)
    assert all(one[1] == following[0] for one, following in pairwise(ranges))
