"""Runs commands of the `aws` command line, one after the other, in one process: to read its code is
most of a command's time. It runs as a plain script: standard input has the arguments of each as
JSON, standard output gets status, output and errors of each.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from awscli.clidriver import create_clidriver


def main() -> None:
    """Run all, and say what each did."""
    driver = create_clidriver()
    done = []
    for arguments in json.load(sys.stdin):
        with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
            status = driver.main(arguments)
        done.append((status, output.getvalue(), errors.getvalue()))
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
