"""Seeds must give the same history in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_digest(module: str, shape: str = "") -> str:
    """The digest of seed 3 in this simulation, from a process with another hash seed than ours.
    `shape` is the function of the module that makes the shape of a seed."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    given = f"3, made.{shape}(3)" if shape else "3"
    script = f"import {module} as made; print(made.simulate({given}).digest)"
    printed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    return printed.stdout.strip()
