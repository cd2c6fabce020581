"""The console's JavaScript without a browser: units in Node, types against the OpenAPI document.

Types need TypeScript, which `make .venv/.javascript` installs where npm is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sqs_api.operators.openapi import document

HERE = Path(__file__).parent / "javascript"
STATIC = Path(__file__).parent.parent / "console" / "static"
TOOLS = Path(sys.prefix) / "javascript" / "node_modules" / ".bin"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The console's files in `static`, beside the tests and types of them."""
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True)
    shutil.copytree(STATIC, tmp_path / "static")
    return tmp_path


def run(*command: str | Path, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_units_do_what_their_tests_say(folder: Path) -> None:
    run("node", "--test", "units.test.js", folder=folder)


@pytest.mark.slow
@pytest.mark.skipif(not (TOOLS / "tsc").exists(), reason="needs TypeScript")
def test_requests_and_answers_have_the_types_of_the_openapi_document(folder: Path) -> None:
    (folder / "openapi.json").write_text(json.dumps(document()))
    run(
        TOOLS / "openapi-typescript",
        "openapi.json",
        "--default-non-nullable=false",
        "--output=openapi.d.ts",
        folder=folder,
    )

    run(TOOLS / "tsc", "--project", ".", folder=folder)
