"""Keys belong to accounts, and can be granted to others; keys of version 0.1 get an owner."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from auth.envelope import BUILT_IN_KEY
from auth.policy_document import Kind, read_policy
from cluster.keys.key_owners import Grant
from cluster.tests.key_folder import ACCOUNT, Folder
from cluster.tests.shared_stores import KINDS, key_folder
from storage.copies.second_copy import copy_of

OTHERS = "222222222222"


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    with key_folder(request, request.param, tmp_path) as folder:
        yield folder


@pytest.fixture
def file_folder(tmp_path: Path) -> Iterator[Folder]:
    """For what holds for files only."""
    with ExitStack() as stack:
        yield Folder(tmp_path, stack)


def test_each_account_has_its_own_keys(folder: Folder) -> None:
    keyring = folder.open()
    mine, others = (keyring.add("orders", account) for account in (ACCOUNT, OTHERS))

    for found in (keyring, folder.open()):
        for account, key in ((ACCOUNT, mine), (OTHERS, others)):
            arn = f"arn:aws:kms:us-east-1:{account}"
            for reference in ("orders", "alias/orders", key.key_id):
                assert found.find(reference, account) == key
            for reference in (f"{arn}:alias/orders", f"{arn}:key/{key.key_id}"):
                for asking in (ACCOUNT, OTHERS):
                    assert found.find(reference, asking) == key
        assert found.find(others.key_id, ACCOUNT) is None
        assert found.find(f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{others.key_id}", OTHERS) is None
    assert [(key.account, key.name) for key in keyring.names()] == [
        ("", BUILT_IN_KEY),
        (ACCOUNT, "orders"),
        (OTHERS, "orders"),
    ]
    with pytest.raises(ValueError, match="already"):
        keyring.add("orders", OTHERS)
    with pytest.raises(KeyError):  # it does not reveal which of them
        keyring.rotate("orders")


def test_keys_of_one_name_are_rotated_and_disabled_apart(folder: Folder) -> None:
    keyring = folder.open()
    mine, others = (keyring.add("orders", account) for account in (ACCOUNT, OTHERS))
    data_keys = [keyring.new_data_key(key) for key in (mine, others)]

    keyring.rotate("orders", OTHERS)
    keyring.set_enabled("orders", False, OTHERS)
    assert keyring.rewrap("orders", OTHERS) == 1

    assert (mine.versions, mine.enabled, others.enabled) == (1, True, False)
    again = folder.open()
    for named, data_key in zip((mine, others), data_keys, strict=True):
        owner, key = again.data_key(data_key.number)
        assert owner == named
        assert key.open(data_key.seal(b"x")) == b"x"


def test_grants_are_taken_over_by_a_running_server(folder: Folder) -> None:
    server, command = folder.open(), folder.open()
    command.add("orders", ACCOUNT)
    assert folder.take_over(server)
    seen = server.named("orders", ACCOUNT)
    assert (seen.grants, seen.policy) == ((), None)

    command.grant("orders", Grant(OTHERS, ("GenerateDataKey", "Decrypt")), ACCOUNT)
    command.grant("orders", Grant(OTHERS, ("Decrypt",)), ACCOUNT)

    assert folder.take_over(server)
    assert seen.grants == (Grant(OTHERS, ("Decrypt",)),)
    assert read_policy(seen.policy or "", Kind.KEY).statements[0].allows
    command.revoke("orders", OTHERS, ACCOUNT)
    assert folder.take_over(server)
    assert [(key.grants, key.policy) for key in server.names()] == [((), None)] * 2


@pytest.mark.parametrize(
    "grant",
    [
        Grant("*", ("Decrypt",)),
        Grant("22222222222", ("Decrypt",)),
        Grant("arn:aws:iam::222222222222:user/*", ("Decrypt",)),
        Grant("arn:aws:sqs:us-east-1:222222222222:q", ("Decrypt",)),
        Grant(OTHERS, ()),
        Grant(OTHERS, ("Encrypt",)),
    ],
)
def test_grants_that_cannot_be_are_refused(folder: Folder, grant: Grant) -> None:
    keyring = folder.open()
    keyring.add("orders", ACCOUNT)

    with pytest.raises(ValueError, match=r"account|operations"):
        keyring.grant("orders", grant, ACCOUNT)


def test_the_built_in_key_is_nobodys_to_grant(folder: Folder) -> None:
    with pytest.raises(ValueError, match="belongs to no account"):
        folder.open().grant(BUILT_IN_KEY, Grant(OTHERS, ("Decrypt",)))


def _of_version_0_1(folder: Folder) -> tuple[int, bytes]:
    """A file of that version with a key `orders`; returns a data key's number and a message sealed
    with it."""
    keyring = folder.open()
    key = keyring.new_data_key(keyring.add("orders", ACCOUNT))
    with closing(sqlite3.connect(folder.file)) as database, database:
        (key_id,) = database.execute("SELECT key_id FROM owners").fetchone()
        for table in ("named_keys", "versions"):
            database.execute(f"UPDATE {table} SET name = 'orders' WHERE name = ?", (key_id,))
        database.execute("DROP TABLE owners")
        database.execute("DROP TABLE grants")
        database.execute("DROP TABLE checksum")
    copy_of(folder.file).unlink()
    return key.number, key.seal(b"body")


def test_keys_of_version_0_1_belong_to_the_account_that_a_service_opens_them_for(
    file_folder: Folder,
) -> None:
    number, sealed = _of_version_0_1(file_folder)
    command = file_folder.open()
    assert command.named("orders").account == "", "a command does not know whose they are"

    service = file_folder.open(owner=OTHERS)
    later = file_folder.open(owner=ACCOUNT)

    for keyring in (service, later, file_folder.open()):
        named, key = keyring.data_key(number)
        assert (named.name, named.account, named.row) == ("orders", OTHERS, "orders")
        assert key.open(sealed) == b"body"
        assert keyring.find("alias/orders", OTHERS) is named
        assert keyring.find("alias/orders", ACCOUNT) is None
        assert keyring.find(BUILT_IN_KEY, ACCOUNT) is keyring.named(BUILT_IN_KEY)
    later.add("orders", ACCOUNT)
    service.rotate("orders", OTHERS)
    assert file_folder.open().data_key(number)[1].open(sealed) == b"body"
