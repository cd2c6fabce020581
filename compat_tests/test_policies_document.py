"""The examples of `visibility/POLICIES.md` run as they stand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from compat_tests.facade import Credentials
from compat_tests.test_transactions import transacting

_DOCUMENT = Path(__file__).parents[1] / "visibility" / "POLICIES.md"
_EXAMPLES = re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", _DOCUMENT.read_text(), re.M | re.S)


@pytest.mark.parametrize(("title", "code"), _EXAMPLES, ids=[title for title, _ in _EXAMPLES])
def test_an_example_runs(
    title: str,
    code: str,
    endpoint: str,
    credentials: Credentials,
    make_queue: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=credentials.region,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
    )
    url = make_queue()
    given = {"sqs": sqs, "url": url, "time": time}
    if "holdfast.transact" in code:
        sqs.send_message(QueueUrl=url, MessageBody="order")
        given["holdfast"] = transacting(endpoint, credentials, tmp_path, monkeypatch)
        given["message"] = sqs.receive_message(QueueUrl=url)["Messages"][0]

    exec(code, given)

    assert "message" in given or sqs.list_queue_tags(QueueUrl=url)["Tags"]
    assert len(code.splitlines()) <= 3


def test_each_section_has_an_example() -> None:
    sections = re.findall(r"^## ", _DOCUMENT.read_text(), re.M)
    assert len(_EXAMPLES) == len(sections) >= 4
