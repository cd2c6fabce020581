"""The guide to the clients shows files that run; those in Python run here, all of them by `make
sdks`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests import celery_example
from compat_tests.conftest import NodeFactory
from compat_tests.node_process import NodeProcess
from compat_tests.sdk_examples import EXAMPLES, SNIPPETS, build, check

CHECKOUT = Path(__file__).parent.parent
GUIDE = (SNIPPETS.parent / "README.md").read_text()

SHOWN = re.findall(
    r"^\[`snippets/(\S+)`\]\(snippets/\1\)\n\n```\w+\n(.*?)^```$", GUIDE, re.M | re.S
)
"""Files that the guide shows, and the text shown from them."""

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GUIDE.splitlines()
    if line.startswith("| [")
]
PINNED_IN = {
    "AWS CLI 1": "requirements-dev.lock",
    "boto3": "requirements-dev.lock",
    "Celery": "compat_tests/clients/requirements-celery.lock",
    "JavaScript 2": "javascript-v2/package-lock.json",
    "JavaScript 3": "javascript-v3/package-lock.json",
    "Java 1": "java-v1/pom.xml",
    "Java 2": "java-v2/pom.xml",
    "Go 1": "go-v1/go.sum",
    "Go 2": "go-v2/go.sum",
    "Rust": "rust/Cargo.toml",
}
"""The lock or build file of each client. Version 2 of the CLI is the machine's."""

READS_NO_ENDPOINT = {
    "AWS CLI 1": "aws-cli",
    "JavaScript 2": "javascript-v2",
    "Java 1": "java-v1",
    "Go 1": "go-v1",
}
"""Clients that ignore AWS_ENDPOINT_URL, and their examples, which set the endpoint."""


def test_first_start_prints_every_variable_that_the_sdks_read(start_node: NodeFactory) -> None:
    exports = start_node("--region", "eu-central-1").exports()

    assert sorted(exports) == [
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
    ]
    assert exports["AWS_REGION"] == exports["AWS_DEFAULT_REGION"] == "eu-central-1"


@pytest.mark.parametrize("page", ["compat_tests/clients/README.md"])
def test_pages_show_the_variables_that_are_printed(page: str, start_node: NodeFactory) -> None:
    shown = re.findall(r"^export (AWS_\w+)=", (CHECKOUT / page).read_text(), re.M)

    assert shown == list(start_node().exports())


def test_guide_shows_the_files_that_run() -> None:
    shown = {path.split("/")[0] for path, _ in SHOWN}

    assert [path for path, text in SHOWN if (SNIPPETS / path).read_text() != text] == []
    assert shown == {"celery", *(each.folder for each in EXAMPLES)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row_of_the_table_agrees_with_the_example(row: list[str]) -> None:
    name = row[0].split("]")[0].strip("[")
    pinned = PINNED_IN.get(name)
    if pinned is not None:
        folder = CHECKOUT if "requirements" in pinned else SNIPPETS
        assert row[-1] in (folder / pinned).read_text()
    else:
        assert name == "AWS CLI 2" or row[-1] == "not run"
    assert row[1].startswith("no") == (name in READS_NO_ENDPOINT)


def test_examples_set_the_endpoint_where_the_client_does_not_read_it() -> None:
    set_it = {path.split("/")[0] for path, text in SHOWN if "AWS_ENDPOINT_URL" in text}

    assert set_it == {*READS_NO_ENDPOINT.values(), "celery"}, "Celery: in the broker's URL"


def test_locks_of_javascript_hold_no_addresses() -> None:
    locks = list(SNIPPETS.glob("*/package-lock.json"))

    assert len(locks) == 2
    assert not [lock for lock in locks if '"resolved"' in lock.read_text()]
    assert not [lock for lock in locks if "://" in lock.read_text()], "no funding entries, either"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["boto3", pytest.param("aws-cli-v1", marks=pytest.mark.cli)])
def test_python_example_runs(name: str, start_node: NodeFactory, tmp_path: Path) -> None:
    (example,) = (each for each in EXAMPLES if each.name == name)
    build(example, tmp_path)

    check(example, tmp_path, start_node())


@pytest.mark.slow
@pytest.mark.parametrize(
    "check_it",
    [
        celery_example.check_tasks,
        celery_example.check_predefined,
        celery_example.check_that_the_endpoint_counts,
    ],
)
def test_celery_example_runs(
    check_it: Callable[[NodeProcess], None], start_node: NodeFactory
) -> None:
    if not celery_example.LIBRARIES.exists():
        assert "CI" not in os.environ, "Celery is not installed"
        pytest.skip("Celery is not installed: `make test` installs it")

    check_it(start_node())
