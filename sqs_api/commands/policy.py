"""`holdfast policy check`: may somebody do something, and why."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click

from auth.caller import Caller
from auth.caller import anonymous as nobody
from auth.conditions import Keys
from auth.policy import Asked, Decision, Principal, decide
from auth.policy_document import Kind, Policy, PolicyRefused, read_policy
from cluster.coordination.coordination import Record
from cluster.keys.key_owners import OPERATIONS
from cluster.shards.clock import SystemClock, SystemEntropy
from sqs_api.admin.actions import ADMIN_ACTIONS, READ_METRICS
from sqs_api.cloudwatch.requests import MONITORING_ACTIONS
from sqs_api.commands.options import (
    CONFIG,
    DATA,
    Refused,
    account_of,
    load,
    opened_identities,
    opened_keyring,
    user_of,
)
from sqs_api.operators.routes import QUEUE_ACTIONS, SERVICE_ACTIONS
from sqs_api.settings.config import Settings
from visibility.contract.actions import ACTIONS
from visibility.contract.naming import parse_arn

_REFUSED = 1
_KEY_ACTIONS = frozenset(f"kms:{operation}" for operation in OPERATIONS)


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
    from sqs_api.gateway.condition_keys import said_of_caller

    settings = load(config_file, {"data": data})
    asked_for = _asked_for(settings, action, queue)
    with opened_identities(settings) as store:
        owner = account_of(settings, account)
        user = None if user_name is None else user_of(store, owner, user_name)
    if anonymous:
        caller = nobody(asked_for.region)
    else:
        caller = Caller(
            owner, asked_for.region, "" if user is None else user.user_id, user=user_name
        )
    principal = Principal(caller.account, caller.arn, caller.principal, caller.user)
    target = _target(settings, asked_for, caller)
    said = said_of_caller(caller, user, target.tags, SystemClock().wall_s())
    keys = {**{k: v for k, v in said if v[0]}, **target.said}
    keys |= {
        key.lower(): (value,) for key, _, value in (text.partition("=") for text in conditions)
    }
    asked = Asked(principal, asked_for.action, target.arn, target.account, lambda: keys)
    decision = decide(asked, () if user is None else user.policies, target.policy)
    _explain(asked, decision)


class _AskedFor(NamedTuple):
    action: str
    resource: str
    account: str
    region: str
    queue: str | None

    @property
    def is_of_key(self) -> bool:
        """True for a permission on the queue's key."""
        return self.action in _KEY_ACTIONS


class _Target(NamedTuple):
    """The queue, its key or the service, with its owner and resource-based policy."""

    arn: str
    account: str
    policy: Policy | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    said: Keys = MappingProxyType({})
    """Condition keys beside those of the caller."""


def _asked_for(settings: Settings, action: str, queue: str | None) -> _AskedFor:
    """The permission in question, and the queue or service that it is about. Raises Refused."""
    if action in ADMIN_ACTIONS | MONITORING_ACTIONS | SERVICE_ACTIONS:
        return _AskedFor(action, "*", settings.account, settings.region, None)
    prefix, _, name = action.rpartition(":")
    is_named = action in _KEY_ACTIONS or action in QUEUE_ACTIONS or action == READ_METRICS
    if not is_named and (prefix.lower() not in ("", "sqs") or name not in ACTIONS):
        raise Refused(f"--action: there is no action {action}")
    if queue is None:
        raise Refused("--queue: is needed for this action")
    resource = queue
    if not queue.startswith("arn:"):
        resource = f"arn:aws:sqs:{settings.region}:{settings.account}:{queue}"
    parsed = parse_arn(resource)
    if parsed is None:
        raise Refused(f"--queue: {queue} names no queue")
    single = action if is_named else ACTIONS[name].permission
    return _AskedFor(single, resource, parsed.account, parsed.region, parsed.name)


def _target(settings: Settings, asked_for: _AskedFor, caller: Caller) -> _Target:
    """The queue, key or service that the action is about. Raises Refused."""
    if asked_for.queue is None:
        return _Target(asked_for.resource, asked_for.account)
    attributes, tags = _queue_row(settings, asked_for)
    if asked_for.is_of_key:
        return _key_of(settings, asked_for, attributes.get("KmsMasterKeyId"), caller)
    try:
        text = attributes.get("Policy")
        policy = None if text is None else read_policy(text, Kind.QUEUE)
    except PolicyRefused as error:
        raise Refused(f"the policy of {asked_for.queue}: {error}") from error
    return _Target(asked_for.resource, asked_for.account, policy, tags)


def _key_of(
    settings: Settings, asked_for: _AskedFor, reference: str | None, caller: Caller
) -> _Target:
    """The key of a queue; its policy is its grants. Raises Refused."""
    from sqs_api.gateway.key_access import said_to_key

    if reference is None:
        raise Refused(f"--queue: {asked_for.queue} names no key")
    with opened_keyring(settings) as keyring:
        named = keyring.find(reference, asked_for.account)
    if named is None:
        raise Refused(f"--queue: {asked_for.queue} names the key {reference}, which there is not")
    if not named.account:
        raise Refused(
            f"--queue: {asked_for.queue} names the built-in key, which is for every caller of its "
            "account"
        )
    policy = None if named.policy is None else read_policy(named.policy, Kind.KEY)
    said = said_to_key(caller.account, asked_for.region, asked_for.resource)
    arn = f"arn:aws:kms:{asked_for.region}:{named.account}:key/{named.key_id}"
    return _Target(arn, named.account, policy, said=said)


def _explain(asked: Asked, decision: Decision) -> None:
    who = asked.principal.arn or "nobody"
    verdict = "allowed" if decision.allowed else "denied"
    click.echo(f"{verdict}: {who} {asked.action} {asked.resource}")
    click.echo(decision.rule.value.format(action=asked.action))
    if decision.source:
        source = decision.source
        if asked.action in _KEY_ACTIONS:
            source = source.removeprefix("queue policy, ")  # a grant, which names itself
        click.echo(f"decided by: {source}")
    if not decision.allowed:
        raise click.exceptions.Exit(_REFUSED)


def _queue_row(settings: Settings, asked_for: _AskedFor) -> tuple[dict[str, str], dict[str, str]]:
    """The queue's attributes and tags as the catalog has them now. Raises Refused."""
    from cluster.catalog.record_codec import CatalogUnreadable, StoredQueue, stored_entry
    from cluster.catalog.records import queue_key
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
    from sqs_api.settings.coordination import CATALOG_PREFIX, read_once

    if settings.etcd is not None:
        found = read_once(settings, CATALOG_PREFIX, SystemClock(), SystemEntropy())
        if found is None:
            raise Refused("cannot read the cluster's queues: etcd does not answer")
        return found.records
    file = settings.data / CATALOG_FILE
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            return read_records(database).records
    except sqlite3.Error as error:
        raise Refused(f"cannot read {file}: {error}") from error
