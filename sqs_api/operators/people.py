"""People: users and access keys as the console reads and changes them.

The rules are those of `cluster/keys/identity_store.py`, which `holdfast users` and `holdfast
credentials` use as well.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from auth.policy_document import PolicyRefused
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable

T = TypeVar("T")


class People:
    """Belongs to the event loop's thread."""

    def __init__(self, store: IdentityStore, adopt: Callable[[], None], *, is_shared: bool) -> None:
        """`adopt` lets this host use what has changed. `is_shared`: the records are those of a
        cluster, and a change waits for etcd."""
        self._store = store
        self._adopt = adopt
        self._is_shared = is_shared

    def read(self, look: Callable[[IdentityStore], T]) -> T:
        """Read from memory or a small file. Raises ServiceUnavailable."""
        try:
            return look(self._store)
        except (IdentitiesUnreadable, sqlite3.Error) as error:
            raise ServiceUnavailable(str(error)) from error

    async def change(self, make: Callable[[IdentityStore], T]) -> T:
        """Change something; this host uses it from now on, others in a moment.

        Raises InvalidParameterValue for what the rules refuse, ServiceUnavailable.
        """
        try:
            if self._is_shared:
                made = await asyncio.to_thread(make, self._store)
            else:
                made = make(self._store)
        except (ValueError, PolicyRefused) as error:
            raise InvalidParameterValue(str(error)) from error
        except (IdentitiesUnreadable, sqlite3.Error) as error:
            raise ServiceUnavailable(str(error)) from error
        self._store.look_again()
        self._adopt()
        return made
