"""A real Prometheus that scrapes a service, for the tests of rules and dashboards."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from compat_tests.ports import free_ports

_WAIT_S = 60.0


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test on a machine without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} on this machine: install the package prometheus")
    return found


class Prometheus:
    """Scrapes one address each second, with rules. Use as a context manager."""

    def __init__(self, folder: Path, target: str, authority: Path, rules: list[Path]) -> None:
        """`target` is an https address whose certificate `authority` signed."""
        self._folder = folder
        self._program = program("prometheus")
        self._log = (folder / "prometheus.log").open("w")
        scraped = {
            "job_name": "holdfast",
            "metrics_path": "/_holdfast/metrics",
            "scheme": "https",
            "tls_config": {"ca_file": str(authority)},
            "static_configs": [{"targets": [target.removeprefix("https://")]}],
        }
        content = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [scraped],
        }
        self._config = folder / "prometheus.yml"
        self._config.write_text(yaml.safe_dump(content))
        (self._port,) = free_ports(1)

    def __enter__(self) -> Self:
        """Start, and wait for some scrapes and evaluations."""
        self._process = subprocess.Popen(
            [
                self._program,
                f"--config.file={self._config}",
                f"--storage.tsdb.path={self._folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=60)
        self._log.close()

    def _wait(self) -> None:
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until:
            with suppress(URLError, ConnectionError):
                scraped = self.query('sum_over_time(up{job="holdfast"}[1m]) >= 3')
                if scraped and all(rule["health"] != "unknown" for rule in self.rules()):
                    return
            time.sleep(0.2)
        raise AssertionError(f"nothing was scraped:\n{Path(self._log.name).read_text()[-2000:]}")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All alerting rules with their health."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what: str, **parameters: str) -> Any:
        query = urlencode(parameters)
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{what}?{query}") as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]
