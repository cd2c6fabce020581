"""`holdfast serve`, whose flags are the settings, and `holdfast check-config`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import structlog

from sqs_api.commands.options import CONFIG, Refused, load, show_key, show_place
from sqs_api.settings.config import AuthMode, Settings, scalar_fields
from sqs_api.settings.logs import set_up_logs

if TYPE_CHECKING:
    from sqs_api.node import Node

_FAILED = 1


def _flag(name: str, kind: type, description: str, default: object) -> click.Option:
    """The flag of one setting. The settings do all further checks: there is one judge of values."""
    shown = "none" if default is None else default
    parsed: Any = str
    if issubclass(kind, StrEnum):
        parsed = click.Choice([value.value for value in kind])
    return click.Option(
        [f"--{name.replace('_', '-')}"], type=parsed, help=f"{description} [{shown}]"
    )


@click.command()
@CONFIG
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the service until SIGTERM or SIGINT."""
    settings = load(config_file, flags)
    set_up_logs(settings.log)
    sys.exit(_run(settings))


serve.params += [_flag(*field) for field in scalar_fields()]


@click.command("check-config")
@CONFIG
def check_config(config_file: Path | None) -> None:
    """Say whether the service would start with this configuration."""
    settings = load(config_file, {})
    _check_data(settings.data)
    _check_files(settings)
    for name in type(settings).model_fields:
        click.echo(f"{name} = {getattr(settings, name)}")


def _check_data(data: Path) -> None:
    """Look at the data folder if there is one: else the start makes it. Raises Refused."""
    from storage.engines.folder import FORMAT_FILE, FolderRefused, check_folder

    try:
        if (data / FORMAT_FILE).exists():
            check_folder(data)
    except OSError as error:
        raise Refused(f"cannot use data folder {data}: {error.strerror}") from error
    except FolderRefused as error:
        raise Refused(str(error)) from error


def _check_files(settings: Settings) -> None:
    """Look at the files that the settings name, as `serve` does. Raises Refused."""
    from cluster.members.records import MembershipRefused
    from cluster.shards.clock import SystemClock
    from sqs_api.archiving.service import LakeRefused, check_lake
    from sqs_api.http.tls import Tls, TlsUnusable

    certificate, key = settings.tls_certificate, settings.tls_key
    try:
        check_lake(settings)
        _check_membership(settings)
        if certificate is None or key is None:
            return
        tls = Tls(certificate, key, settings.tls_client_ca)
    except (LakeRefused, TlsUnusable, MembershipRefused) as error:
        raise Refused(str(error)) from error
    if tls.expires_now(SystemClock().wall_s()):
        expired = datetime.fromtimestamp(tls.expires_at_s, UTC).isoformat()
        click.echo(f"holdfast: {certificate} expired at {expired}", err=True)


def _check_membership(settings: Settings) -> None:
    """Look at the certificates of a member of a cluster. Raises MembershipRefused."""
    from cluster.peers.settings import PeerSettings
    from cluster.shards.clock import SystemClock
    from sqs_api.settings.membership import etcd_context, member_settings, open_network

    membership = member_settings(settings)
    if membership is not None:
        open_network(membership, PeerSettings(), SystemClock().monotonic_s)
        etcd_context(membership)


@click.command("example-config")
def example_config() -> None:
    """Print a configuration file with every key and its default."""
    from sqs_api.settings.example import example_config as text

    click.echo(text(), nl=False)


def _run(settings: Settings) -> int:
    gc.disable()  # until the node is up and its start-up objects are frozen
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(settings))
    return uvloop.run(_serve(settings))


async def _unless(stopping: asyncio.Event, start: Coroutine[Any, Any, str]) -> str | None:
    """The address, None if a signal came first: a member waits for etcd and the other hosts."""
    starting = asyncio.create_task(start)
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait((starting,))
    return None


def _announce(settings: Settings, node: Node, address: str) -> None:
    """Say on standard output that the service listens, with a new access key. Raises OSError."""
    from sqs_api.admin.service_note import local_url

    if node.first_key is not None:
        click.echo("# A new access key; its secret is shown only now:")
        show_key(node.first_key)
        show_place(settings.region, local_url(address))
    elif settings.etcd is not None and settings.auth is AuthMode.SIGV4:
        click.echo("# Access keys are the cluster's; another one: holdfast credentials add")
    click.echo(f"listening on {address}")
    sys.stdout.flush()


async def _serve(settings: Settings) -> int:
    from sqs_api.node import Node, NodeRefused

    stopping = asyncio.Event()
    node = Node(settings, on_removed=stopping.set)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        address = await _unless(stopping, node.start())
    except NodeRefused as error:
        click.echo(f"holdfast: {error}", err=True)
        return _FAILED
    if address is None:
        return 0
    try:
        _announce(settings, node, address)
    except OSError as error:  # a full disk must not end the service, now or by a flush at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        structlog.get_logger("serve").warning("start_not_shown", error=str(error))
    gc.enable()
    await stopping.wait()
    await node.stop()
    return 0
