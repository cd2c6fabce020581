"""Changes: picks up the changes that commands, or other hosts, make while the node runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

import structlog

from auth.envelope import SealBroken
from auth.sigv4 import Verifier
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring, KeysAway
from sqs_api.gateway.access import Access
from visibility.contract.errors import ServiceUnavailable

CHANGES_CHECK_S = 1.0
"""Interval at which changes made by other processes are picked up."""
SHARED_CHANGES_CHECK_S = 0.5
"""The same in a cluster, where they arrive by a watch, a little later."""
_HEAR_PAUSE_S = 0.2
"""Between questions to etcd: callers without a key cause them."""
_HEAR_S = 4.0
"""Time that a request waits for what it may not know."""
Note = Callable[[str], None]
"""Takes an event for the audit log."""


class Changes:
    """Access keys, users and KMS keys. Belongs to the event loop's thread."""

    def __init__(
        self,
        identities: IdentityStore,
        keyring: Keyring,
        *,
        verifier: Verifier,
        access: Access,
        note: Note,
    ) -> None:
        self._identities = identities
        self._keyring = keyring
        self._verifier = verifier
        self._access = access
        self._note = note
        self.reloads = 0
        """Times that users, access keys or KMS keys were read anew."""
        self._asking = asyncio.Lock()
        self._asked = self._heard = 0
        """Questions to etcd that were begun, and the latest one that was answered."""
        self._asked_s = -_HEAR_PAUSE_S
        self._log = structlog.get_logger("node")

    async def hear(self) -> None:
        """Pick up all changes that were made before this call.

        Raises ServiceUnavailable if etcd does not tell them soon.
        """
        asked = self._asked
        try:
            async with asyncio.timeout(_HEAR_S), self._asking:
                if self._heard <= asked:
                    await self._ask()
        except (TimeoutError, IdentitiesUnreadable, KeysAway) as error:
            self._log.warning("changes_not_heard", error=str(error))
            raise ServiceUnavailable() from None

    async def _ask(self) -> None:
        now_s = asyncio.get_running_loop().time
        await asyncio.sleep(self._asked_s + _HEAR_PAUSE_S - now_s())
        self._asked += 1
        self._asked_s = now_s()
        await asyncio.to_thread(self._identities.catch_up)
        await asyncio.to_thread(self._keyring.catch_up)
        self.look()
        self._heard = self._asked

    def look(self) -> None:
        """Pick up changes by commands, at once. Takes microseconds if there are none."""
        self.look_at_identities()
        self.look_at_keys()

    def look_at_identities(self) -> None:
        """Pick up changes by `holdfast credentials` and `holdfast users`."""
        try:
            if self._identities.changed():
                self._verifier.replace(self._identities.credentials())
                self._access.replace(self._identities.users())
                self._log.info("access_keys_reloaded")
                self._note("access_keys_reloaded")
                self.reloads += 1
        except (IdentitiesUnreadable, sqlite3.Error) as error:
            self._identities.look_again()
            self._log.error("access_keys_unreadable", error=str(error))

    def look_at_keys(self) -> None:
        """Pick up changes by `holdfast keys`."""
        try:
            if self._keyring.reload_if_changed():
                self._log.info("keyring_reloaded")
                self._note("keyring_reloaded")
                self.reloads += 1
        except (SealBroken, sqlite3.Error) as error:
            self._log.error("keyring_unreadable", error=str(error))
