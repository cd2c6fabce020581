"""UserAdmin: users and access keys as the console reads and changes them.

The rules are those of `cluster/keys/identity_store.py`, which `holdfast users` and `holdfast
credentials` use as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from auth.policy_document import PolicyRefused
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable

T = TypeVar("T")


class UserAdmin:
    """Reads and changes them for one caller."""

    def __init__(self, store: IdentityStore, used: Mapping[str, int]) -> None:
        """`used` is `Verifier.used`."""
        self._store = store
        self._used = used

    def key_uses(self) -> dict[str, int]:
        """The days on which keys were used last; of other hosts those that are written. Raises
        ServiceUnavailable."""
        days, own = self.read(IdentityStore.key_uses), dict(self._used)
        return days | {key_id: max(day, days.get(key_id, 0)) for key_id, day in own.items()}

    def read(self, look: Callable[[IdentityStore], T]) -> T:
        """Read from memory. Raises ServiceUnavailable."""
        try:
            return look(self._store)
        except IdentitiesUnreadable as error:
            raise ServiceUnavailable(str(error)) from error

    async def change(self, make: Callable[[IdentityStore], Awaitable[T]]) -> T:
        """Change something; this host uses it from now on, others in a moment.

        Raises InvalidParameterValue for what the rules refuse, ServiceUnavailable.
        """
        try:
            return await make(self._store)
        except (ValueError, PolicyRefused) as error:
            raise InvalidParameterValue(str(error)) from error
        except IdentitiesUnreadable as error:
            raise ServiceUnavailable(str(error)) from error
