"""Users and access keys are kept with encrypted secrets; several processes may change them."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path

import pytest

from auth.credentials import AccessKey
from auth.envelope import WrappingKey
from auth.policy_document import PolicyRefused
from cluster.keys.identity_records import IdentitiesUnreadable, day_of
from cluster.keys.keyring import Secrets
from cluster.tests.stores import ACCOUNT, Place
from cluster.tests.virtual_time import CountingEntropy

ALLOW = '{"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'


def by_id(keys: list[AccessKey]) -> dict[str, AccessKey]:
    return {key.access_key_id: key for key in keys}


async def test_a_new_folder_has_neither_keys_nor_users(place: Place) -> None:
    store = await place.identities()

    assert (store.all_keys(), len(store.users()), len(store.credentials())) == ([], 0, 0)


# -- access keys -----------------------------------------------------------------------------------


async def test_a_key_is_as_aws_makes_them_and_is_there_after_a_restart(place: Place) -> None:
    store = await place.identities()

    key = await store.add_key(ACCOUNT)

    assert key.access_key_id.startswith("AKIA")
    assert (len(key.access_key_id), len(key.secret_access_key)) == (20, 40)
    assert (key.account, key.enabled, key.principal[:4]) == (ACCOUNT, True, "AIDA")
    assert (key.user, key.expires_at_ms, key.session_token) == (None, None, None)
    assert store.all_keys() == (await place.identities()).all_keys() == [key]


async def test_no_two_keys_are_alike(place: Place) -> None:
    store = await place.identities()

    keys = [await store.add_key(ACCOUNT) for _ in range(10)]

    assert len({key.access_key_id for key in keys}) == 10
    assert len({key.secret_access_key for key in keys}) == 10
    assert by_id(store.all_keys()) == by_id(keys)


async def test_secrets_are_not_readable_in_the_folder(place: Place, tmp_path: Path) -> None:
    store = await place.identities()

    key = await store.add_session(ACCOUNT, None, 60.0)

    assert key.session_token is not None
    files = [(tmp_path / name).read_bytes() for name in os.listdir(tmp_path)]
    files += [record.value for record in (await place.snapshot()).records]
    assert files
    for secret in (key.secret_access_key, key.session_token):
        for form in (secret.encode(), b64encode(secret.encode())):
            assert all(form not in content for content in files)


async def test_a_disabled_key_stays_listed_until_it_is_enabled_or_removed(place: Place) -> None:
    store = await place.identities()
    kept, disabled = await store.add_key(ACCOUNT), await store.add_key(ACCOUNT)

    assert await store.set_key_enabled(disabled.access_key_id, False)
    keys = by_id((await place.identities()).all_keys())
    assert not keys[disabled.access_key_id].enabled
    assert keys[kept.access_key_id].enabled

    assert await store.set_key_enabled(disabled.access_key_id, True)
    assert by_id((await place.identities()).all_keys()) == by_id([kept, disabled])
    assert await store.remove_key(disabled.access_key_id)
    assert store.all_keys() == [kept]
    assert not await store.remove_key(disabled.access_key_id)
    assert not await store.set_key_enabled("AKIANONE", False)


async def test_a_user_who_is_gone_gets_no_key(place: Place) -> None:
    store = await place.identities()
    ann = await store.add_user(ACCOUNT, "ann", {})
    key = await store.add_key(ACCOUNT, ann)
    await (await place.identities()).remove_user(ann)

    with pytest.raises(ValueError, match="no user ann"):
        await store.add_key(ACCOUNT, ann)
    with pytest.raises(ValueError, match="no user ann"):
        await store.add_session(ACCOUNT, ann, 60.0)
    with pytest.raises(ValueError, match="no user ann"):
        await store.declare_key(key)
    await store.add_user(ACCOUNT, "ann", {})
    with pytest.raises(ValueError, match="no user ann"):
        await store.add_key(ACCOUNT, ann)
    assert store.all_keys() == []


async def test_a_temporary_key_gets_no_successor_that_stays(place: Place) -> None:
    store = await place.identities()
    key = await store.add_session(ACCOUNT, None, 60.0)

    with pytest.raises(ValueError, match="temporary"):
        await store.rotate_key(key.access_key_id, 60.0)

    assert store.all_keys() == [key]


async def test_a_rotated_key_ends_after_the_overlap(place: Place) -> None:
    store = await place.identities()
    old = await store.add_key(ACCOUNT, principal="AIDAOWNER")

    new = await store.rotate_key(old.access_key_id, 3600.0)

    assert new is not None
    assert (new.principal, new.account, new.enabled) == ("AIDAOWNER", ACCOUNT, True)
    assert new.secret_access_key != old.secret_access_key
    left = by_id(store.all_keys())[old.access_key_id]
    assert left.enabled
    assert left.expires_at_ms == place.clock.at_ms + 3_600_000
    assert by_id(store.all_keys())[new.access_key_id].expires_at_ms is None
    assert await store.rotate_key("AKIANONE", 1.0) is None


async def test_a_rotation_never_prolongs_a_key_and_its_successor_expires_too(place: Place) -> None:
    store = await place.identities()
    old = await store.add_key(ACCOUNT, lifetime_s=10.0)

    place.clock.at_ms += 4_000
    new = await store.rotate_key(old.access_key_id, 3600.0)

    assert by_id(store.all_keys())[old.access_key_id].expires_at_ms == old.expires_at_ms
    assert new is not None
    assert new.expires_at_ms == place.clock.at_ms + 10_000, (
        "it lives as long as the old one was made for"
    )


async def test_a_rotation_without_overlap_disables_the_old_key(place: Place) -> None:
    store = await place.identities()
    old = await store.add_key(ACCOUNT)

    await store.rotate_key(old.access_key_id, 0.0)

    assert not by_id(store.all_keys())[old.access_key_id].enabled


async def test_sessions_are_forgotten_a_day_after_their_end(place: Place) -> None:
    store = await place.identities()
    first = await store.add_session(ACCOUNT, None, 60.0)
    kept = await store.add_key(ACCOUNT, lifetime_s=60.0)
    place.clock.at_ms += 60_000 + 24 * 3600 * 1000

    assert first.access_key_id.startswith("ASIA")
    assert first.has_expired(place.clock.wall_s())
    second = await store.add_session(ACCOUNT, None, 60.0)
    assert by_id(store.all_keys()) == by_id([first, kept, second])
    place.clock.at_ms += 1
    third = await store.add_session(ACCOUNT, None, 60.0)
    assert by_id(store.all_keys()) == by_id([kept, second, third])


async def test_keys_of_another_folder_are_unreadable_and_named(place: Place) -> None:
    key = await (await place.identities()).add_key(ACCOUNT)
    others = Secrets(WrappingKey(b"x" * 32), CountingEntropy())

    with pytest.raises(IdentitiesUnreadable, match=key.access_key_id):
        (await place.identities(others)).all_keys()


# -- users -----------------------------------------------------------------------------------------


async def test_a_user_has_an_id_tags_and_policies_and_is_there_after_a_restart(
    place: Place,
) -> None:
    store = await place.identities()
    user = await store.add_user(ACCOUNT, "ann", {"team": "a"})
    await store.put_policy(user, "one", ALLOW)
    await store.put_policy(user, "two", ALLOW)

    seen = (await place.identities()).users().find(ACCOUNT, "ann")

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


async def test_a_policy_is_replaced_and_taken_away_by_name(place: Place) -> None:
    store = await place.identities()
    user = await store.add_user(ACCOUNT, "ann", {})
    await store.put_policy(user, "p", ALLOW)
    await store.put_policy(user, "p", ALLOW.replace("Allow", "Deny"))

    assert "Deny" in store.policies(user)["p"]
    with pytest.raises(PolicyRefused):
        await store.put_policy(user, "p", "{")
    for document in ("{}", '{"Version": "2012-10-17"}', '{"Statement": []}'):
        with pytest.raises(PolicyRefused, match="it has no Statement"):
            await store.put_policy(user, "p", document)
    assert await store.remove_policy(user, "p")
    assert not await store.remove_policy(user, "p")
    assert store.policies(user) == {}


async def test_two_users_of_one_account_have_two_names(place: Place) -> None:
    store = await place.identities()
    await store.add_user(ACCOUNT, "ann", {})
    await store.add_user("1" * 12, "ann", {})

    with pytest.raises(ValueError, match="already"):
        await store.add_user(ACCOUNT, "ann", {})


async def test_a_removed_user_takes_keys_and_policies_along(place: Place) -> None:
    store = await place.identities()
    user, other = await store.add_user(ACCOUNT, "ann", {}), await store.add_user(ACCOUNT, "bob", {})
    await store.put_policy(user, "p", ALLOW)
    await store.add_key(ACCOUNT, user)
    root, others = await store.add_key(ACCOUNT), await store.add_key(ACCOUNT, other)

    await store.remove_user(user)

    assert by_id(store.all_keys()) == by_id([root, others])
    assert [each.name for each in store.users()] == ["bob"]
    again = await store.add_user(ACCOUNT, "ann", {})
    assert again.user_id != user.user_id
    assert store.policies(again) == {}


async def test_a_users_key_names_the_user_and_so_does_its_successor(place: Place) -> None:
    store = await place.identities()
    user = await store.add_user(ACCOUNT, "ann", {})

    key = await store.add_key(ACCOUNT, user)
    successor = await store.rotate_key(key.access_key_id, 60.0)
    session = await store.add_session(ACCOUNT, user, 60.0)

    for each in (key, successor, session):
        assert each is not None
        assert (each.user, each.principal) == ("ann", user.user_id)


async def test_a_key_can_be_given_and_given_anew(place: Place) -> None:
    store = await place.identities()
    for secret in ("one", "two"):
        key = AccessKey("AKIAFIXED", secret, ACCOUNT, "AIDAFIXED")
        assert await store.declare_key(key)
        assert not await (await place.identities()).declare_key(key)

    assert [key.secret_access_key for key in store.all_keys()] == ["two"]
    await store.set_key_enabled("AKIAFIXED", False)
    assert not await (await place.identities()).declare_key(key), "it stays disabled"


# -- days of use -----------------------------------------------------------------------------------


async def test_the_latest_day_of_use_is_kept_until_the_key_is_removed(place: Place) -> None:
    store, other = await place.identities(), await place.identities()
    key_id, removed = [(await store.add_key(ACCOUNT)).access_key_id for _ in range(2)]
    await place.heard(other)
    await store.note_uses({key_id: 20_000, removed: 20_000})
    await other.note_uses({key_id: 19_999, "gone": 19_999})
    assert (await place.identities()).key_uses() == {key_id: 20_000, removed: 20_000}

    await store.remove_key(removed)
    await store.note_uses({key_id: 20_001})

    assert (await place.identities()).key_uses() == {key_id: 20_001}


async def test_everyone_is_told_of_changes_but_not_of_days_of_use(place: Place) -> None:
    store, other = await place.identities(), await place.identities()
    told: list[str] = []
    store.subscribe(lambda: told.append("here"))
    other.subscribe(lambda: told.append("elsewhere"))

    key_id = (await store.add_key(ACCOUNT)).access_key_id
    await place.heard(store, other)
    await store.note_uses({key_id: 20_000})
    await place.heard(store, other)

    assert other.key_uses() == {key_id: 20_000}
    assert sorted(told) == ["elsewhere", "here"]
    await other.set_key_enabled(key_id, False)
    await place.heard(store, other)
    assert sorted(told) == ["elsewhere"] * 2 + ["here"] * 2
    assert [key.enabled for key in store.all_keys()] == [False]


@pytest.mark.parametrize(
    ("value", "day"),
    [(b"20000", 20_000), (b"0", 0), (b"999999", None), (b"9" * 5_000, None), (b"x", None)],
)
def test_a_damaged_day_of_a_cluster_is_none(value: bytes, day: int | None) -> None:
    assert day_of(value) == day
