"""Seeds must give the same history in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_digests(module: str) -> set[bytes]:
    """The lines that processes of two hash seeds print: the digest of seed 3 in this simulation."""
    program = f"from {module} import simulate; print(simulate(3).digest)"
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
