"""The keys and users of a cluster go on as those of a single host that is restored from its
backup."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from auth.envelope import BUILT_IN_KEY, SealBroken
from cluster.clock import SystemEntropy
from cluster.keys import shared_identities, shared_key_records
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.key_owners import Grant
from cluster.keys.master_key import WrongMasterKey
from cluster.keys.shared_identities import SharedIdentities
from cluster.keys.shared_key_records import BLOCK
from cluster.keys.shared_keyring import SharedKeyring
from cluster.keys.single_keys import write_identities, write_keyring
from cluster.keys.sqlite_identities import FILE_NAME, SqliteIdentities
from cluster.keys.sqlite_keyring import numbers_in
from cluster.tests.key_folder import ACCOUNT, MASTER, Folder
from cluster.tests.shared_stores import SharedHosts, shared_hosts
from cluster.tests.virtual_time import SettableClock, some_secrets

GRANT = Grant("111111111111", ("Decrypt",))


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[SharedHosts]:
    with shared_hosts(request, "simulated") as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with ExitStack() as stack:
        yield Folder(tmp_path, stack)


@pytest.fixture
def keyring(hosts: SharedHosts) -> Iterator[SharedKeyring]:
    with closing(SharedKeyring(hosts.records(), MASTER, SettableClock(), SystemEntropy())) as made:
        yield made


def copied(hosts: SharedHosts, prefix: str) -> dict[str, bytes]:
    return {prefix + each.key: each.value for each in hosts.snapshot().records}


def written(hosts: SharedHosts, folder: Folder, master: bytes = MASTER) -> None:
    records = copied(hosts, shared_key_records.PREFIX)
    write_keyring(folder.file.parent, records, master, SystemEntropy())


def test_all_keys_go_on(hosts: SharedHosts, keyring: SharedKeyring, folder: Folder) -> None:
    orders = keyring.add("orders", ACCOUNT)
    keyring.add("paused", ACCOUNT)
    keyring.set_enabled("paused", False)
    keyring.grant("orders", GRANT)
    sealed = {key.number: key for key in [keyring.new_data_key(orders) for _ in range(3)]}
    keyring.rotate("orders")
    for named in (orders, keyring.named(BUILT_IN_KEY)):
        key = keyring.new_data_key(named)
        sealed[key.number] = key
    secret = keyring.secrets.encrypt(b"a secret", "p")

    written(hosts, folder)

    single = folder.open()
    assert single.digest_key == keyring.digest_key
    assert single.secrets.decrypt(secret, "p") == b"a secret"
    shown = [
        [(key.name, key.account, key.key_id, key.enabled, key.grants, key.versions) for key in each]
        for each in (single.names(), keyring.names())
    ]
    assert shown[0] == shown[1]
    for number, key in sealed.items():
        named, found = single.data_key(number)
        assert found.open(key.seal(b"x")) == b"x"
        assert named.name == keyring.data_key(number)[0].name
    with pytest.raises(SealBroken):
        single.data_key(3 * BLOCK + 2)


def test_new_data_keys_and_changes_follow(
    hosts: SharedHosts, keyring: SharedKeyring, folder: Folder
) -> None:
    """A number of a block is never given to another key."""
    orders = keyring.add("orders", ACCOUNT)
    old = keyring.new_data_key(orders)
    written(hosts, folder)
    single = folder.open()

    new = single.new_data_key(single.named("orders"))
    single.rotate("orders")
    assert single.rewrap("orders") == 3, "the block, its last key and the new one"
    single.change_master(b"n" * 32)

    again = folder.open(b"n" * 32)
    assert new.number > BLOCK
    for key in (old, new):
        assert again.data_key(key.number)[1].open(key.seal(b"x")) == b"x"
    assert again.named("orders").versions == 1
    with closing(sqlite3.connect(folder.file)) as database:
        numbers = numbers_in(database)
        assert all(number in numbers for number in (old.number, BLOCK, new.number))
        assert new.number + 1 not in numbers


def test_another_master_key_is_refused(
    hosts: SharedHosts, keyring: SharedKeyring, folder: Folder
) -> None:
    with pytest.raises(WrongMasterKey, match="the backup's keys are not under this master key"):
        written(hosts, folder, b"x" * 32)


_POLICY = '{"Statement": {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}}'


def test_users_and_access_keys_go_on(hosts: SharedHosts, tmp_path: Path) -> None:
    secrets, clock = some_secrets(), SettableClock()
    records = SharedIdentities(hosts.records(IdentitiesUnreadable))
    with closing(IdentityStore(records, secrets, clock, SystemEntropy())) as shared:
        user = shared.add_user(ACCOUNT, "ann", {"team": "x"})
        shared.put_policy(user, "all", _POLICY)
        key = shared.add_key(ACCOUNT, user=user)
        records.uses.write({key.access_key_id: 20_000}, {key.access_key_id})
        kept = records.read().all_users(), records.read().all_keys()

    write_identities(tmp_path, copied(hosts, shared_identities.PREFIX))

    with closing(SqliteIdentities(tmp_path / FILE_NAME)) as single:
        assert (single.all_users(), single.all_keys()) == kept
        assert single.uses.read() == {key.access_key_id: 20_000}
