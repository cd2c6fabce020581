"""`holdfast policy check`: may somebody do something, and why."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import click

from auth.caller import Caller
from auth.caller import anonymous as nobody
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.coordination import Record
from sqs_api.commands.command_options import (
    CONFIG,
    DATA,
    Refused,
    account_of,
    load,
    opened_identities,
    opened_keyring,
    user_of,
)
from sqs_api.operators.permission_answers import (
    QuestionRefused,
    Target,
    Verdict,
    Wanted,
    judge,
    key_target,
    queue_target,
    wanted,
)
from sqs_api.settings.config import Settings

_REFUSED = 1


@click.group()
def policy() -> None:
    """Understand policies."""


@policy.command()
@DATA
@CONFIG
@click.option("--user", "user_name", help="The calling user [the account itself].")
@click.option("--account", help="The caller's account [the configured one].")
@click.option("--anonymous", is_flag=True, help="The caller has no signature.")
@click.option(
    "--action", required=True, help="Such as SendMessage, kms:Decrypt, or holdfast:Backup."
)
@click.option(
    "--queue",
    help="Name of a queue of the configured account, or an ARN; kms actions are about its key. "
    "Not for holdfast actions.",
)
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Such as aws:SourceIp=10.0.0.1.",
)
def check(
    data: Path | None,
    config_file: Path | None,
    user_name: str | None,
    account: str | None,
    *,
    anonymous: bool,
    action: str,
    queue: str | None,
    conditions: tuple[str, ...],
) -> None:
    """Say whether a call is allowed and which policy decides. Ends with 1 if it is not.

    Reads the data folder, so a server need not run. Conditions see who asks, the queue's tags and
    the time of now; what else a request says, such as its address, is given by --condition.
    """
    settings = load(config_file, {"data": data})
    try:
        asked_for = wanted(action, queue, settings.account, settings.region)
        with opened_identities(settings) as store:
            owner = account_of(settings, account)
            user = None if user_name is None else user_of(store, owner, user_name)
        if anonymous:
            caller = nobody(asked_for.region)
        else:
            caller = Caller(
                owner, asked_for.region, "" if user is None else user.user_id, user=user_name
            )
        target = _target(settings, asked_for, caller)
    except QuestionRefused as error:
        raise Refused(f"--{error.option}: {error}") from error
    _explain(judge(asked_for, target, caller, user, conditions, SystemClock().wall_s()))


def _target(settings: Settings, asked_for: Wanted, caller: Caller) -> Target:
    """The queue, key or service that the action is about. Raises Refused, QuestionRefused."""
    if asked_for.queue is None:
        return Target(asked_for.resource, asked_for.account)
    attributes, tags = _queue_row(settings, asked_for)
    if not asked_for.is_of_key:
        return queue_target(asked_for, attributes, tags)
    reference = attributes.get("KmsMasterKeyId")
    if reference is None:
        return key_target(asked_for, None, caller, lambda *_: None)
    with opened_keyring(settings) as keyring:
        return key_target(asked_for, reference, caller, keyring.find)


def _explain(verdict: Verdict) -> None:
    answer = "allowed" if verdict.allowed else "denied"
    click.echo(f"{answer}: {verdict.who or 'nobody'} {verdict.action} {verdict.resource}")
    click.echo(verdict.rule)
    if verdict.decided_by:
        click.echo(f"decided by: {verdict.decided_by}")
    if not verdict.allowed:
        raise click.exceptions.Exit(_REFUSED)


def _queue_row(settings: Settings, asked_for: Wanted) -> tuple[dict[str, str], dict[str, str]]:
    """The queue's attributes and tags as the catalog has them now. Raises Refused."""
    from cluster.catalog.catalog_records import queue_key
    from cluster.catalog.record_codec import CatalogUnreadable, StoredQueue, stored_entry
    from cluster.catalog.sqlite_coordination import CATALOG_FILE

    account, region, name = asked_for.account, asked_for.region, asked_for.queue
    records = {record.key: record.value for record in _catalog(settings)}
    key = queue_key((account, region, name or ""))
    try:
        queue = stored_entry(key, records[key]) if key in records else None
    except CatalogUnreadable as error:
        place = settings.data / CATALOG_FILE if settings.etcd is None else "the cluster's queues"
        raise Refused(f"cannot read {place}: {error}") from error
    if not isinstance(queue, StoredQueue):
        raise Refused(f"there is no queue {name} of account {account} in {region}")
    return queue.attributes, queue.tags


def _catalog(settings: Settings) -> list[Record]:
    """The records of all queues, of the data folder or of the cluster. Raises Refused."""
    from cluster.catalog.sqlite_coordination import CATALOG_FILE, read_records
    from cluster.coordination.coordination import Unavailable
    from sqs_api.settings.cluster_records import CATALOG_PREFIX, read_once

    if settings.etcd is not None:
        found = read_once(settings, CATALOG_PREFIX, SystemClock(), SystemEntropy())
        if isinstance(found, Unavailable):
            raise Refused(f"cannot read the cluster's queues: {found.reason}")
        return found.records
    file = settings.data / CATALOG_FILE
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            return read_records(database).records
    except sqlite3.Error as error:
        raise Refused(f"cannot read {file}: {error}") from error
