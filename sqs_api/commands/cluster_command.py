"""`holdfast cluster`: what hosts of a cluster need."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from typing_extensions import override

from sqs_api.commands.command_options import Refused, load, setting_flags, show_key, show_place
from sqs_api.commands.hosts import drain, remove, status, undrain, upgrade, wait
from sqs_api.settings.cluster_settings import ClusterSettings
from sqs_api.settings.config import AuthMode, Settings

if TYPE_CHECKING:
    from cluster.clock import Clock
    from sqs_api.trial.layout import Kept, Layout
    from sqs_api.trial.trial_cluster import TrialCluster


Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def cluster() -> None:
    """Prepare, try and look after clusters of several hosts."""


for _command in (status, drain, undrain, remove, wait, upgrade):
    cluster.add_command(_command)


class HostNames(click.ParamType[tuple[str, ...]]):
    """Names of hosts, separated by commas."""

    name = "names"

    @override
    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, ...]:
        from sqs_api.settings.cluster_settings import checked_hosts

        try:
            return checked_hosts(str(value))
        except ValueError as error:
            self.fail(str(error), param, context)


@cluster.command()
@click.option("--hosts", required=True, type=HostNames(), help="Names of hosts: a,b,c.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the authority and, in one folder each, of the hosts' files.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=730,
    show_default=True,
    help="Days for which the certificates are valid.",
)
@click.option(
    "--cluster-number",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of the hosts' cluster in its fleet.",
)
@click.option("--gateway", "is_gateway", is_flag=True, help="They are gateways of the fleet.")
def certificates(
    *, hosts: tuple[str, ...], out: Path, days: int, cluster_number: int, is_gateway: bool
) -> None:
    """Make or renew the certificates that hosts show each other.

    The private authority in OUT is made once; keep its ca.key where no host has it. OUT/HOST has
    the files for peer_ca, peer_certificate and peer_key of one host. Running hosts take over a
    renewed peer.pem by themselves.
    """
    from cluster.clock import SystemClock
    from cluster.peers.certificates import CertificatesRefused, make_certificates
    from cluster.peers.roles import GATEWAY_MARK, cluster_mark

    mark = GATEWAY_MARK if is_gateway else cluster_mark(cluster_number)
    try:
        made = make_certificates(out, hosts, days, SystemClock().wall_s(), mark=mark)
    except CertificatesRefused as error:
        raise Refused(str(error)) from error
    for host, files in made.items():
        click.echo(f"{host}: {files.certificate}, valid until {files.expires_at:%Y-%m-%d}")


def data_of_trial(folder: str) -> Callable[[Command], Command]:
    """The option --data of a trial; `folder` is its default."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        default=Path(folder),
        show_default=True,
        help="Folder of everything; made if it does not exist, used again by the next start.",
    )


PORT_OF_TRIAL = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9324,
    show_default=True,
    help="Port of the balancer; 0 picks a free one.",
)


MACHINES_OF_TRIAL = click.option(
    "--machine", "machines", type=(str, str, str), multiple=True, hidden=True
)


@cluster.command("try")
@data_of_trial("holdfast-cluster")
@PORT_OF_TRIAL
@MACHINES_OF_TRIAL
def try_cluster(
    data: Path, port: int, machines: tuple[tuple[str, str, str], ...], **flags: str | None
) -> None:
    """Run a cluster of three hosts on this machine until SIGTERM or SIGINT.

    Starts three members of etcd, three hosts and, if haproxy is installed, a balancer, all on
    loopback. A process that ends is started again. Flags of `holdfast serve`, such as
    --aws-waits off, are given to each host, and so is the environment. It is for trying and
    testing: all hosts share one machine.
    """
    run_trial(data, port, machines, flags)


def run_trial(
    data: Path,
    port: int,
    machines: tuple[tuple[str, str, str], ...],
    flags: Mapping[str, str | None],
    *,
    is_fleet: bool = False,
) -> None:
    """Run a cluster or a fleet on this machine. Raises Refused."""
    from cluster.clock import SystemClock, SystemEntropy
    from sqs_api.settings.config import workers_of
    from sqs_api.trial.layout import WORKERS_MAX, Machine, TrialRefused, opened

    apart = {host: Machine(address, namespace) for host, address, namespace in machines}
    given = {name: value for name, value in flags.items() if value is not None}
    known = ("auth", "region", "workers")
    place = load(None, {name: given[name] for name in known if name in given})
    if workers_of(place) > WORKERS_MAX:
        raise Refused(f"workers: at most {WORKERS_MAX} a host here, which have ports")
    given["auth"] = place.auth.value
    clock = SystemClock()
    try:
        with opened(data, clock, SystemEntropy(), apart, is_fleet=is_fleet) as layout:
            trial = _trial(layout, port, given, clock)
            asyncio.run(_try(trial, layout.kept, place))
    except TrialRefused as error:
        raise Refused(str(error)) from error


OF_THE_TRIAL = {
    "host",
    "port",
    "data",
    "master_key_file",
    "access_key_id",
    "trusted_proxies",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    *ClusterSettings.model_fields,
} - {"replication", "load_report_s"}
"""Settings that the trial itself gives to its hosts, or that its balancer cannot follow."""
try_cluster.params += setting_flags(without=OF_THE_TRIAL)


def _trial(layout: Layout, port: int, flags: dict[str, str], clock: Clock) -> TrialCluster:
    from sqs_api.settings.config import without_secrets
    from sqs_api.trial.trial_cluster import TrialCluster

    def say(line: str) -> None:
        click.echo(f"holdfast: {line}", err=True)

    return TrialCluster(layout, port, flags, without_secrets(), clock, say)


async def _try(trial: TrialCluster, kept: Kept, place: Settings) -> None:
    """Run the cluster until a signal. Raises TrialRefused."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    starting = asyncio.create_task(trial.start())
    asked = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            _greet(trial, kept, place)
            await asked
    finally:
        starting.cancel()
        asked.cancel()
        await trial.stop()


def _greet(trial: TrialCluster, kept: Kept, place: Settings) -> None:
    is_open = place.auth is AuthMode.OPEN
    click.echo(f"# {'Any access key will do' if is_open else 'The access key of this cluster'}:")
    show_key(kept)
    show_place(place.region, trial.endpoint)
    others = [url for url in trial.hosts.values() if url != trial.endpoint]
    balanced = "" if trial.is_balanced else "there is no haproxy; "
    click.echo(f"# {balanced}{'hosts' if trial.is_balanced else 'other hosts'}: {' '.join(others)}")
    settings = shlex.quote(str(trial.settings))
    click.echo(f"# another key: holdfast credentials --config {settings} add")
    click.echo(f"listening on {trial.endpoint}")
