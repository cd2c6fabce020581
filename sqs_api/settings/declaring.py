"""Changes catalog and users to match the configuration file, before the service listens.

A host of a cluster cannot make queues while etcd or a shard's leader is away. It starts all the
same, since the others may need it, and makes them later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from auth.credentials import AccessKey
from cluster.catalog.catalog import Catalog
from cluster.keys.identity_store import IdentityStore
from sqs_api.settings.config import Settings, environment
from sqs_api.settings.declarations import DeclaredQueue, DeclaredUser, checked_secret, in_order
from visibility.contract.attributes import conflicting_attribute
from visibility.contract.errors import (
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition

_DECLARED_PRINCIPAL = "AIDADECLARED"

Note = Callable[..., None]
"""Records a change in the audit log: takes the event's name and its fields."""


class DeclarationRefused(Exception):
    """Something that is declared cannot be made; the text says why in one line."""


class DeclaredQueues:
    """The queues that the configuration declares."""

    def __init__(self, settings: Settings, catalog: Catalog, note: Note) -> None:
        self._settings = settings
        self._catalog = catalog
        self._note = note
        self._log = structlog.get_logger("declarations")
        self._left = list(in_order(settings.queues))
        """Those that were not made or changed yet."""

    async def make(self) -> None:
        """Make or change them, as far as a cluster can do so now. Raises DeclarationRefused."""
        try:
            await self._make_left()
        except QueueDeletedRecently as error:
            raise DeclarationRefused(
                f"queue {self._left[0].name} was deleted a moment ago: start again in a minute"
            ) from error
        except ServiceUnavailable as error:
            if self._settings.etcd is None:
                raise DeclarationRefused(f"queue {self._left[0].name}: {error}") from error
            self._log.warning(
                "declared_queues_wait",
                queues=[queue.name for queue in self._left],
                means="etcd or the leader of a shard does not answer; these queues are made or "
                "changed once they do",
                action="none if it ends within a minute; else see `holdfast cluster status`",
            )

    async def make_late(self) -> None:
        """Try again what had to wait; what is refused is logged, and left out."""
        while self._left:
            try:
                await self._make_left()
            except (QueueDeletedRecently, ServiceUnavailable):
                return
            except DeclarationRefused as error:
                del self._left[0]
                self._log.error(
                    "declaration_refused",
                    reason=str(error),
                    means="this queue is not made or changed",
                    action="correct the configuration and start this host again",
                )

    async def _make_left(self) -> None:
        """Raises DeclarationRefused, QueueDeletedRecently, ServiceUnavailable."""
        while self._left:
            queue = self._left[0]
            try:
                await _declare_queue(queue, self._settings, self._catalog, self._note)
            except (QueueDeletedRecently, ServiceUnavailable):
                raise
            except (QueueError, ValueError) as error:
                raise DeclarationRefused(f"queue {queue.name}: {error}") from error
            del self._left[0]


async def _declare_queue(
    declared: DeclaredQueue, settings: Settings, catalog: Catalog, note: Note
) -> None:
    log = structlog.get_logger("declarations").bind(queue=declared.name)
    account = declared.account or settings.account
    region = declared.region or settings.region
    note = partial(note, account=account, region=region, queue=declared.name)
    texts = declared.texts(account, region)
    try:
        queue = catalog.queue(account, region, declared.name)
    except QueueDoesNotExist:
        await catalog.create_queue((account, region, declared.name), texts, declared.tags)
        log.info("queue_declared")
        note("queue_declared", attributes=texts, tags=declared.tags)
        return
    changed = differing(queue, texts)
    if changed:
        before = {name: queue.attributes.get(name) for name in changed}
        await catalog.set_attributes(queue, changed)
        log.info("queue_changed_as_declared", before=before, now=changed)
        note("queue_changed_as_declared", before=before, attributes=changed)
    if not declared.tags.items() <= queue.tags.items():
        await catalog.tag_queue(queue, declared.tags)
        note("queue_changed_as_declared", tags=declared.tags)


def differing(queue: QueueDefinition, texts: Mapping[str, str]) -> dict[str, str]:
    """The declared attributes that an existing queue does not have."""
    return {
        name: text
        for name, text in texts.items()
        if conflicting_attribute(queue.attributes, {name: text}) is not None
    }


async def declare_users(settings: Settings, store: IdentityStore, note: Note) -> None:
    """Make or change the declared users and keys. Raises DeclarationRefused."""
    try:
        if settings.access_key_id is not None and settings.secret_access_key is not None:
            secret = checked_secret(settings.secret_access_key)
            key = AccessKey(settings.access_key_id, secret, settings.account, _DECLARED_PRINCIPAL)
            await _keep(store, key, note)
        for user in settings.users:
            await _declare_user(user, settings, store, note)
    except ValueError as error:
        raise DeclarationRefused(str(error)) from error


async def _declare_user(
    declared: DeclaredUser, settings: Settings, store: IdentityStore, note: Note
) -> None:
    account = declared.account or settings.account
    note = partial(note, account=account, user=declared.name)
    with suppress(ValueError):  # there is one, perhaps since another host made it a moment ago
        await store.add_user(account, declared.name, declared.tags)
        structlog.get_logger("declarations").info("user_declared", user=declared.name)
        note("user_declared", tags=declared.tags)
    user = store.users().find(account, declared.name)
    if user is None:
        raise ValueError(f"user {declared.name} was removed a moment ago: start again")
    if dict(user.tags) != declared.tags:
        await store.set_user_tags(user, declared.tags)
        note("user_changed_as_declared", tags=declared.tags)
    there = store.policies(user)
    for name, document in declared.documents().items():
        if there.get(name) != document:
            await store.put_policy(user, name, document)
            note("user_changed_as_declared", policy=name, document=document)
    for key in declared.access_keys:
        secret = key.secret(environment())
        await _keep(
            store,
            AccessKey(key.access_key_id, secret, account, user.user_id, user=user.name),
            note,
        )


async def _keep(store: IdentityStore, key: AccessKey, note: Note) -> None:
    """Store a new key. An existing one is not changed: it may have been disabled on purpose."""
    if await store.declare_key(key):
        note("access_key_declared", access_key_id=key.access_key_id)
