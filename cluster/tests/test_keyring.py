"""Keys are kept wrapped, rotate without a pause, and belong to one master key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from auth.envelope import BUILT_IN_KEY, SealBroken
from cluster.keys.master_key import (
    KeysUnusable,
    decode_master_key,
    encode_master_key,
    folder_master_key,
    read_master_key,
    replace_master_key,
    write_master_key,
)
from cluster.keys.sqlite_keyring import SqliteKeyring
from cluster.tests.key_folder import ACCOUNT, MASTER, Folder
from cluster.tests.shared_stores import KINDS, key_folder
from cluster.tests.virtual_time import CountingEntropy

OTHER = b"o" * 32


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    with key_folder(request, request.param, tmp_path) as folder:
        yield folder


@pytest.fixture
def file_folder(tmp_path: Path) -> Iterator[Folder]:
    """For what holds for files only."""
    with ExitStack() as stack:
        yield Folder(tmp_path, stack)


def test_a_new_keyring_has_the_built_in_key(folder: Folder) -> None:
    (built_in,) = folder.open().names()

    assert (built_in.name, built_in.enabled, built_in.versions) == (BUILT_IN_KEY, True, 1)


def test_secrets_and_digest_key_stay_and_lie_nowhere_in_the_clear(folder: Folder) -> None:
    first = folder.open()
    stored = first.secrets.encrypt(b"a secret of 24 characters", "p")
    second = folder.open()

    assert first.digest_key == second.digest_key != bytes(32)
    assert second.secrets.decrypt(stored, "p") == b"a secret of 24 characters"
    assert first.digest_key not in folder.bytes()


def test_a_message_can_be_opened_after_a_restart(folder: Folder) -> None:
    first = folder.open()
    key = first.new_data_key(first.names()[0])
    sealed = key.seal(b"body")

    named, again = folder.open().data_key(key.number)

    assert again.open(sealed) == b"body"
    assert named.name == BUILT_IN_KEY


def test_no_data_key_is_made_twice(folder: Folder) -> None:
    numbers = []
    for _ in range(3):
        keyring = folder.open()
        numbers += [keyring.new_data_key(keyring.names()[0]).number for _ in range(2)]

    assert numbers == sorted(set(numbers))
    assert len({folder.open().data_key(number)[1].seal(b"x")[8:] for number in numbers}) == 6


@pytest.mark.parametrize(
    "reference",
    [
        "orders",
        "alias/orders",
        "arn:aws:kms:us-east-1:000000000000:alias/orders",
        "{key_id}",
        "arn:aws:kms:us-east-1:000000000000:key/{key_id}",
    ],
)
def test_a_key_is_found_as_aws_lets_one_name_it(folder: Folder, reference: str) -> None:
    keyring = folder.open()
    added = keyring.add("orders", ACCOUNT)

    assert keyring.find(reference.format(key_id=added.key_id), ACCOUNT) is added
    assert keyring.find("order", ACCOUNT) is None
    assert keyring.find("alias/aws/sqs", ACCOUNT) is keyring.find(BUILT_IN_KEY, ACCOUNT) is not None


def test_a_rotated_key_opens_what_its_older_versions_sealed(folder: Folder) -> None:
    keyring = folder.open()
    named = keyring.add("orders", ACCOUNT)
    old = keyring.new_data_key(named)
    sealed = old.seal(b"body")

    keyring.rotate("orders")
    new = keyring.new_data_key(named)

    assert (named.version, named.versions) == (3, 2)
    assert keyring.rewrap("orders") == 1
    assert named.versions == 1
    restarted = folder.open()
    assert restarted.data_key(old.number)[1].open(sealed) == b"body"
    assert restarted.data_key(new.number)[0].name == "orders"


def test_what_another_process_changes_is_taken_over(folder: Folder) -> None:
    server, command = folder.open(), folder.open()
    named = command.add("orders", ACCOUNT)

    assert folder.take_over(server)
    seen = server.find("orders", ACCOUNT)
    assert seen is not None
    key = server.new_data_key(seen)
    command.set_enabled("orders", False)
    command.rotate("orders")
    command.rewrap("orders")

    assert folder.take_over(server)
    assert not server.reload_if_changed()
    assert (seen.enabled, seen.version) == (False, named.version)
    assert server.data_key(key.number) == (seen, key)
    assert folder.open().data_key(key.number)[0].enabled is False


def test_a_data_key_of_a_version_that_another_process_made_is_found(folder: Folder) -> None:
    server, command = folder.open(), folder.open()
    command.rotate(BUILT_IN_KEY)
    key = command.new_data_key(command.names()[0])

    assert server.data_key(key.number)[1].open(key.seal(b"x")) == b"x"


def test_another_master_key_changes_nothing_but_itself(folder: Folder) -> None:
    keyring = folder.open()
    key = keyring.new_data_key(keyring.add("orders", ACCOUNT))
    sealed, digest_key = key.seal(b"body"), keyring.digest_key

    keyring.change_master(OTHER)

    keyring.rotate("orders")
    restarted = folder.open(OTHER)
    assert restarted.data_key(key.number)[1].open(sealed) == b"body"
    assert restarted.digest_key == digest_key
    with pytest.raises(KeysUnusable, match="not under this master key"):
        folder.open(MASTER)


def test_a_new_data_key_is_not_under_a_version_that_was_removed_meanwhile(folder: Folder) -> None:
    server, command = folder.open(), folder.open()
    named = server.names()[0]
    command.rotate(BUILT_IN_KEY)
    command.rewrap(BUILT_IN_KEY)

    key = server.new_data_key(named)

    assert folder.open().data_key(key.number)[1].open(key.seal(b"x")) == b"x"


def test_versions_are_rewrapped_under_the_newest_of_any_process(folder: Folder) -> None:
    one, other = folder.open(), folder.open()
    other.rotate(BUILT_IN_KEY)
    key = other.new_data_key(other.names()[0])

    one.rewrap(BUILT_IN_KEY)

    assert folder.open().data_key(key.number)[1].open(key.seal(b"x")) == b"x"


def test_nothing_is_made_under_a_master_key_that_was_replaced(file_folder: Folder) -> None:
    server, command = file_folder.open(), file_folder.open()
    command.change_master(OTHER)
    kept: list[str] = []

    with pytest.raises(SealBroken):
        server.add("orders", ACCOUNT)
    with pytest.raises(SealBroken):
        server.rotate(BUILT_IN_KEY)
    with pytest.raises(SealBroken):
        server.change_master(b"x" * 32, lambda: kept.append("x"))

    key = server.new_data_key(server.names()[0])
    assert file_folder.open(OTHER).data_key(key.number)[1].open(key.seal(b"x")) == b"x"
    assert kept == []


def test_what_could_not_be_taken_over_is_tried_again(file_folder: Folder) -> None:
    server, command = file_folder.open(), file_folder.open()
    added = command.add("orders", ACCOUNT)
    assert server.reload_if_changed()
    command.change_master(OTHER)
    command.rotate("orders")
    command.set_enabled("orders", False)
    named = server.find("orders", ACCOUNT)
    assert named is not None

    for _ in range(2):
        with pytest.raises(SealBroken):
            server.reload_if_changed()

    assert (named.enabled, named.version) == (False, added.version - 1)


def test_a_server_goes_on_with_the_master_key_that_another_process_put_in_place(
    folder: Folder,
) -> None:
    server, command = folder.open(read_master=lambda: OTHER), folder.open()
    command.change_master(OTHER)
    command.rotate(BUILT_IN_KEY)
    command.add("orders", ACCOUNT)

    assert folder.take_over(server)
    server.add("more", ACCOUNT)

    assert {key.name for key in folder.open(OTHER).names()} == {BUILT_IN_KEY, "orders", "more"}


def test_of_two_changes_of_the_master_key_one_is_refused(tmp_path: Path, folder: Folder) -> None:
    write_master_key(tmp_path / "master.key", MASTER)
    one, other = folder.open(), folder.open()

    def both(keep: Callable[[], None]) -> None:
        one.change_master(OTHER, keep)
        with pytest.raises(SealBroken):
            replace_master_key(tmp_path, b"x" * 32, partial(other.change_master, b"x" * 32))

    replace_master_key(tmp_path, OTHER, both)

    assert read_master_key(tmp_path / "master.key") == OTHER
    assert len(folder.open(OTHER).names()) == 1


def test_unknown_data_key_and_damaged_one_are_refused(file_folder: Folder) -> None:
    keyring = file_folder.open()
    assert isinstance(keyring, SqliteKeyring)
    number = keyring.new_data_key(keyring.names()[0]).number
    keyring._database.execute("UPDATE data_keys SET wrapped = zeroblob(60)")

    for unknown in (number + 1, number):
        with pytest.raises(SealBroken):
            file_folder.open().data_key(unknown)


def test_names_are_unique_and_the_built_in_key_stays_enabled(folder: Folder) -> None:
    keyring = folder.open()

    with pytest.raises(ValueError, match="already"):
        keyring.add(BUILT_IN_KEY, ACCOUNT)
    with pytest.raises(ValueError, match="always enabled"):
        keyring.set_enabled(BUILT_IN_KEY, False)
    with pytest.raises(KeyError):
        keyring.rotate("nobody")


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be one" * 40])
def test_a_file_that_is_no_keyring_is_refused_in_one_line(
    file_folder: Folder, content: bytes
) -> None:
    file_folder.file.write_bytes(content)

    if content:
        with pytest.raises(KeysUnusable, match=r"keyring\.sqlite"):
            file_folder.open()
    else:  # SQLite takes an empty file for a new database
        assert len(file_folder.open().names()) == 1


# -- the master key --------------------------------------------------------------------------------


def test_a_folders_master_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    entropy = CountingEntropy()
    made = folder_master_key(tmp_path, entropy, may_make=True)

    assert folder_master_key(tmp_path, entropy, may_make=True) == made
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["master.key"]


def test_a_missing_master_key_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(KeysUnusable, match="cannot read master key"):
        folder_master_key(tmp_path, CountingEntropy(), may_make=False)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602, 0o777])
def test_a_master_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    write_master_key(file, MASTER)
    file.chmod(mode)

    with pytest.raises(KeysUnusable, match="open to others"):
        read_master_key(file)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_group_may_read_a_mounted_master_key(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    write_master_key(file, MASTER)
    file.chmod(mode)

    assert read_master_key(file) == MASTER


@pytest.mark.parametrize("text", ["", "x", "A" * 42, "ü" * 44, "AAAA" * 20, "\0"])
def test_what_is_no_master_key_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)

    with pytest.raises(KeysUnusable, match="damaged"):
        read_master_key(file)


def test_both_alphabets_of_base64_are_read() -> None:
    secret = b"\xfb\xff" * 16

    assert decode_master_key(encode_master_key(secret) + "\n") == secret
    assert (
        decode_master_key(encode_master_key(secret).replace("-", "+").replace("_", "/")) == secret
    )
