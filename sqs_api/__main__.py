"""The `holdfast` command. Wrong use ends with status 2 and one line."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from sqs_api import config
from sqs_api.commands.backup import backup
from sqs_api.commands.restore import restore
from sqs_api.commands.verify import verify
from sqs_api.config import Audience, AuthMode, ConfigRefused, Settings, Switch
from sqs_api.logs import LogFormat, set_up_logs
from storage.rocks import Durability
from visibility.naming import is_account

_FAILED = 1
_WRONG_USE = 2


class _Refused(click.ClickException):
    """Wrong use, in one line."""


def _choices(values: Any) -> click.Choice[str]:
    return click.Choice([value.value for value in values])


_CONFIG = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="TOML file."
)
_DATA = click.option(
    "--data", type=click.Path(path_type=Path), help="Data folder [./holdfast-data]."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Holdfast: a queue service that speaks Amazon SQS."""


for _command in (backup, restore, verify):
    cli.add_command(_command)


@cli.command()
@click.option("--host", help="Address to listen on [127.0.0.1].")
@click.option("--port", type=int, help="Port; 0 picks a free one [9324].")
@_DATA
@_CONFIG
@click.option(
    "--auth", type=_choices(AuthMode), help="sigv4 checks signatures; open does not [sigv4]."
)
@click.option("--durability", type=_choices(Durability), help="What an answer survives [fsync].")
@click.option("--account", help="Account of the first access key, 12 digits [000000000000].")
@click.option("--region", help="Region of the first access key's example [us-east-1].")
@click.option("--public-url", help="Base of queue URLs [the request's Host].")
@click.option("--aws-waits", type=_choices(Switch), help="AWS's 60 s rules [on].")
@click.option("--metrics", type=_choices(Audience), help="Who may read the metrics [loopback].")
@click.option(
    "--restore-deleted-s", type=int, help="Seconds in which a deleted queue can be restored [0]."
)
@click.option("--log", type=_choices(LogFormat), help="Form of log lines on standard error [json].")
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the service until SIGTERM or SIGINT."""
    settings = _load(config_file, flags)
    set_up_logs(settings.log)
    sys.exit(_run(settings))


@cli.command("check-config")
@_CONFIG
def check_config(config_file: Path | None) -> None:
    """Say whether the service would start with this configuration."""
    settings = _load(config_file, {})
    for name in type(settings).model_fields:
        click.echo(f"{name} = {getattr(settings, name)}")


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(metadata.version("holdfast"))


@cli.command("restore-queue")
@click.argument("name")
@click.option(
    "--url",
    default="http://127.0.0.1:9324",
    show_default=True,
    help="Address of the service, which must be on this machine.",
)
def restore_queue(name: str, url: str) -> None:
    """Bring the latest deleted queue of this name back, within --restore-deleted-s of its deletion."""
    from sqs_api import admin_client

    if not url.startswith(("http://", "https://")):
        raise _Refused("--url: must be an http:// or https:// address")
    try:
        queue = admin_client.restore_queue(url, name)
    except admin_client.AdminRefused as error:
        raise _Refused(str(error)) from error
    click.echo(f"restored {name} of account {queue['account']} in {queue['region']}")


@cli.group()
@_DATA
@_CONFIG
@click.pass_context
def credentials(context: click.Context, data: Path | None, config_file: Path | None) -> None:
    """Manage access keys; a running server sees changes within a second."""
    settings = _load(config_file, {"data": data})
    if context.resilient_parsing or not context.invoked_subcommand:
        return
    from cluster.access_keys import AccessKeyStore, AccessKeysUnreadable
    from cluster.clock import SystemClock, SystemEntropy
    from storage.folder import FolderRefused, check_folder, is_unused, open_folder

    try:
        if context.invoked_subcommand == "add" and is_unused(settings.data):
            open_folder(settings.data)
        check_folder(settings.data)
        store = AccessKeyStore(settings.data, SystemClock(), SystemEntropy())
        context.call_on_close(store.close)
        store.all()
    except (FolderRefused, AccessKeysUnreadable) as error:
        raise _Refused(str(error)) from error
    context.obj = (store, settings.account)


@credentials.command("list")
@click.pass_obj
def credentials_list(context: Any) -> None:
    """List keys, without secrets."""
    store, _ = context
    for key in store.all():
        state = "enabled" if key.enabled else "disabled"
        click.echo(f"{key.access_key_id}  {key.account}  {key.principal}  {state}")


@credentials.command("add")
@click.option("--account", help="Account of the key, 12 digits [the configured one].")
@click.pass_context
def credentials_add(context: click.Context, account: str | None) -> None:
    """Make a key and show its secret once."""
    store, default_account = context.obj
    if account is not None and not is_account(account):
        raise _Refused("--account: must be 12 digits")
    _show(store.add(account or default_account))


@credentials.command("rotate")
@click.argument("access_key_id")
@click.pass_obj
def credentials_rotate(context: Any, access_key_id: str) -> None:
    """Make a successor for the same user and disable the old key."""
    store, _ = context
    key = store.rotate(access_key_id)
    if key is None:
        raise _Refused(f"no access key {access_key_id}")
    _show(key)


@credentials.command("disable")
@click.argument("access_key_id")
@click.pass_obj
def credentials_disable(context: Any, access_key_id: str) -> None:
    """Refuse a key from now on."""
    store, _ = context
    if not store.disable(access_key_id):
        raise _Refused(f"no access key {access_key_id}")
    click.echo(f"disabled {access_key_id}")


def _load(config_file: Path | None, flags: dict[str, Any]) -> Settings:
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return config.load(given, config_file)
    except ConfigRefused as error:
        raise _Refused(str(error)) from error


def _show(key: Any) -> None:
    click.echo(f"export AWS_ACCESS_KEY_ID={key.access_key_id}")
    click.echo(f"export AWS_SECRET_ACCESS_KEY={key.secret_access_key}")


def _run(settings: Settings) -> int:
    gc.disable()  # until the node is up and its start-up objects are frozen
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(settings))
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    from sqs_api.node import Node, NodeRefused

    node = Node(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        address = await node.start()
    except NodeRefused as error:
        click.echo(f"holdfast: {error}", err=True)
        return _FAILED
    if node.first_key is not None:
        click.echo("# A new access key; its secret is shown only now:")
        _show(node.first_key)
        click.echo(f"export AWS_DEFAULT_REGION={settings.region}")
        click.echo(f"export AWS_ENDPOINT_URL={address}")
    click.echo(f"listening on {address}")
    sys.stdout.flush()
    gc.enable()
    await stopping.wait()
    await node.stop()
    return 0


def main() -> None:
    """Run isolated from the current folder and the environment's Python settings, so that nobody's own `auth` or
    `storage` package is in the way. (-I would also hide packages of a `pip install --user`.)"""
    if not (sys.flags.ignore_environment and sys.flags.safe_path):
        os.execv(sys.executable, [sys.executable, "-EP", "-m", "sqs_api", *sys.argv[1:]])
    os.umask(0o077)  # messages and keys are for their owner only
    try:
        sys.exit(cli(prog_name="holdfast", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(_WRONG_USE)
    except click.ClickException as error:
        click.echo(f"holdfast: {error.format_message()}", err=True)
        sys.exit(_WRONG_USE)
    except click.Abort:
        sys.exit(_FAILED)


if __name__ == "__main__":
    main()
