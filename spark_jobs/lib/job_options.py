"""Options that the jobs share, and their output on standard error.

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
from spark_jobs.lib.master import WrongMaster, addresses_of
from sqs_api.settings.service_place import DEFAULT_REGION, Place, PlaceUnknown, find_place
from storage.lake.lake_permissions import OWNER_ONLY, read_umask
from storage.lake.table import Lake, LakeUnusable, ObjectStore


class Environment(NamedTuple):
    """Settings from environment variables."""

    store: ObjectStore = ObjectStore()
    umask: int = read_umask(OWNER_ONLY)
    variables: Mapping[str, str] = {}


class Output:
    """Messages on standard error, each printed once. A warning makes the exit status 1."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._printed: set[str] = set()
        self.status = 0

    def tell(self, text: str) -> None:
        """Print the message."""
        if text not in self._printed:
            self._printed.add(text)
            click.echo(f"{self._job}: {text}", err=True)

    def warn(self, text: str) -> None:
        """Print that something was left undone."""
        self.status = 1
        self.tell(text)


# -- the lake, the service and Spark ---------------------------------------------------------------


def _open_lake(context: click.Context, _: click.Parameter, url: str) -> Lake:
    environment = context.find_object(Environment) or Environment()
    try:
        lake = Lake(url, environment.store, environment.umask)
        is_there = not lake.is_local or Path(lake.url).is_dir()
    except LakeUnusable as error:
        raise click.BadParameter(str(error)) from error
    except OSError as error:  # such as a folder above it that is not this user's
        raise click.BadParameter(f"cannot read {url}: {error.strerror}") from error
    if not is_there:
        raise click.BadParameter(f"there is no folder {lake.url}")
    return lake


def _find_place(context: click.Context, _: click.Parameter, url: str | None) -> Place:
    environment = context.find_object(Environment) or Environment()
    data: Path | None = context.meta.get(_DATA)
    try:
        return find_place(url or context.meta.get(_URL), data, environment.variables, sdk_key)
    except PlaceUnknown as error:
        raise click.BadParameter(str(error)) from error


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


def _store(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta[f"{__name__}.{parameter.name}"] = value


_DATA = f"{__name__}.data"
_URL = f"{__name__}.endpoint"

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]

lake_option: _Option = click.option(
    "--lake",
    required=True,
    metavar="URL",
    callback=_open_lake,
    help="Lake of the service: a folder, or s3://BUCKET/PREFIX.",
)
_URL_HELP = "Address of the service [AWS_ENDPOINT_URL, else as noted in the data folder]."
_DATA_HELP = "Data folder of a service on this machine; its address is noted there."


def place_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`place`: the service named by --url, --data or their defaults."""
    command = click.option("--url", "place", callback=_find_place, help=_URL_HELP)(command)
    return _data_options(command)


def unused_place_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same options, ignored, for a job that sends no requests to the service."""
    command = click.option("--url", expose_value=False, help="Accepted and ignored.")(command)
    return _data_options(command)


def _data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--data",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_store,
        help=_DATA_HELP,
    )(command)
    earlier = click.option(  # the name of --url until 0.1
        "--endpoint", is_eager=True, expose_value=False, hidden=True, callback=_store
    )
    return earlier(command)


def _check_master(_: click.Context, __: click.Parameter, master: str | None) -> str | None:
    if master is not None:
        try:
            addresses_of(master)
        except WrongMaster as error:
            raise click.BadParameter(str(error)) from error
    return master


master_option: _Option = click.option(
    "--master",
    metavar="URL",
    callback=_check_master,
    help="Spark master [that of spark-submit, else the processors of this machine].",
)


# -- instants --------------------------------------------------------------------------------------

_AGO = re.compile(r"([0-9]{1,9})([smhdw])").fullmatch
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Instant(click.ParamType[datetime]):
    """An option that is an instant, such as 2026-11-20, 2026-11-20T08:00+01:00, or 3d for ago."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> datetime:
        """The instant; exits as wrong use if the text is not valid."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a time: write 2026-11-20T08:00Z, or 2h or 3d for that long ago",
                param,
                context,
            )


def parse_instant(text: str, now: datetime) -> datetime:
    """The instant in UTC; 90s, 30m, 2h, 3d and 1w are that long before `now`. Raises ValueError."""
    if ago := _AGO(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise ValueError("that is before the first message") from None
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)
