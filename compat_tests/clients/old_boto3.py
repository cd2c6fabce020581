"""The last boto3 that speaks the query protocol (1.28.80 with botocore 1.31.80), in its own
process.

botocore 1.31.81 switched SQS to JSON, and boto3 1.28.81 demands it; so this pair is the newest true
query client.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from compat_tests.facade import Credentials, Members, error_of_botocore

LIBRARIES = Path(sys.prefix) / "old-boto3"
"""The folder into which `make` installs it."""


class OldBoto3Client:
    """The facade over the worker process."""

    name = "boto3-query"
    protocol = "query"

    def __init__(self, url: str, credentials: Credentials) -> None:
        worker = Path(__file__).with_name("old_boto3_worker.py")
        arguments = [
            url,
            credentials.access_key_id,
            credentials.secret_access_key,
            credentials.region,
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(worker), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(LIBRARIES),
                "COMPAT_ATTEMPTS": os.environ.get("COMPAT_ATTEMPTS", "1"),
            },
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls = self._process.stdin
        self._answers = self._process.stdout
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Members]] = {}
        self._writing = threading.Lock()
        _, greeting, _ = pickle.load(self._answers)
        assert greeting["protocol"] == self.protocol, greeting
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    def call(self, operation: str, **members: Any) -> Members:
        """Call the action and return the members of its answer; raises ClientError on a refusal."""
        answer: Future[Members] = Future()
        with self._writing:
            number = next(self._numbers)
            self._waiting[number] = answer
            pickle.dump((number, operation, members), self._calls)
            self._calls.flush()
        return answer.result(timeout=60)

    def close(self) -> None:
        """End the worker."""
        self._calls.close()
        self._process.wait(timeout=60)
        self._reader.join(timeout=60)
        self._answers.close()

    def _read_answers(self) -> None:
        while True:
            try:
                number, members, error = pickle.load(self._answers)
            except EOFError:
                return
            waiting = self._waiting.pop(number)
            if error is None:
                members.pop("ResponseMetadata")
                waiting.set_result(members)
            elif "Crash" in error:
                waiting.set_exception(RuntimeError(error["Crash"]))
            else:
                waiting.set_exception(error_of_botocore(error))
