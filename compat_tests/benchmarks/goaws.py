"""goaws, a service in Go that keeps messages in memory, built from its source."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from compat_tests.benchmarks.elasticmq import NotHere

_SOURCE = "github.com/Admiral-Piett/goaws/app/cmd"
VERSION = "v0.4.5"
"""The last release."""
PROTOCOL = "query"
"""It speaks no other one."""
FOLDER = Path(__file__).parents[2] / "build" / "goaws" / VERSION
_SETTINGS = """\
Local:
  Host: 127.0.0.1
  Port: {port}
  Region: us-east-1
  AccountId: "000000000000"
  LogToFile: false
"""


def command(folder: Path, port: int) -> list[str]:
    """The command that starts goaws on a port, its settings in the folder. Raises NotHere."""
    program = FOLDER / "cmd"
    if not program.is_file():
        _build()
    settings = folder / "goaws.yaml"
    settings.write_text(_SETTINGS.format(port=port))
    return [str(program), "-config", str(settings), "Local"]


def _build() -> None:
    go = shutil.which("go")
    if go is None:
        raise NotHere("there is no go to build it with")
    done = subprocess.run(
        [go, "install", f"{_SOURCE}@{VERSION}"],
        env=os.environ | {"GOBIN": str(FOLDER)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise NotHere(f"go could not build {VERSION}: {done.stdout.strip()[-500:]}")
