"""Access keys lie encrypted under a master key of the folder, and other processes may change them."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from auth.credentials import AccessKey
from cluster.access_keys import AccessKeyStore, AccessKeysUnreadable
from cluster.tests.virtual_time import CountingEntropy, SettableClock

ACCOUNT = "000000000000"
Open = Callable[[], AccessKeyStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the folder's keys once more, as another process would."""
    clock, entropy = SettableClock(), CountingEntropy()

    with ExitStack() as stack:

        def open_store() -> AccessKeyStore:
            clock.at_ms += 1
            return stack.enter_context(closing(AccessKeyStore(tmp_path, clock, entropy)))

        yield open_store


def by_id(keys: list[AccessKey]) -> dict[str, AccessKey]:
    return {key.access_key_id: key for key in keys}


def test_a_new_folder_has_no_keys(opened: Open) -> None:
    assert opened().all() == []


def test_a_key_is_as_aws_makes_them_and_is_there_after_a_restart(opened: Open) -> None:
    store = opened()

    key = store.add(ACCOUNT)

    assert key.access_key_id.startswith("AKIA")
    assert (len(key.access_key_id), len(key.secret_access_key)) == (20, 40)
    assert (key.account, key.enabled, key.principal[:4]) == (ACCOUNT, True, "AIDA")
    assert store.all() == opened().all() == [key]


def test_no_two_keys_are_alike(opened: Open) -> None:
    store = opened()

    keys = [store.add(ACCOUNT) for _ in range(10)]

    assert len({key.access_key_id for key in keys}) == 10
    assert len({key.secret_access_key for key in keys}) == 10
    assert by_id(store.all()) == by_id(keys)


def test_secrets_are_not_readable_in_the_folder(opened: Open, tmp_path: Path) -> None:
    store = opened()

    secret = store.add(ACCOUNT).secret_access_key.encode()

    files = [file for file in tmp_path.iterdir() if file.is_file()]
    assert len(files) >= 2
    assert all(secret not in file.read_bytes() for file in files)


def test_only_the_owner_may_read_the_master_key(opened: Open, tmp_path: Path) -> None:
    opened()

    assert stat.S_IMODE((tmp_path / "master.key").stat().st_mode) == 0o600


def test_a_disabled_key_stays_listed_and_disabled(opened: Open) -> None:
    store = opened()
    kept, disabled = store.add(ACCOUNT), store.add(ACCOUNT)

    assert store.disable(disabled.access_key_id)

    keys = by_id(opened().all())
    assert not keys[disabled.access_key_id].enabled
    assert keys[kept.access_key_id].enabled
    assert not store.disable("AKIANONE")


def test_a_rotated_key_has_a_successor_of_the_same_user(opened: Open) -> None:
    store = opened()
    old = store.add(ACCOUNT, principal="AIDAOWNER")

    new = store.rotate(old.access_key_id)

    assert new is not None
    assert (new.principal, new.account, new.enabled) == ("AIDAOWNER", ACCOUNT, True)
    assert new.secret_access_key != old.secret_access_key
    keys = by_id(store.all())
    assert not keys[old.access_key_id].enabled
    assert keys[new.access_key_id] == new
    assert store.rotate("AKIANONE") is None


def test_a_change_by_another_process_is_seen_once(opened: Open) -> None:
    server, command = opened(), opened()
    assert not server.changed()

    key = command.add(ACCOUNT)

    assert server.changed()
    assert not server.changed()
    assert server.all() == [key]

    command.disable(key.access_key_id)
    assert server.changed()


def test_own_changes_are_no_news(opened: Open) -> None:
    store = opened()

    store.add(ACCOUNT)

    assert not store.changed()


def test_keys_under_another_master_key_are_unreadable_and_named(
    opened: Open, tmp_path: Path
) -> None:
    key = opened().add(ACCOUNT)
    (tmp_path / "master.key").unlink()

    with pytest.raises(AccessKeysUnreadable, match=key.access_key_id):
        opened().all()


@pytest.mark.parametrize("damage", [b"", b"short"])
def test_a_damaged_master_key_is_refused_in_one_line(
    opened: Open, tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / "master.key").write_bytes(damage)

    with pytest.raises(AccessKeysUnreadable) as caught:
        opened()

    assert "\n" not in str(caught.value)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessKeysUnreadable):
        AccessKeyStore(tmp_path / "none", SettableClock(), CountingEntropy())
