"""Keys are kept wrapped, rotate without a pause, and belong to one master key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from auth.envelope import BUILT_IN_KEY, SealBroken
from cluster.keys.key_records import BLOCK
from cluster.keys.master_key import (
    KeysUnusable,
    decode_master_key,
    encode_master_key,
    folder_master_key,
    read_master_key,
    replace_master_key,
    write_master_key,
)
from cluster.tests.stores import ACCOUNT, MASTER, Place, found
from cluster.tests.virtual_time import CountingEntropy

OTHER = b"o" * 32


async def test_a_new_keyring_has_the_built_in_key(place: Place) -> None:
    (built_in,) = (await place.keyring()).names()

    assert (built_in.name, built_in.enabled, built_in.versions) == (BUILT_IN_KEY, True, 1)


async def test_secrets_and_digest_key_stay_and_lie_nowhere_in_the_clear(place: Place) -> None:
    first = await place.keyring()
    stored = first.secrets.encrypt(b"a secret of 24 characters", "p")
    second = await place.keyring()

    assert first.digest_key == second.digest_key != bytes(32)
    assert second.secrets.decrypt(stored, "p") == b"a secret of 24 characters"
    assert first.digest_key not in await place.bytes()


async def test_a_message_can_be_opened_after_a_restart(place: Place) -> None:
    first = await place.keyring()
    key = await first.new_data_key(first.names()[0])
    sealed = key.seal(b"body")

    named, again = (await place.keyring()).data_key(key.number)

    assert again.open(sealed) == b"body"
    assert named.name == BUILT_IN_KEY


async def test_no_data_key_is_made_twice(place: Place) -> None:
    numbers = []
    for _ in range(3):
        keyring = await place.keyring()
        numbers += [(await keyring.new_data_key(keyring.names()[0])).number for _ in range(2)]

    assert numbers == sorted(set(numbers))
    last = await place.keyring()
    assert len({last.data_key(number)[1].seal(b"x")[8:] for number in numbers}) == 6


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
async def test_a_key_is_found_as_aws_lets_one_name_it(place: Place, reference: str) -> None:
    keyring = await place.keyring()
    added = await keyring.add("orders", ACCOUNT)

    assert keyring.find(reference.format(key_id=added.key_id), ACCOUNT) is added
    assert keyring.find("order", ACCOUNT) is None
    assert keyring.find("alias/aws/sqs", ACCOUNT) is keyring.find(BUILT_IN_KEY, ACCOUNT) is not None


async def test_a_rotated_key_opens_what_its_older_versions_sealed(place: Place) -> None:
    keyring = await place.keyring()
    named = await keyring.add("orders", ACCOUNT)
    old = await keyring.new_data_key(named)
    sealed = old.seal(b"body")

    await keyring.rotate("orders")
    new = await keyring.new_data_key(named)

    assert (named.version, named.versions) == (3, 2)
    assert await keyring.rewrap("orders") == 1
    assert named.versions == 1
    restarted = await place.keyring()
    assert restarted.data_key(old.number)[1].open(sealed) == b"body"
    assert restarted.data_key(new.number)[0].name == "orders"


async def test_what_another_process_changes_is_taken_over(place: Place) -> None:
    server, command = await place.keyring(), await place.keyring()
    told: list[str] = []
    server.subscribe(lambda: told.append("changed"))
    named = await command.add("orders", ACCOUNT)

    await place.heard(server)
    seen = server.find("orders", ACCOUNT)
    assert seen is not None
    key = await server.new_data_key(seen)
    await command.set_enabled("orders", False)
    await command.rotate("orders")
    await command.rewrap("orders")

    await place.heard(server)
    assert len(told) == 4, "a new block is no news"
    assert (seen.enabled, seen.version) == (False, named.version)
    assert server.data_key(key.number) == (seen, key)
    assert (await place.keyring()).data_key(key.number)[0].enabled is False


async def test_a_data_key_of_a_version_that_another_process_made_is_found(place: Place) -> None:
    server, command = await place.keyring(), await place.keyring()
    await command.rotate(BUILT_IN_KEY)
    key = await command.new_data_key(command.names()[0])

    assert (await found(server, key.number))[1].open(key.seal(b"x")) == b"x"


async def test_another_master_key_changes_nothing_but_itself(place: Place) -> None:
    keyring = await place.keyring()
    key = await keyring.new_data_key(await keyring.add("orders", ACCOUNT))
    sealed, digest_key = key.seal(b"body"), keyring.digest_key

    await keyring.change_master(OTHER)

    await keyring.rotate("orders")
    restarted = await place.keyring(OTHER)
    assert restarted.data_key(key.number)[1].open(sealed) == b"body"
    assert restarted.digest_key == digest_key
    with pytest.raises(KeysUnusable, match="not under this master key"):
        await place.keyring(MASTER)


async def test_a_new_data_key_is_not_under_a_version_that_was_removed_meanwhile(
    place: Place,
) -> None:
    server, command = await place.keyring(), await place.keyring()
    named = server.names()[0]
    await command.rotate(BUILT_IN_KEY)
    await command.rewrap(BUILT_IN_KEY)

    key = await server.new_data_key(named)

    assert (await place.keyring()).data_key(key.number)[1].open(key.seal(b"x")) == b"x"


async def test_versions_are_rewrapped_under_the_newest_of_any_process(place: Place) -> None:
    one, other = await place.keyring(), await place.keyring()
    await other.rotate(BUILT_IN_KEY)
    key = await other.new_data_key(other.names()[0])

    await one.rewrap(BUILT_IN_KEY)

    assert (await place.keyring()).data_key(key.number)[1].open(key.seal(b"x")) == b"x"


async def test_a_server_goes_on_when_another_process_changes_the_master_key(place: Place) -> None:
    server, command = await place.keyring(), await place.keyring()
    await command.change_master(OTHER)
    kept: list[str] = []

    with pytest.raises(SealBroken):
        await server.change_master(b"x" * 32, lambda: kept.append("x"))
    await command.add("orders", ACCOUNT)
    await place.heard(server)
    await server.add("more", ACCOUNT)
    key = await server.new_data_key(server.named("orders"))

    last = await place.keyring(OTHER)
    assert kept == []
    assert {key.name for key in last.names()} == {BUILT_IN_KEY, "orders", "more"}
    assert last.data_key(key.number)[1].open(key.seal(b"x")) == b"x"


async def test_of_two_changes_of_the_master_key_one_is_refused(
    tmp_path: Path, place: Place
) -> None:
    write_master_key(tmp_path / "master.key", MASTER)
    one, other = await place.keyring(), await place.keyring()

    async def both(keep: Callable[[], None]) -> None:
        await one.change_master(OTHER, keep)
        with pytest.raises(SealBroken):
            await replace_master_key(tmp_path, b"x" * 32, partial(other.change_master, b"x" * 32))

    await replace_master_key(tmp_path, OTHER, both)

    assert read_master_key(tmp_path / "master.key") == OTHER
    assert len((await place.keyring(OTHER)).names()) == 1


async def test_an_unknown_data_key_is_refused(place: Place) -> None:
    keyring = await place.keyring()
    number = (await keyring.new_data_key(keyring.names()[0])).number

    with pytest.raises(SealBroken):
        await found(await place.keyring(), number + BLOCK)


async def test_names_are_unique_and_the_built_in_key_stays_enabled(place: Place) -> None:
    keyring = await place.keyring()

    with pytest.raises(ValueError, match="already"):
        await keyring.add(BUILT_IN_KEY, ACCOUNT)
    with pytest.raises(ValueError, match="always enabled"):
        await keyring.set_enabled(BUILT_IN_KEY, False)
    with pytest.raises(KeyError):
        await keyring.rotate("nobody")


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
