"""`holdfast usage` asks the service that is named, and reads the folder otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqs_api.tests.commands import run


def test_usage_is_that_of_the_service_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    asked = run("usage")
    read = run("usage", "--data", tmp_path)

    assert asked.status == read.status == 2
    assert "http://127.0.0.1:1" in asked.err
    assert read.err == f"there is no usage in {tmp_path} yet"
