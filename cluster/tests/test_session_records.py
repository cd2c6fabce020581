"""Sessions in the store of records: their ends by the clock, and the bounds of their records."""

from __future__ import annotations

from itertools import count

import pytest

from auth.auth_errors import SessionEnded
from cluster.keys import session_store
from cluster.keys.identity_store import IdentityStore
from cluster.keys.session_store import CHALLENGE_MS, LASTS_MS, OF_OWNER_MAX, Challenge, Signer
from cluster.tests.stores import ACCOUNT, Place
from visibility.contract.errors import InvalidParameterValue, RequestThrottled

ids = count()


def challenge(place: Place) -> Challenge:
    return Challenge(str(next(ids)), place.clock.at_ms + CHALLENGE_MS)


async def begin(place: Place, store: IdentityStore, key_id: str | None, user: str = "") -> str:
    signer = Signer(ACCOUNT, "us-east-1", "AIDA", user or None, key_id, "::1", "agent")
    token, _ = await store.sessions.begin(signer, challenge(place))
    return token


def is_over(store: IdentityStore, token: str) -> bool:
    try:
        store.sessions.find(token)
    except SessionEnded:
        return True
    return False


async def test_a_session_lasts_eight_hours_on_all_hosts(place: Place) -> None:
    store = await place.identities()
    token = await begin(place, store, (await store.add_key(ACCOUNT)).access_key_id)
    other = await place.identities()
    place.clock.at_ms += LASTS_MS - 10
    before = is_over(other, token)
    place.clock.at_ms += 20

    assert (before, is_over(other, token), is_over(store, token)) == (False, True, True)


async def test_a_session_ends_with_a_temporary_key(place: Place) -> None:
    store = await place.identities()
    key = await store.add_session(ACCOUNT, None, 60.0)
    token = await begin(place, store, key.access_key_id)
    place.clock.at_ms += 60_000

    assert is_over(store, token)


async def test_a_user_made_anew_has_no_session_of_the_one_before(place: Place) -> None:
    store = await place.identities()
    ann = await store.add_user(ACCOUNT, "ann", {})
    token = await begin(place, store, None, "ann")
    assert not is_over(store, token)
    await store.remove_user(ann)
    await store.add_user(ACCOUNT, "ann", {})

    assert is_over(store, token)


async def test_sessions_are_those_of_one_account(place: Place) -> None:
    store = await place.identities()
    token = await begin(place, store, (await store.add_key(ACCOUNT)).access_key_id)

    assert not store.sessions.of("2" * 12, None)
    assert await store.sessions.end("2" * 12, None, None) == 0
    assert not is_over(store, token)
    assert len(store.sessions.of(ACCOUNT, None)) == 1


async def test_a_replaced_key_keeps_its_sessions_until_it_ends(place: Place) -> None:
    store = await place.identities()
    key = await store.add_key(ACCOUNT)
    token = await begin(place, store, key.access_key_id)
    await store.rotate_key(key.access_key_id, overlap_s=60)
    before = is_over(store, token)
    place.clock.at_ms += 60_000

    assert (before, is_over(store, token)) == (False, True)


async def test_a_challenge_is_answered_once_on_all_hosts_and_in_time(place: Place) -> None:
    store, other = await place.identities(), await place.identities()
    key = await store.add_key(ACCOUNT)
    await other.catch_up()
    signer = Signer(ACCOUNT, "us-east-1", "AIDA", None, key.access_key_id, "", "")
    answered, late = challenge(place), challenge(place)
    await store.sessions.begin(signer, answered)
    with pytest.raises(InvalidParameterValue, match="answered before"):
        await other.sessions.begin(signer, answered)
    place.clock.at_ms += CHALLENGE_MS

    with pytest.raises(InvalidParameterValue, match="has ended"):
        await store.sessions.begin(signer, late)


async def test_records_of_what_has_ended_are_forgotten(place: Place) -> None:
    store = await place.identities()
    key_id = (await store.add_key(ACCOUNT)).access_key_id
    for _ in range(OF_OWNER_MAX):
        await begin(place, store, key_id)
    place.clock.at_ms += LASTS_MS
    await begin(place, store, key_id)

    kinds = [record.key.partition("/")[0] for record in (await place.snapshot()).records]
    assert (kinds.count("sessions"), kinds.count("challenges")) == (1, 1)


async def test_all_records_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_store, "SESSIONS_MAX", 2)
    monkeypatch.setattr(session_store, "CHALLENGES_MAX", 3)
    store = await place.identities()
    tokens = []
    for name in ("a", "b", "c"):
        key = await store.add_key(ACCOUNT, await store.add_user(ACCOUNT, name, {}))
        tokens.append(await begin(place, store, key.access_key_id, name))
    with pytest.raises(RequestThrottled):
        await begin(place, store, key.access_key_id, name)

    assert [is_over(store, token) for token in tokens] == [True, False, False]


async def test_nobody_signs_in_who_is_gone(place: Place) -> None:
    store = await place.identities()
    for key_id, user in (("AKIAGONE", ""), (None, "gone")):
        with pytest.raises(SessionEnded):
            await begin(place, store, key_id, user)


ALLOW = '{"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'


async def test_a_person_of_a_provider_is_one_user_whose_role_follows(place: Place) -> None:
    store = await place.identities()
    ann, roles = (ACCOUNT, "ann"), ["viewer", "admin"]
    unknown = await store.admit(ann, "issuer s", roles, None)
    first = await store.admit(ann, "issuer s", roles, {"viewer": ALLOW})
    assert first is not None
    await store.put_policy(first, "own", ALLOW)
    token = await begin(place, store, None, "ann")
    same = await store.admit(ann, "issuer s", roles, {"viewer": ALLOW})
    before = is_over(store, token)
    await store.admit(ann, "issuer s", roles, None)
    with pytest.raises(ValueError, match="is not the one"):
        await store.admit(ann, "issuer other", roles, {"admin": ALLOW})

    assert (unknown, same and same.user_id, before) == (None, first.user_id, False)
    assert store.policies(first).keys() == {"own"}
    assert is_over(store, token)
