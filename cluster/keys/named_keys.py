"""NamedKeys: the named keys (KmsMasterKeyId) of a keyring as its records have them, and what may be
done to each.

Names belong to accounts; the built-in key is the service's own.
"""

from __future__ import annotations

from collections.abc import Callable

from auth.envelope import BUILT_IN_KEY, WrappingKey
from cluster.coordination.records import View
from cluster.keys import key_records
from cluster.keys.key_owners import Grant, NamedKey, check_grant, key_place, policy_of


class NamedKeys:
    """The keys by name, and their versions by number."""

    def __init__(self) -> None:
        self._wrapping: dict[int, tuple[NamedKey, WrappingKey]] = {}
        """By version."""
        self._stored_versions: dict[int, bytes] = {}
        """Versions as they are stored: a restored etcd may issue a number again."""
        self._keys: dict[str, NamedKey] = {}
        """By row."""
        self._names: dict[tuple[str, str], NamedKey] = {}
        """By account and name."""

    def names(self) -> list[NamedKey]:
        """Every named key, including the built-in one, by account and name."""
        return [self._names[place] for place in sorted(self._names)]

    def find(self, reference: str, account: str) -> NamedKey | None:
        """The key of a KmsMasterKeyId for an account: one of its own, or of the account that an ARN
        names."""
        place = key_place(reference)
        owner = place.account or account
        found = self._names.get((owner, place.name)) or self._names.get(("", place.name))
        if found is None:
            found = next((key for key in self._keys.values() if key.key_id == place.name), None)
            if found is not None and found.account not in (owner, ""):
                return None
        return found

    def named(self, name: str, account: str | None = None) -> NamedKey:
        """The key of that name or id, of the given account or the only one with it. Raises
        KeyError."""
        there = [key for key in self.names() if name in (key.name, key.key_id)]
        own = [key for key in there if account is None or key.account in (account, "")]
        if len(own) != 1:
            raise KeyError(name)
        return own[0]

    # -- what may be done --------------------------------------------------------------------------

    def _check_free(self, name: str, account: str) -> None:
        """Raise ValueError if an account has a key of that name."""
        if not self._names.keys().isdisjoint(((account, name), ("", name))):
            raise ValueError(f"there is a key {name} already")

    def _key_to_grant(self, name: str, grant: Grant) -> NamedKey:
        """The key that a grant is for. Raises KeyError, ValueError."""
        check_grant(grant)
        named = self.named(name)
        if not named.account:
            raise ValueError(f"{named.name} cannot be granted: it belongs to no account")
        return named

    def _key_to_revoke(self, name: str, grantee: str) -> NamedKey:
        """The key that a grant is taken back of. Raises KeyError, ValueError."""
        named = self.named(name)
        if grantee not in {grant.grantee for grant in named.grants}:
            raise ValueError(f"{named.name} is not granted to {grantee}")
        return named

    def _key_to_switch(self, name: str) -> NamedKey:
        """The key to enable or disable. Raises KeyError, ValueError."""
        named = self.named(name)
        if named.name == BUILT_IN_KEY:
            raise ValueError(f"{BUILT_IN_KEY} is always enabled")
        return named

    # -- the view ----------------------------------------------------------------------------------

    def _load(
        self, view: View, cipher: Callable[[key_records.StoredNamedKey, int], WrappingKey]
    ) -> None:
        """Load the named keys and their versions; `cipher` gives the key of a version. Raises
        SealBroken."""
        there: set[int] = set()
        for row, value in view.below(key_records.KEYS).items():
            stored = key_records.decoded(value, key_records.StoredNamedKey)
            named = self._named(row, stored)
            for version in stored.versions:
                if self._stored_versions.get(version) != stored.versions[version]:
                    self._wrapping[version] = named, cipher(stored, version)
                    self._stored_versions[version] = stored.versions[version]
            there.update(stored.versions)
            named.version, named.versions = max(stored.versions), len(stored.versions)
        for version in self._wrapping.keys() - there:
            del self._wrapping[version], self._stored_versions[version]

    def _named(self, row: str, stored: key_records.StoredNamedKey) -> NamedKey:
        """The named key of a record, brought up to date in place: data keys refer to it."""
        account, name = row.split("/", 1)
        named = self._keys.get(row)
        if named is None or named.key_id != stored.key_id:
            named = NamedKey(name, stored.key_id, row, account)
            self._keys[row] = self._names[account, name] = named
        named.enabled = stored.enabled
        named.grants = tuple(Grant(*each) for each in sorted(stored.grants.items()))
        named.policy = policy_of(named.grants)
        return named
