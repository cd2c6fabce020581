"""Options that all jobs have, and what the environment says for them.

Only `__main__` reads the environment; commands get it as click's object.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from storage.lake import Lake, LakeUnusable, ObjectStore

DEFAULT_ENDPOINT = "http://127.0.0.1:9324"


class Surroundings(NamedTuple):
    """What the environment says."""

    store: ObjectStore = ObjectStore()
    endpoint: str = DEFAULT_ENDPOINT


class Notes:
    """What a job says on standard error, each line once. A warning makes the exit status 1."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._said: set[str] = set()
        self.status = 0

    def tell(self, text: str) -> None:
        """Say it."""
        if text not in self._said:
            self._said.add(text)
            click.echo(f"{self._job}: {text}", err=True)

    def warn(self, text: str) -> None:
        """Say that something was not done."""
        self.status = 1
        self.tell(text)


def _open_lake(context: click.Context, _: click.Parameter, url: str) -> Lake:
    surroundings = context.find_object(Surroundings) or Surroundings()
    try:
        lake = Lake(url, surroundings.store)
    except LakeUnusable as error:
        raise click.BadParameter(str(error)) from error
    if lake.is_local and not Path(lake.url).is_dir():
        raise click.BadParameter(f"there is no folder {lake.url}")
    return lake


def _endpoint(context: click.Context, _: click.Parameter, url: str | None) -> str:
    surroundings = context.find_object(Surroundings) or Surroundings()
    endpoint = (url or surroundings.endpoint).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.BadParameter(f"{endpoint} is no http:// or https:// URL")
    return endpoint


_Option = Callable[[Callable[..., Any]], Callable[..., Any]]

lake_option: _Option = click.option(
    "--lake",
    required=True,
    metavar="URL",
    callback=_open_lake,
    help="The lake that the service writes to: a folder, or s3://BUCKET/PREFIX.",
)
endpoint_option: _Option = click.option(
    "--endpoint",
    metavar="URL",
    callback=_endpoint,
    help=f"The service; else what AWS_ENDPOINT_URL says, else {DEFAULT_ENDPOINT}.",
)
master_option: _Option = click.option(
    "--master",
    metavar="URL",
    help="The Spark master; else that of spark-submit, else the processors of this machine.",
)
