"""Print the interpreters of this machine that Holdfast supports, one for each version: on the PATH, else pyenv's.

`python -m compat_tests.interpreters [VERSION TO LEAVE OUT]...`
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
SAY_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def find(version: str) -> str | None:
    """The path of an interpreter of this version that starts; None if there is none."""
    for candidate in _candidates(f"python{version}"):
        try:
            said = subprocess.run([candidate, "-c", SAY_VERSION], capture_output=True, text=True)
        except OSError:
            continue
        if said.returncode == 0 and said.stdout.strip() == version:
            return candidate
    return None


def _candidates(name: str) -> Iterator[str]:
    on_path = shutil.which(name)
    if on_path:
        yield on_path
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
        yield from map(str, sorted(Path(root).glob(f"versions/*/bin/{name}"), reverse=True))


def main(left_out: list[str]) -> None:
    """Print a line for each interpreter found."""
    found = (find(version) for version in SUPPORTED if version not in left_out)
    sys.stdout.writelines(f"{path}\n" for path in found if path)


if __name__ == "__main__":
    main(sys.argv[1:])
