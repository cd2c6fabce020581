"""What the commands share: refusals in one line, and settings from flags, environment and file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sqs_api import config
from sqs_api.config import ConfigRefused, Settings

CONFIG = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="TOML file [HOLDFAST_CONFIG]."
)
DATA = click.option("--data", type=click.Path(path_type=Path), help="Data folder.")


class Refused(click.ClickException):
    """Wrong use, in one line."""


def load(config_file: Path | None, flags: dict[str, Any]) -> Settings:
    """The settings; flags that were not given are None. Raises Refused."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return config.load(given, config_file)
    except ConfigRefused as error:
        raise Refused(str(error)) from error


def show_key(key: Any) -> None:
    """An access key as lines for a shell."""
    click.echo(f"export AWS_ACCESS_KEY_ID={key.access_key_id}")
    click.echo(f"export AWS_SECRET_ACCESS_KEY={key.secret_access_key}")
    if key.session_token is not None:
        click.echo(f"export AWS_SESSION_TOKEN={key.session_token}")
