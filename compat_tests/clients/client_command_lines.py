"""The `aws` command line: one process a call, so it is used sparingly.

Version 1 puts AWS's own host in place of AWS_ENDPOINT_URL for SQS, so the endpoint goes in as an
option.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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
        program = str(Path(sys.executable).with_name("aws"))
        self._command = [sys.executable, program, "sqs", "--endpoint-url", url]
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
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def call(self, operation: str, **members: Any) -> Members:
        """Call the action and return the members of its answer; raises ClientError on a refusal."""
        given = ["--cli-input-json", json.dumps(members), "--output", "json"]
        done = self.run(command_name(operation), *given)
        if done.returncode == 0:
            answer: Members = json.loads(done.stdout) if done.stdout.strip() else {}
            return answer
        refused = _REFUSED.search(done.stderr)
        assert refused is not None, done.stderr
        raise ClientError(refused["code"], refused["message"].strip(), status=None)

    def close(self) -> None:
        """Do nothing: there is no connection."""
