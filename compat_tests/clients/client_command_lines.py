"""The `aws` command line: one process a call, unless it is given many.

Version 1 puts AWS's own host in place of AWS_ENDPOINT_URL for SQS, so the endpoint goes in as an
option.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compat_tests.facade import ClientError, Credentials, Members

_REFUSED = re.compile(
    r"An error occurred \((?P<code>[^)]*)\) when calling the \w+ operation"
    r"(?: \(reached max retries: \d+\))?: (?P<message>.*)",
    re.DOTALL,
)


def command_name(operation: str) -> str:
    """The command of an action: `SendMessageBatch` is `send-message-batch`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", operation).lower()


class CommandLineClient:
    """The facade over `aws sqs`."""

    name = "aws-cli"
    protocol = "json"

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._words = ["sqs", "--endpoint-url", url]
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.devnull,
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_DEFAULT_REGION": credentials.region,
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `aws sqs` with these arguments."""
        program = str(Path(sys.executable).with_name("aws"))
        return self._run([program, *self._words, *arguments])

    def _run(self, line: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *line],
            env=self._environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def call(self, operation: str, **members: Any) -> Members:
        """Call the action and return the members of its answer; raises ClientError on a refusal."""
        done = self.run(*_arguments(operation, members))
        return _answer(done.returncode, done.stdout, done.stderr)

    def call_all(self, calls: Mapping[str, Members]) -> dict[str, Members | ClientError]:
        """Call these actions in turn, in one process; a refusal is an answer, too."""
        lines = [[*self._words, *_arguments(each, members)] for each, members in calls.items()]
        script = str(Path(__file__).with_name("aws_commands.py"))
        done = self._run(["-P", script], json.dumps(lines))
        assert done.returncode == 0, done.stderr
        answers: dict[str, Members | ClientError] = {}
        for operation, (status, output, errors) in zip(calls, json.loads(done.stdout), strict=True):
            try:
                answers[operation] = _answer(status, output, errors)
            except ClientError as error:
                answers[operation] = error
        return answers

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _arguments(operation: str, members: Members) -> list[str]:
    name = command_name(operation)
    return [name, "--cli-input-json", json.dumps(members), "--output", "json"]


def _answer(status: int, output: str, errors: str) -> Members:
    if status == 0:
        answer: Members = json.loads(output) if output.strip() else {}
        return answer
    refused = _REFUSED.search(errors)
    assert refused is not None, errors
    raise ClientError(refused["code"], refused["message"].strip(), status=None)
