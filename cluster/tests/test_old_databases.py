"""Databases of earlier versions are taken over complete, even if that is interrupted."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from auth.envelope import BUILT_IN_KEY, NONCE_BYTES, DataKey, WrappingKey
from cluster.catalog import host_records, old_databases
from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import PREFIX, KeptState
from cluster.catalog.host_records import HostRecords, has_records, read_host_records
from cluster.clock import SystemEntropy
from cluster.keys.identity_store import IdentityStore
from cluster.keys.key_owners import Grant
from cluster.keys.key_records import DataKeyNumbers, data_key_of, version_of
from cluster.keys.keyring import CREDENTIALS, DIGESTS, Keyring
from cluster.keys.master_key import WrongMasterKey
from cluster.tests.catalog_file import owner
from cluster.tests.catalogs import opened_catalog
from cluster.tests.stores import ACCOUNT, MASTER
from cluster.tests.virtual_time import SettableClock, some_secrets
from storage.engines.in_use import lock_records
from storage.files.folder import FolderRefused
from visibility.contract.errors import QueueDeletedRecently

HOUR_MS = 3_600_000
OTHERS = "222222222222"
_KEYRING = """
CREATE TABLE secrets (purpose TEXT PRIMARY KEY, wrapped BLOB NOT NULL);
CREATE TABLE named_keys (
    name TEXT PRIMARY KEY, key_id TEXT NOT NULL UNIQUE, enabled INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL);
CREATE TABLE versions (
    version INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, wrapped BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL);
CREATE TABLE data_keys (
    number INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, wrapped BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL);
"""
_LATER = """
CREATE TABLE blocks (
    number INTEGER PRIMARY KEY, version INTEGER NOT NULL, wrapped BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL);
CREATE TABLE owners (
    key_id TEXT PRIMARY KEY, account TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (account, name));
CREATE TABLE grants (
    key_id TEXT NOT NULL, grantee TEXT NOT NULL, operations TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL, PRIMARY KEY (key_id, grantee));
"""
_IDENTITIES = """
CREATE TABLE access_keys (
    access_key_id TEXT PRIMARY KEY, secret BLOB NOT NULL, account TEXT NOT NULL,
    principal TEXT NOT NULL, user TEXT, enabled INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
    session_token BLOB, expires_at_ms INTEGER);
CREATE TABLE users (
    account TEXT NOT NULL, name TEXT NOT NULL, user_id TEXT NOT NULL UNIQUE, tags TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL, PRIMARY KEY (account, name));
CREATE TABLE user_policies (
    account TEXT NOT NULL, user TEXT NOT NULL, name TEXT NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (account, user, name));
INSERT INTO users VALUES ('000000000000', 'ann', 'AIDA1', '{"team": "a"}', 7);
INSERT INTO user_policies VALUES ('000000000000', 'ann', 'all', '{"Statement": []}');
"""


class OldFolder:
    """A data folder whose databases an earlier version made."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.sealed: dict[int, bytes] = {}
        """Messages by the number of the data key that sealed them."""

    def run(self, name: str, script: str) -> None:
        with closing(sqlite3.connect(self.data / name)) as database, database:
            database.executescript(script)

    def make_keyring(self) -> None:
        """Of version 0.1, with a key `orders` and two thousand data keys."""
        master, wrap = WrappingKey(MASTER), self._wrap
        with closing(sqlite3.connect(self.data / "keyring.sqlite")) as database, database:
            database.executescript(_KEYRING)
            secrets = {purpose: SystemEntropy().secret(32) for purpose in (DIGESTS, CREDENTIALS)}
            for purpose, secret in secrets.items():
                row = (purpose, wrap(master, secret, purpose))
                database.execute("INSERT INTO secrets VALUES (?, ?)", row)
            for version, name in ((1, BUILT_IN_KEY), (2, "orders"), (3, "orders")):
                key_id = f"id-of-{name}"
                secret = SystemEntropy().secret(32)
                database.execute(
                    "INSERT OR IGNORE INTO named_keys VALUES (?, ?, 1, 5)", (name, key_id)
                )
                database.execute(
                    "INSERT INTO versions VALUES (?, ?, ?, 5)",
                    (version, name, wrap(master, secret, version_of(version))),
                )
                for number in range(version, 2_001, 500):
                    self._add_data_key(database, number, version, WrappingKey(secret))
        self.secrets = secrets

    def _add_data_key(
        self, database: sqlite3.Connection, number: int, version: int, wrapping: WrappingKey
    ) -> None:
        secret = SystemEntropy().secret(32)
        wrapped = self._wrap(wrapping, secret, data_key_of(version))
        database.execute("INSERT INTO data_keys VALUES (?, ?, ?, 6)", (number, version, wrapped))
        self.sealed[number] = DataKey(number, secret).seal(b"body")

    @staticmethod
    def _wrap(wrapping: WrappingKey, secret: bytes, purpose: str) -> bytes:
        return wrapping.wrap(secret, purpose, SystemEntropy().secret(NONCE_BYTES))

    async def catalog(self) -> tuple[HostRecords, Catalog]:
        """The catalog, as a service of now opens it."""
        records = await HostRecords.open(self.data)
        catalog = await opened_catalog(
            records.below(PREFIX),
            restore_window_ms=HOUR_MS,
        )
        return records, catalog


@pytest.fixture
def folder(tmp_path: Path) -> OldFolder:
    """A folder of version 0.1, at rest."""
    made = OldFolder(tmp_path)
    script = Path(__file__).with_name("catalog_0_1.sql").read_text()
    made.run("catalog.sqlite", script)
    made.make_keyring()
    made.run("identities.sqlite", _IDENTITIES)
    return made


async def check_content(folder: OldFolder) -> None:
    records, catalog = await folder.catalog()
    queues = {queue.name: queue for queue in catalog}
    assert {name: (q.queue_id, q.version, q.receipt_key[-1]) for name, q in queues.items()} == {
        "plain": (1, 1, 1),
        "scoped.fifo": (2, 2, 2),
        "purged": (4, 2, 3),
    }
    assert (queues["plain"].attributes["DelaySeconds"], queues["plain"].tags) == (
        "7",
        {"team": "blue"},
    )
    assert queues["scoped.fifo"].attributes["DeduplicationScope"] == "queue"
    assert queues["scoped.fifo"].deduplication_scope == "messageGroup"
    kept = {each.queue.queue_id: each for each in catalog.kept}
    assert {at: (k.queue.name, k.state, k.continued_as) for at, k in kept.items()} == {
        3: ("purged", KeptState.KEPT, 4),
        5: ("deleted", KeptState.KEPT, 0),
    }
    assert kept[5].queue.settings.visibility_timeout_ms == 9_000
    assert catalog.highest_queue_id == 6
    await records.close()


async def test_everything_is_taken_over_once_and_stays(folder: OldFolder) -> None:
    await check_content(folder)
    assert {file.name for file in folder.data.glob("*.sqlite")} == {"records.sqlite"}
    await check_content(folder)

    records, catalog = await folder.catalog()
    with pytest.raises(QueueDeletedRecently):
        await catalog.create_queue(owner("last"), {}, {})
    assert (await catalog.create_queue(owner("new"), {}, {})).queue_id == 7
    assert (await catalog.restore_queue(5)).attributes["VisibilityTimeout"] == "9"
    await records.close()


async def test_the_first_catalogs_had_no_state_of_deleted_queues(folder: OldFolder) -> None:
    for column in ("state", "continued_as"):
        folder.run("catalog.sqlite", f"ALTER TABLE deleted_queues DROP COLUMN {column}")

    records, catalog = await folder.catalog()

    kept = {each.queue.queue_id: each for each in catalog.kept}
    assert {at: (k.state, k.continued_as) for at, k in kept.items()} == {
        3: (KeptState.KEPT, 0),
        5: (KeptState.KEPT, 0),
    }
    await records.close()


async def test_a_row_that_cannot_be_read_is_named_and_nothing_changes(folder: OldFolder) -> None:
    sound = folder.data / "sound"
    shutil.copy(folder.data / "catalog.sqlite", sound)
    folder.run("catalog.sqlite", "UPDATE queues SET tags = '[]' WHERE name = 'plain'")

    with pytest.raises(sqlite3.DatabaseError, match="queue 'plain' cannot be read"):
        await folder.catalog()

    sound.replace(folder.data / "catalog.sqlite")
    await check_content(folder)


@pytest.mark.parametrize("ends", ["before", "after"])
async def test_it_may_be_interrupted(
    folder: OldFolder, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Before the records are there, or before the old databases are removed."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    if ends == "before":
        monkeypatch.setitem(old_databases.DATABASES, "identities.sqlite", ("identities/", killed))
    else:
        monkeypatch.setattr(host_records, "remove_old", killed)
    with pytest.raises(KeyboardInterrupt):
        await folder.catalog()
    monkeypatch.undo()

    await check_content(folder)
    assert {file.name for file in folder.data.glob("*.sqlite")} == {"records.sqlite"}


async def test_records_can_be_read_without_taking_them_over(folder: OldFolder) -> None:
    before = {record.key: record.value for record in read_host_records(folder.data).records}
    assert has_records(folder.data)
    await check_content(folder)

    after = {record.key: record.value for record in read_host_records(folder.data).records}
    assert before == after


@pytest.mark.parametrize("name", ["keyring.sqlite", "identities.sqlite"])
async def test_a_folder_that_lost_one_of_them_is_refused(folder: OldFolder, name: str) -> None:
    (folder.data / name).unlink()

    with pytest.raises(sqlite3.DatabaseError, match=f"its {name} is missing"):
        await folder.catalog()


async def test_a_folder_with_shards_that_lost_its_records_is_refused(tmp_path: Path) -> None:
    shard = tmp_path / "shard-0"
    shard.mkdir()
    (shard / "CURRENT").touch()

    with pytest.raises(sqlite3.DatabaseError, match=r"its records\.sqlite is missing"):
        await HostRecords.open(tmp_path)


async def test_one_process_at_a_time_has_the_records_open(tmp_path: Path) -> None:
    records = await HostRecords.open(tmp_path)
    with pytest.raises(FolderRefused, match="is in use by process"):
        lock_records(tmp_path)

    await records.close()

    await (await HostRecords.open(tmp_path)).close()


# -- keys and users --------------------------------------------------------------------------------


async def opened_keyring(records: HostRecords, account: str = "") -> Keyring:
    below = records.below("keyring/")
    return await Keyring.open(below, MASTER, SettableClock(), SystemEntropy(), owner=account)


async def test_keys_of_version_0_1_go_on_and_belong_to_the_account_of_the_service(
    folder: OldFolder,
) -> None:
    records = await HostRecords.open(folder.data)
    command = await opened_keyring(records)
    assert command.named("orders").account == "", "a command does not know whose they are"
    await command.close()

    for account in (OTHERS, ACCOUNT):
        keyring = await opened_keyring(records, account)
        for number, sealed in folder.sealed.items():
            named, key = keyring.data_key(number)
            assert key.open(sealed) == b"body"
            assert (named.name, named.account) in ((BUILT_IN_KEY, ""), ("orders", OTHERS))
        assert keyring.digest_key == folder.secrets[DIGESTS]
        assert keyring.named("orders").versions == 2
        assert (await keyring.new_data_key(keyring.named("orders"))).number > 2_000
        await keyring.close()
    keyring = await opened_keyring(records)
    await keyring.add("orders", ACCOUNT)
    await keyring.rotate(keyring.named("orders", OTHERS).key_id)
    assert await keyring.rewrap(keyring.named("orders", OTHERS).key_id) == 4, (
        "two blocks of 0.1, two of now"
    )
    await keyring.change_master(b"o" * 32)
    await records.close()

    records = await HostRecords.open(folder.data)
    below = records.below("keyring/")
    last = await Keyring.open(below, b"o" * 32, SettableClock(), SystemEntropy())
    for number, sealed in folder.sealed.items():
        assert last.data_key(number)[1].open(sealed) == b"body"
    await records.close()
    numbers = DataKeyNumbers({r.key: r.value for r in read_host_records(folder.data).records})
    assert all(number in numbers for number in folder.sealed)
    assert 4 not in numbers
    assert 2_049 in numbers


async def test_another_master_key_changes_nothing(folder: OldFolder) -> None:
    records = await HostRecords.open(folder.data)

    with pytest.raises(WrongMasterKey):
        await Keyring.open(records.below("keyring/"), b"o" * 32, SettableClock(), SystemEntropy())

    assert len((await opened_keyring(records)).names()) == 2
    await records.close()


async def test_owners_grants_and_blocks_of_later_versions_are_taken_over(
    folder: OldFolder,
) -> None:
    folder.run("keyring.sqlite", _LATER)
    folder.run(
        "keyring.sqlite",
        f"INSERT INTO owners VALUES ('id-of-orders', '{OTHERS}', 'bills');"
        f"INSERT INTO grants VALUES ('id-of-orders', '{ACCOUNT}', 'Decrypt', 5);"
        "INSERT INTO blocks VALUES (9, 1, x'00', 5);",
    )
    records = await HostRecords.open(folder.data)

    keyring = await opened_keyring(records, ACCOUNT)

    bills = keyring.named("bills")
    assert (bills.account, bills.grants) == (OTHERS, (Grant(ACCOUNT, ("Decrypt",)),))
    assert (await keyring.new_data_key(bills)).number == 9 * 1024 + 1
    await records.close()


async def test_users_and_access_keys_are_taken_over(folder: OldFolder) -> None:
    secrets = some_secrets()
    secret = secrets.encrypt(b"the secret", "AKIA1").hex()
    folder.run(
        "identities.sqlite",
        f"INSERT INTO access_keys VALUES ('AKIA1', x'{secret}', '{ACCOUNT}', 'AIDA1', 'ann', 0, 8,"
        " NULL, 9)",
    )
    records = await HostRecords.open(folder.data)

    below = records.below("identities/")
    store = await IdentityStore.open(below, secrets, SettableClock(), SystemEntropy())

    (user,), (stored,) = store.stored()
    assert (user.name, user.tags, list(user.policies)) == ("ann", {"team": "a"}, ["all"])
    assert (stored.created_at_ms, stored.user) == (8, "ann")
    (key,) = store.all_keys()
    assert (key.secret_access_key, key.enabled, key.expires_at_ms) == ("the secret", False, 9)
    await records.close()
