"""Seeds must give the same history in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_digest(module: str) -> str:
    """The digest of seed 3 in this simulation, from a process with another hash seed than ours."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    printed = subprocess.run(
        [sys.executable, "-c", f"from {module} import simulate; print(simulate(3).digest)"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    return printed.stdout.strip()
