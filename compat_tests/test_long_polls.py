"""Many long polls at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.facade import Client, Credentials, counts

LIBRARIES = Path(sys.prefix) / "aioboto3"
POLLS = 200


@pytest.mark.slow
def test_two_hundred_polls_get_a_message_each(
    endpoint: str, credentials: Credentials, current: Client, queue: str
) -> None:
    if not LIBRARIES.exists():
        assert "CI" not in os.environ, "aioboto3 is not installed"
        pytest.skip("aioboto3 is not installed: `make test` installs it")
    worker = Path(__file__).parent / "clients" / "aioboto3_worker.py"
    key = credentials
    arguments = [endpoint, key.access_key_id, key.secret_access_key, key.region, queue, str(POLLS)]

    done = subprocess.run(
        [sys.executable, "-P", str(worker), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(LIBRARIES)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["early"] == 0
    assert len(set(found["sent"])) == POLLS
    assert sorted(found["received"]) == sorted(found["sent"])
    assert counts(current, queue) == (0, 0, 0)
