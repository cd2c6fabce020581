"""The examples of `visibility/POLICIES.md` run as they stand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from compat_tests.facade import Credentials

_DOCUMENT = Path(__file__).parents[1] / "visibility" / "POLICIES.md"
_EXAMPLES = re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", _DOCUMENT.read_text(), re.M | re.S)


@pytest.mark.parametrize(("title", "code"), _EXAMPLES, ids=[title for title, _ in _EXAMPLES])
def test_an_example_runs(
    title: str,
    code: str,
    endpoint: str,
    credentials: Credentials,
    make_queue: Callable[..., str],
) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=credentials.region,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
    )
    url = make_queue()

    exec(code, {"sqs": sqs, "url": url, "time": time})

    assert sqs.list_queue_tags(QueueUrl=url)["Tags"]
    assert len(code.splitlines()) <= 3


def test_each_section_has_an_example() -> None:
    sections = re.findall(r"^## ", _DOCUMENT.read_text(), re.M)
    assert len(_EXAMPLES) == len(sections) >= 4
