"""Options that all jobs have, and what the environment says for them.

Only `__main__` reads the environment; commands get it as click's object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session
import click
from botocore.exceptions import BotoCoreError

from auth.signing import SigningKey
from sqs_api.service_place import DEFAULT_REGION, Place, PlaceUnknown, find_place
from storage.lake import Lake, LakeUnusable, ObjectStore


class Surroundings(NamedTuple):
    """What the environment says."""

    store: ObjectStore = ObjectStore()
    variables: Mapping[str, str] = {}


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


def sdk_key() -> SigningKey | None:
    """The access key that the AWS SDKs find; None if there is none. Raises PlaceUnknown."""
    try:
        session = botocore.session.Session()
        found = session.get_credentials()
        if found is None:
            return None
        key = found.get_frozen_credentials()
        region = session.get_config_variable("region") or DEFAULT_REGION
    except BotoCoreError as error:
        raise PlaceUnknown(f"cannot find an access key: {error}") from error
    return SigningKey(key.access_key, key.secret_key, region, key.token)


def _open_lake(context: click.Context, _: click.Parameter, url: str) -> Lake:
    surroundings = context.find_object(Surroundings) or Surroundings()
    try:
        lake = Lake(url, surroundings.store)
    except LakeUnusable as error:
        raise click.BadParameter(str(error)) from error
    if lake.is_local and not Path(lake.url).is_dir():
        raise click.BadParameter(f"there is no folder {lake.url}")
    return lake


def _find_place(context: click.Context, _: click.Parameter, url: str | None) -> Place:
    surroundings = context.find_object(Surroundings) or Surroundings()
    data: Path | None = context.meta.get(_DATA)
    try:
        return find_place(url or context.meta.get(_URL), data, surroundings.variables, sdk_key)
    except PlaceUnknown as error:
        raise click.BadParameter(str(error)) from error


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta[f"{__name__}.{parameter.name}"] = value


_DATA = f"{__name__}.data"
_URL = f"{__name__}.endpoint"

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]

lake_option: _Option = click.option(
    "--lake",
    required=True,
    metavar="URL",
    callback=_open_lake,
    help="The lake that the service writes to: a folder, or s3://BUCKET/PREFIX.",
)
_URL_HELP = "The service [AWS_ENDPOINT_URL, else as noted in the data folder]."
_DATA_HELP = "Data folder of a service on this machine, which says where it is."


def place_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`place`: the service named by --url, --data or their defaults."""
    command = click.option("--url", "place", callback=_find_place, help=_URL_HELP)(command)
    return _place_parts(command)


def unasked_place_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same options for a job that makes no requests to the service."""
    command = click.option("--url", expose_value=False, help="All jobs have it.")(command)
    return _place_parts(command)


def _place_parts(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--data",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help=_DATA_HELP,
    )(command)
    earlier = click.option(  # the name of --url until 0.1
        "--endpoint", is_eager=True, expose_value=False, hidden=True, callback=_keep
    )
    return earlier(command)


master_option: _Option = click.option(
    "--master",
    metavar="URL",
    help="The Spark master; else that of spark-submit, else the processors of this machine.",
)


# -- instants ----

_AGO = re.compile(r"([0-9]{1,9})([smhdw])").fullmatch
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_instant(text: str, now: datetime) -> datetime:
    """The instant in UTC. Raises ValueError."""
    if ago := _AGO(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise ValueError("that long ago there were no messages") from None
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)


class Instant(click.ParamType[datetime]):
    """An option that is an instant; what is relative counts from when it is read."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> datetime:
        """The instant; wrong use when the text is none."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time: write 2026-11-20T08:00Z, or 2h or 3d ago", param, context
            )
