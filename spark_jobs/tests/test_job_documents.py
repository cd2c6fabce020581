"""The guide says which versions work: those that are asked for and installed."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["pyspark", "deltalake", "pyarrow"])
def test_versions_are_those_of_the_package_and_of_this_test(package: str) -> None:
    extras = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (asked,) = [each for each in extras["spark"] if each.startswith(package)]
    guide = (_CHECKOUT / "spark_jobs" / "README.md").read_text()

    (row,) = [line for line in guide.splitlines() if f"`{asked}`" in line and line[0] == "|"]

    assert re.search(rf"\b{re.escape(metadata.version(package))}\b", row)
