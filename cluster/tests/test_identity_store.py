"""Users and access keys are in a file of the folder, with encrypted secrets; other processes may
change it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from auth.credentials import AccessKey
from auth.envelope import WrappingKey
from auth.policy_document import PolicyRefused
from cluster.keys.identity_records import IdentitiesUnreadable, IdentityRecords
from cluster.keys.identity_store import IdentityStore
from cluster.keys.key_uses import day_of
from cluster.keys.keyring import Secrets
from cluster.keys.shared_identities import SharedIdentities
from cluster.keys.sqlite_identities import SqliteIdentities
from cluster.tests.shared_stores import KINDS, SharedHosts, shared_hosts, soon
from cluster.tests.virtual_time import CountingEntropy, SettableClock, some_secrets

ACCOUNT = "000000000000"
ALLOW = '{"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'
Open = Callable[..., IdentityStore]


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


class Place:
    """The identities of a folder or of a cluster; `open` gives them as another process has them."""

    def __init__(
        self, stack: ExitStack, clock: SettableClock, make: Callable[[], IdentityRecords]
    ) -> None:
        self._stack = stack
        self._clock = clock
        self._make = make
        self._entropy = CountingEntropy()
        self._secrets = some_secrets()

    def open(self, secrets: Secrets | None = None) -> IdentityStore:
        self._clock.at_ms += 1
        store = IdentityStore(self._make(), secrets or self._secrets, self._clock, self._entropy)
        return self._stack.enter_context(closing(store))


@pytest.fixture
def folder(tmp_path: Path, clock: SettableClock) -> Iterator[Open]:
    """Opens a folder's identities: for what holds for files only."""
    with ExitStack() as stack:
        yield Place(stack, clock, lambda: SqliteIdentities(tmp_path / "identities.sqlite")).open


@pytest.fixture(params=KINDS)
def hosts(request: pytest.FixtureRequest) -> Iterator[SharedHosts | None]:
    """The hosts of a cluster; None for a single host."""
    if request.param == "sqlite":
        yield None
    else:
        with shared_hosts(request, request.param) as hosts:
            yield hosts


@pytest.fixture
def opened(tmp_path: Path, clock: SettableClock, hosts: SharedHosts | None) -> Iterator[Open]:
    """Opens identities again, as another process would."""

    def make() -> IdentityRecords:
        if hosts is None:
            return SqliteIdentities(tmp_path / "identities.sqlite")
        return SharedIdentities(hosts.records(IdentitiesUnreadable))

    with ExitStack() as stack:
        yield Place(stack, clock, make).open


def heard(hosts: SharedHosts | None, store: IdentityStore) -> bool:
    """True if the changes of others arrived since this was last asked."""
    if hosts is not None:
        assert isinstance(store._records, SharedIdentities)
        hosts.wait_for(store._records._records)
    return store.changed()


def by_id(keys: list[AccessKey]) -> dict[str, AccessKey]:
    return {key.access_key_id: key for key in keys}


def test_a_new_folder_has_neither_keys_nor_users(opened: Open) -> None:
    store = opened()

    assert (store.all_keys(), len(store.users()), len(store.credentials())) == ([], 0, 0)


# -- access keys -----------------------------------------------------------------------------------


def test_a_key_is_as_aws_makes_them_and_is_there_after_a_restart(opened: Open) -> None:
    store = opened()

    key = store.add_key(ACCOUNT)

    assert key.access_key_id.startswith("AKIA")
    assert (len(key.access_key_id), len(key.secret_access_key)) == (20, 40)
    assert (key.account, key.enabled, key.principal[:4]) == (ACCOUNT, True, "AIDA")
    assert (key.user, key.expires_at_ms, key.session_token) == (None, None, None)
    assert store.all_keys() == opened().all_keys() == [key]


def test_no_two_keys_are_alike(opened: Open) -> None:
    store = opened()

    keys = [store.add_key(ACCOUNT) for _ in range(10)]

    assert len({key.access_key_id for key in keys}) == 10
    assert len({key.secret_access_key for key in keys}) == 10
    assert by_id(store.all_keys()) == by_id(keys)


def test_secrets_are_not_readable_in_the_folder(
    opened: Open, tmp_path: Path, hosts: SharedHosts | None
) -> None:
    store = opened()

    key = store.add_session(ACCOUNT, None, 60.0)

    assert key.session_token is not None
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    files += [] if hosts is None else [record.value for record in hosts.snapshot().records]
    assert len(files) >= (2 if hosts is None else 1)
    for secret in (key.secret_access_key, key.session_token):
        for form in (secret.encode(), b64encode(secret.encode())):
            assert all(form not in content for content in files)


def test_a_disabled_key_stays_listed_until_it_is_enabled_or_removed(opened: Open) -> None:
    store = opened()
    kept, disabled = store.add_key(ACCOUNT), store.add_key(ACCOUNT)

    assert store.set_key_enabled(disabled.access_key_id, False)
    keys = by_id(opened().all_keys())
    assert not keys[disabled.access_key_id].enabled
    assert keys[kept.access_key_id].enabled

    assert store.set_key_enabled(disabled.access_key_id, True)
    assert by_id(opened().all_keys()) == by_id([kept, disabled])
    assert store.remove_key(disabled.access_key_id)
    assert store.all_keys() == [kept]
    assert not store.remove_key(disabled.access_key_id)
    assert not store.set_key_enabled("AKIANONE", False)


def test_a_user_who_is_gone_gets_no_key(opened: Open) -> None:
    store = opened()
    ann = store.add_user(ACCOUNT, "ann", {})
    key = store.add_key(ACCOUNT, ann)
    opened().remove_user(ann)

    with pytest.raises(ValueError, match="no user ann"):
        store.add_key(ACCOUNT, ann)
    with pytest.raises(ValueError, match="no user ann"):
        store.add_session(ACCOUNT, ann, 60.0)
    with pytest.raises(ValueError, match="no user ann"):
        store.declare_key(key)
    store.add_user(ACCOUNT, "ann", {})
    with pytest.raises(ValueError, match="no user ann"):
        store.add_key(ACCOUNT, ann)
    assert store.all_keys() == []


def test_a_key_whose_user_is_gone_gets_no_successor(folder: Open) -> None:
    store = folder()
    ann = store.add_user(ACCOUNT, "ann", {})
    key = store.add_key(ACCOUNT, ann)
    assert isinstance(store._records, SqliteIdentities)
    store._records._database.execute("DELETE FROM users")

    with pytest.raises(ValueError, match="no user ann"):
        store.rotate_key(key.access_key_id, 0.0)

    assert store.all_keys() == [key]


def test_a_temporary_key_gets_no_successor_that_stays(opened: Open) -> None:
    store = opened()
    key = store.add_session(ACCOUNT, None, 60.0)

    with pytest.raises(ValueError, match="temporary"):
        store.rotate_key(key.access_key_id, 60.0)

    assert store.all_keys() == [key]


def test_a_change_that_could_not_be_read_is_told_again(
    opened: Open, hosts: SharedHosts | None
) -> None:
    store = opened()
    opened().add_key(ACCOUNT)

    assert heard(hosts, store)
    store.look_again()

    assert store.changed()
    assert not store.changed()


def test_a_rotated_key_ends_after_the_overlap(opened: Open, clock: SettableClock) -> None:
    store = opened()
    old = store.add_key(ACCOUNT, principal="AIDAOWNER")

    new = store.rotate_key(old.access_key_id, 3600.0)

    assert new is not None
    assert (new.principal, new.account, new.enabled) == ("AIDAOWNER", ACCOUNT, True)
    assert new.secret_access_key != old.secret_access_key
    left = by_id(store.all_keys())[old.access_key_id]
    assert left.enabled
    assert left.expires_at_ms == clock.at_ms + 3_600_000
    assert by_id(store.all_keys())[new.access_key_id].expires_at_ms is None
    assert store.rotate_key("AKIANONE", 1.0) is None


def test_a_rotation_never_prolongs_a_key_and_its_successor_expires_too(
    opened: Open, clock: SettableClock
) -> None:
    store = opened()
    old = store.add_key(ACCOUNT, lifetime_s=10.0)

    clock.at_ms += 4_000
    new = store.rotate_key(old.access_key_id, 3600.0)

    assert by_id(store.all_keys())[old.access_key_id].expires_at_ms == old.expires_at_ms
    assert new is not None
    assert new.expires_at_ms == clock.at_ms + 10_000, "it lives as long as the old one was made for"


def test_a_rotation_without_overlap_disables_the_old_key(opened: Open) -> None:
    store = opened()
    old = store.add_key(ACCOUNT)

    store.rotate_key(old.access_key_id, 0.0)

    assert not by_id(store.all_keys())[old.access_key_id].enabled


def test_sessions_are_forgotten_a_day_after_their_end(opened: Open, clock: SettableClock) -> None:
    store = opened()
    first = store.add_session(ACCOUNT, None, 60.0)
    kept = store.add_key(ACCOUNT, lifetime_s=60.0)
    clock.at_ms += 60_000 + 24 * 3600 * 1000

    assert first.access_key_id.startswith("ASIA")
    assert first.has_expired(clock.wall_s())
    second = store.add_session(ACCOUNT, None, 60.0)
    assert by_id(store.all_keys()) == by_id([first, kept, second])
    clock.at_ms += 1
    third = store.add_session(ACCOUNT, None, 60.0)
    assert by_id(store.all_keys()) == by_id([kept, second, third])


def test_a_change_by_another_process_is_seen_once(opened: Open, hosts: SharedHosts | None) -> None:
    server, command = opened(), opened()
    assert not server.changed()

    key = command.add_key(ACCOUNT)

    assert heard(hosts, server)
    assert not server.changed()
    assert server.all_keys() == [key]

    command.set_key_enabled(key.access_key_id, False)
    assert heard(hosts, server)
    command.put_policy(command.add_user(ACCOUNT, "ann", {}), "p", ALLOW)
    assert heard(hosts, server)


def test_own_changes_are_no_news(opened: Open) -> None:
    store = opened()

    store.add_key(ACCOUNT)

    assert not store.changed()


def test_keys_of_another_folder_are_unreadable_and_named(opened: Open) -> None:
    key = opened().add_key(ACCOUNT)
    others = Secrets(WrappingKey(b"x" * 32), CountingEntropy())

    with pytest.raises(IdentitiesUnreadable, match=key.access_key_id):
        opened(others).all_keys()


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IdentitiesUnreadable):
        SqliteIdentities(tmp_path / "none" / "x")


# -- users -----------------------------------------------------------------------------------------


def test_a_user_has_an_id_tags_and_policies_and_is_there_after_a_restart(opened: Open) -> None:
    store = opened()
    user = store.add_user(ACCOUNT, "ann", {"team": "a"})
    store.put_policy(user, "one", ALLOW)
    store.put_policy(user, "two", ALLOW)

    seen = opened().users().find(ACCOUNT, "ann")

    assert seen is not None
    assert (seen.user_id, seen.tags, seen.arn) == (
        user.user_id,
        {"team": "a"},
        f"arn:aws:iam::{ACCOUNT}:user/ann",
    )
    assert [policy.name for policy in seen.policies] == ["one", "two"]
    assert store.policies(user) == {"one": ALLOW, "two": ALLOW}
    assert store.users().find("1" * 12, "ann") is None
    assert store.users().generation != store.users().generation


def test_a_policy_is_replaced_and_taken_away_by_name(opened: Open) -> None:
    store = opened()
    user = store.add_user(ACCOUNT, "ann", {})
    store.put_policy(user, "p", ALLOW)
    store.put_policy(user, "p", ALLOW.replace("Allow", "Deny"))

    assert "Deny" in store.policies(user)["p"]
    with pytest.raises(PolicyRefused):
        store.put_policy(user, "p", "{")
    for document in ("{}", '{"Version": "2012-10-17"}', '{"Statement": []}'):
        with pytest.raises(PolicyRefused, match="it has no Statement"):
            store.put_policy(user, "p", document)
    assert store.remove_policy(user, "p")
    assert not store.remove_policy(user, "p")
    assert store.policies(user) == {}


def test_two_users_of_one_account_have_two_names(opened: Open) -> None:
    store = opened()
    store.add_user(ACCOUNT, "ann", {})
    store.add_user("1" * 12, "ann", {})

    with pytest.raises(ValueError, match="already"):
        store.add_user(ACCOUNT, "ann", {})


def test_a_removed_user_takes_keys_and_policies_along(opened: Open) -> None:
    store = opened()
    user, other = store.add_user(ACCOUNT, "ann", {}), store.add_user(ACCOUNT, "bob", {})
    store.put_policy(user, "p", ALLOW)
    store.add_key(ACCOUNT, user)
    root, others = store.add_key(ACCOUNT), store.add_key(ACCOUNT, other)

    store.remove_user(user)

    assert by_id(store.all_keys()) == by_id([root, others])
    assert [each.name for each in store.users()] == ["bob"]
    again = store.add_user(ACCOUNT, "ann", {})
    assert again.user_id != user.user_id
    assert store.policies(again) == {}


def test_a_users_key_names_the_user_and_so_does_its_successor(opened: Open) -> None:
    store = opened()
    user = store.add_user(ACCOUNT, "ann", {})

    key = store.add_key(ACCOUNT, user)
    successor = store.rotate_key(key.access_key_id, 60.0)
    session = store.add_session(ACCOUNT, user, 60.0)

    for each in (key, successor, session):
        assert each is not None
        assert (each.user, each.principal) == ("ann", user.user_id)


def test_a_key_can_be_given_and_given_anew(opened: Open) -> None:
    store = opened()
    for secret in ("one", "two"):
        key = AccessKey("AKIAFIXED", secret, ACCOUNT, "AIDAFIXED")
        assert store.declare_key(key)
        assert not opened().declare_key(key)

    assert [key.secret_access_key for key in store.all_keys()] == ["two"]
    store.set_key_enabled("AKIAFIXED", False)
    assert not opened().declare_key(key), "it stays disabled"


# -- days of use -----------------------------------------------------------------------------------


def test_the_latest_day_of_use_is_kept_until_the_key_is_removed(opened: Open) -> None:
    store, other = opened(), opened()
    key_id, removed = (store.add_key(ACCOUNT).access_key_id for _ in range(2))
    known = {key_id, removed}
    store.note_uses({key_id: 20_000, removed: 20_000}, known)
    other.note_uses({key_id: 19_999, "gone": 19_999}, known)
    assert opened().key_uses() == {key_id: 20_000, removed: 20_000}

    store.remove_key(removed)
    store.note_uses({key_id: 20_001}, {key_id})

    assert opened().key_uses() == {key_id: 20_001}


def test_a_day_of_use_makes_nobody_read_the_keys_again(opened: Open) -> None:
    store = opened()
    key_id = store.add_key(ACCOUNT).access_key_id
    other = opened()

    store.note_uses({key_id: 20_000}, {key_id})

    soon(lambda: other.key_uses() == {key_id: 20_000})
    assert not other.changed()


@pytest.mark.parametrize("content", [b"\xff{", b"[]", b'{"AKIA1":99999999999}', b'{"AKIA1":-9}'])
def test_an_unreadable_file_of_days_is_written_anew(
    folder: Open, tmp_path: Path, content: bytes
) -> None:
    store = folder()
    (tmp_path / "key_uses.json").write_bytes(content)
    assert store.key_uses() == {}

    store.note_uses({"AKIA1": 20_000}, {"AKIA1"})

    assert store.key_uses() == {"AKIA1": 20_000}


def test_days_that_cannot_be_read_are_none(folder: Open, tmp_path: Path) -> None:
    store = folder()
    (tmp_path / "key_uses.json").mkdir()
    assert store.key_uses() == {}


@pytest.mark.parametrize(
    ("value", "day"),
    [(b"20000", 20_000), (b"0", 0), (b"999999", None), (b"9" * 5_000, None), (b"x", None)],
)
def test_a_damaged_day_of_a_cluster_is_none(value: bytes, day: int | None) -> None:
    assert day_of(value) == day
