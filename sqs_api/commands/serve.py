"""`holdfast serve`, whose flags are the settings, and `holdfast check-config`."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import signal
import sqlite3
import sys
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
import structlog

from sqs_api.commands import command_options
from sqs_api.settings.config import (
    AuthMode,
    ConfigRefused,
    Settings,
    environment_settings,
    file_of,
    shards_of,
)
from sqs_api.settings.logs import set_up_logs
from sqs_api.settings.refusals import placed
from sqs_api.workers.member_workers import workers_there

if TYPE_CHECKING:
    from auth.credentials import AccessKey
    from sqs_api.workers.forked import Started


_FILES = 30
_FILES_OF_SHARD = 10
"""About what a new folder takes: 34 files with one shard, 97 with eight."""
_READER_S = 1.0
"""Time for a reader of standard output, before the service goes on without it."""


@click.command()
@command_options.CONFIG
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the service until SIGTERM or SIGINT."""
    settings = command_options.load(config_file, flags)
    set_up_logs(settings.log)
    sys.exit(_run(settings))


serve.params += command_options.setting_flags()


@click.command("check-config")
@command_options.CONFIG
def check_config(config_file: Path | None) -> None:
    """Say whether the service would start with this configuration."""
    settings = command_options.load(config_file, {})
    _check_data(settings)
    try:
        _check_files(settings)
        _check_queues(settings)
    except ConfigRefused as error:
        raise command_options.Refused(
            placed(str(error), file_of(config_file), environment_settings())
        ) from error
    for name in type(settings).model_fields:
        click.echo(f"{name} = {getattr(settings, name)}")


def _check_data(settings: Settings) -> None:
    """Look at the data folder if there is one: else the start makes it. Raises Refused."""
    from sqs_api.settings.reserve import check_reserve
    from storage.files.folder import FORMAT_FILE, FolderRefused, check_folder, open_folder

    data, shards = settings.data, shards_of(settings)
    try:
        if (data / FORMAT_FILE).exists():
            check_folder(data)
            shards = len(open_folder(data))
        check_reserve(settings, shards)
    except OSError as error:
        raise command_options.Refused(f"cannot use data folder {data}: {error.strerror}") from error
    except FolderRefused as error:
        raise command_options.Refused(str(error)) from error


def _check_files(settings: Settings) -> None:
    """Look at the files that the settings name, as `serve` does. Raises ConfigRefused."""
    from cluster.clock import SystemClock
    from cluster.members.member_records import MembershipRefused
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
        raise ConfigRefused(str(error)) from error
    if tls.expires_now(SystemClock().wall_s()):
        expired = datetime.fromtimestamp(tls.expires_at_s, UTC).isoformat()
        click.echo(f"holdfast: {certificate} expired at {expired}", err=True)


def _check_queues(settings: Settings) -> None:
    """Check the declared queues beside those of the data folder; those of a cluster are in its
    etcd, which is not asked. Raises ConfigRefused."""
    from cluster.catalog.host_records import has_records
    from cluster.catalog.record_codec import CatalogUnreadable
    from cluster.clock import SystemClock
    from cluster.members.copied_records import catalog_in
    from sqs_api.settings.rehearsal import check_declared_queues

    if not settings.queues or settings.etcd is not None:
        return
    try:
        records = catalog_in(settings.data) if has_records(settings.data) else []
        check_declared_queues(settings, records, int(SystemClock().wall_s() * 1000))
    except (CatalogUnreadable, sqlite3.Error, OSError) as error:
        click.echo(
            f"holdfast: the declared queues are not checked: {settings.data}: {error}", err=True
        )


def _check_membership(settings: Settings) -> None:
    """Look at the certificates of a member of a cluster. Raises MembershipRefused."""
    from cluster.clock import SystemClock
    from cluster.peers.peer_settings import PeerSettings
    from sqs_api.settings.member_settings import etcd_context, member_settings, open_network

    membership = member_settings(settings)
    if membership is not None:
        open_network(membership, PeerSettings(), SystemClock().monotonic_s)
        etcd_context(membership)


@click.command("example-config")
def example_config() -> None:
    """Print a configuration file with every key and its default."""
    from sqs_api.settings.config import example_config as text

    click.echo(text(), nl=False)


@click.command("serve-worker", hidden=True)
@click.argument("pair", type=int)
@click.argument("descriptors", type=int)
def serve_worker(pair: int, descriptors: int) -> None:
    """Be a worker: the supervisor starts this, and gives it sockets. Not for people."""
    from sqs_api.commands.worker_main import run_worker

    sys.exit(run_worker(pair, descriptors))


def _check_descriptors(settings: Settings) -> None:
    """Let this process, and those that it starts, open as many files as they may. Raises Failed if
    these are too few to start."""
    from sqs_api.http.http_limits import raise_descriptor_limit

    limit = raise_descriptor_limit()
    shards = -(-shards_of(settings) // workers_there(settings))
    needed = _FILES + _FILES_OF_SHARD * shards
    if 0 <= limit < needed:
        raise command_options.Failed(
            f"this process may open {limit} files at most, and {shards} shards need {needed} to "
            "start, and more under load: raise the limit (ulimit -Hn, LimitNOFILE of systemd)"
        )


def _run(settings: Settings) -> int:
    gc.disable()  # until the node is up and its start-up objects are frozen
    _check_descriptors(settings)
    started: Sequence[Started] = ()
    if workers_there(settings) > 1:
        from sqs_api.commands.supervised import fork_processes

        try:
            started = fork_processes(settings)
        except OSError as error:
            raise command_options.Failed(f"cannot start workers: {error.strerror}") from error
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(settings, started))
    return uvloop.run(_serve(settings, started))


async def _unless(stopping: asyncio.Event, start: Coroutine[Any, Any, _Running]) -> _Running | None:
    """The running service, None if a signal came first: a member waits for etcd and the others."""
    starting = asyncio.create_task(start)
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait((starting,))
    return None


def _announce(settings: Settings, node: _Running) -> None:
    """Say on standard output that the service listens, with a new access key. Raises OSError, also
    if a reader leaves the output full: to write would block the service."""
    from sqs_api.settings.service_note import local_url

    if not select.select([], [sys.stdout], [], _READER_S)[1]:
        raise BlockingIOError(errno.EAGAIN, "nobody reads standard output")

    if node.first_key is not None:
        click.echo("# A new access key; its secret is shown only now:")
        command_options.show_key(node.first_key)
        command_options.show_place(settings.region, local_url(node.address))
    elif settings.etcd is not None and settings.auth is AuthMode.SIGV4:
        click.echo("# Access keys are the cluster's; another one: holdfast credentials add")
    click.echo(f"listening on {node.address}")
    sys.stdout.flush()


class _Running(Protocol):
    """The running service: one process, or the supervisor of several workers."""

    @property
    def address(self) -> str:
        """The address that it listens on."""

    @property
    def first_key(self) -> AccessKey | None:
        """The access key of a first start, to be shown once."""

    async def stop(self) -> None:
        """Finish the requests under way, and close everything."""


async def _start(
    settings: Settings, stopping: asyncio.Event, started: Sequence[Started]
) -> _Running:
    """Raises NodeRefused."""
    if not started:
        from sqs_api.node import start_node

        return await start_node(settings, on_removed=stopping.set)
    from sqs_api.commands.supervised import start_supervised

    return await start_supervised(settings, started, stopping.set)


async def _serve(settings: Settings, started: Sequence[Started]) -> int:
    from sqs_api.start_refusals import NodeRefused

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        node = await _unless(stopping, _start(settings, stopping, started))
    except NodeRefused as error:
        raise command_options.Failed(str(error)) from error
    if node is None:
        return 0
    try:
        _announce(settings, node)
    except OSError as error:  # a full disk must not end the service, now or by a flush at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        structlog.get_logger("serve").warning("start_not_shown", error=str(error))
    gc.enable()
    await stopping.wait()
    await node.stop()
    return 0
