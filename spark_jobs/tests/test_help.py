"""The help of the jobs, as each command of holdfast gives it."""

from __future__ import annotations

import pytest

from spark_jobs.tests.processes import ended, job


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-h",), ("archive", "-h")])
def test_short_option_shows_the_help(arguments: tuple[str, ...]) -> None:
    status, output, error = ended(job(*arguments))

    assert (status, error) == (0, "")
    assert output.startswith(f"Usage: holdfast jobs {' '.join(arguments[:-1])}".strip())
