"""One run at a time, and none waits for one that is dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.replay.replay_claim import Claim, Timing
from storage.lake.table import Lake

FOLDER = "replays/orders/default/claims"
QUICK = Timing(beat_s=0.02, fresh_s=0.1, dead_s=0.3, look_s=0.01)


def put_claim(lake: Lake, run: str, **members: object) -> None:
    """The claim of a run that is somewhere else, and does not change."""
    seen = {"state": "holding", "beat": 1, "machine": "elsewhere", "process": 1, **members}
    lake.write(f"{FOLDER}/{run}.json", json.dumps(seen).encode())


def own_claim(lake: Lake, run: str) -> dict[str, object]:
    seen = lake.read_json(f"{FOLDER}/{run}.json")
    assert isinstance(seen, dict)
    return seen


def check_until_it_fails(claim: Claim) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        claim.check()


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_second_run_is_refused_while_the_first_lives(lake: Lake) -> None:
    patient = QUICK._replace(dead_s=60)
    with Claim(lake, FOLDER, "first", patient) as first:
        with pytest.raises(JobFailed, match=f"process {os.getpid()}"):
            Claim(lake, FOLDER, "second", patient).__enter__()

        first.check()
        assert [file.path for file in lake.list(FOLDER)] == [f"{FOLDER}/first.json"]


def test_run_after_another_takes_its_place(lake: Lake) -> None:
    for run in ("first", "second"):
        with Claim(lake, FOLDER, run, QUICK) as claim:
            claim.check()

    assert lake.list(FOLDER) == []


def test_claim_of_a_dead_process_of_this_machine_is_taken_at_once(lake: Lake) -> None:
    patient = Timing(dead_s=3_600)
    with Claim(lake, FOLDER, "first", patient):
        here = own_claim(lake, "first")["machine"]
    assert here, "this test needs /proc"
    put_claim(lake, "killed", machine=here, process=dead_process())

    with Claim(lake, FOLDER, "second", patient) as claim:
        claim.check()

        assert [file.path for file in lake.list(FOLDER)] == [f"{FOLDER}/second.json"]


@pytest.mark.parametrize("machine", ["elsewhere", ""])
def test_claim_of_another_machine_is_taken_when_it_did_not_change(lake: Lake, machine: str) -> None:
    put_claim(lake, "away", machine=machine, process=dead_process())
    begun_s = time.monotonic()

    with Claim(lake, FOLDER, "second", QUICK):
        assert time.monotonic() - begun_s >= QUICK.dead_s
        assert [file.path for file in lake.list(FOLDER)] == [f"{FOLDER}/second.json"]


def test_beat_tells_a_run_that_was_taken_over(lake: Lake) -> None:
    with Claim(lake, FOLDER, "first", QUICK._replace(fresh_s=3_600)) as first:
        put_claim(lake, "second")

        with pytest.raises(JobFailed, match="took over"):
            check_until_it_fails(first)


def test_run_that_stood_still_looks_before_it_goes_on(lake: Lake) -> None:
    with Claim(lake, FOLDER, "first", Timing(beat_s=3_600, fresh_s=-1)) as first:
        put_claim(lake, "second")

        with pytest.raises(JobFailed, match="took over"):
            first.check()


def test_run_that_only_asks_disturbs_no_other(lake: Lake) -> None:
    with Claim(lake, FOLDER, "first", Timing(beat_s=3_600, fresh_s=-1)) as first:
        put_claim(lake, "second", state="asking")

        first.check()


def test_of_runs_that_begin_at_once_never_two_work(lake: Lake) -> None:
    working: list[int] = []
    overlaps: list[int] = []
    entered = threading.Lock()

    def run(number: int) -> None:
        for turn in range(5):
            try:
                with Claim(lake, FOLDER, f"run-{number}-{turn}", QUICK):
                    with entered:
                        working.append(number)
                        overlaps.append(len(working))
                    with entered:
                        working.remove(number)
            except JobFailed:
                continue

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(overlaps) <= {1}
    assert lake.list(FOLDER) == []
