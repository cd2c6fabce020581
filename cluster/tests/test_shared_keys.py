"""Users and keys of a cluster: hosts that change them at once, and records that come late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from auth.credentials import AccessKey
from auth.envelope import BUILT_IN_KEY, SealBroken
from cluster.coordination.coordination import Record
from cluster.keys.key_records import BLOCK
from cluster.keys.keyring import Keyring, KeysAway
from cluster.keys.master_key import KeysUnusable, WrongMasterKey
from cluster.tests.coordinations import until
from cluster.tests.stores import ACCOUNT, KINDS, Late, Place, found, late_hosts, opened_place


async def at_once(*work: Awaitable[object]) -> list[Any]:
    """The results, or errors, of some work."""
    return await asyncio.gather(*work, return_exceptions=True)


@pytest.fixture(params=KINDS[1:])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with opened_place(request, request.param, tmp_path) as place:
        yield place


async def test_hosts_that_found_a_cluster_at_once_have_the_same_keys(place: Place) -> None:
    keyrings = await at_once(*[place.keyring() for _ in range(3)])

    one, *others = [each for each in keyrings if isinstance(each, Keyring)]
    stored = one.secrets.encrypt(b"a secret", "p")
    assert len(others) == 2
    for other in others:
        assert other.digest_key == one.digest_key
        assert other.secrets.decrypt(stored, "p") == b"a secret"
        assert other.names() == one.names()
    assert [key.name for key in one.names()] == [BUILT_IN_KEY]


async def test_a_host_with_another_master_key_is_refused_and_changes_nothing(
    place: Place,
) -> None:
    keyring = await place.keyring()
    before = await place.bytes()

    with pytest.raises(WrongMasterKey, match="not under this master key"):
        await place.keyring(b"o" * 32)

    assert await place.bytes() == before
    await keyring.rotate(BUILT_IN_KEY)


async def test_a_command_makes_no_cluster(place: Place) -> None:
    with pytest.raises(KeysUnusable, match="no keys yet"):
        await place.keyring(founds=False)

    assert (await place.snapshot()).records == []


async def test_hosts_that_add_keys_at_once_all_succeed_and_no_number_is_issued_twice(
    place: Place,
) -> None:
    keyrings = [await place.keyring() for _ in range(3)]

    added = await at_once(
        *[each.add(f"k{n}", ACCOUNT) for n, each in enumerate(keyrings * 2)],
        *[each.rotate(BUILT_IN_KEY) for each in keyrings],
    )
    made = await at_once(*[each.new_data_key(each.named(BUILT_IN_KEY)) for each in keyrings * 2])

    assert [each for each in added if isinstance(each, Exception)] == []
    last = await place.keyring()
    versions = [key.version for key in last.names()]
    assert len(set(versions)) == 7
    assert last.named(BUILT_IN_KEY).versions == 4
    assert len(last._wrapping) == 10
    keys = [each for each in made if not isinstance(each, Exception)]
    assert len({key.number for key in keys}) == len(made) == 6
    for key in keys:
        assert last.data_key(key.number)[1].open(key.seal(b"x")) == b"x"


async def test_of_two_hosts_that_add_one_name_one_is_refused(place: Place) -> None:
    one, other = await place.keyring(), await place.keyring()
    first, second = await place.identities(), await place.identities()

    for outcomes in (
        await at_once(*[each.add("k", ACCOUNT) for each in (one, other)]),
        await at_once(*[each.add_user(ACCOUNT, "k", {}) for each in (first, second)]),
    ):
        (refused,) = [each for each in outcomes if isinstance(each, Exception)]
        assert "k already" in str(refused)


async def test_a_block_lasts_for_many_data_keys_and_the_next_one_follows(place: Place) -> None:
    keyring, other = await place.keyring(), await place.keyring()
    named = keyring.names()[0]
    before = len((await place.snapshot()).records)

    numbers = [(await keyring.new_data_key(named)).number for _ in range(BLOCK + 1)]
    others = await other.new_data_key(other.names()[0])

    assert numbers == list(range(1, BLOCK + 2))
    assert others.number == 2 * BLOCK + 1
    assert len((await place.snapshot()).records) == before + 3 + 1, "three blocks and their counter"
    last = await place.keyring()
    secrets = {last.data_key(number)[1].seal(b"")[8:] for number in numbers[:50]}
    assert len(secrets) == 50


async def test_a_rotated_key_makes_no_more_data_keys_from_its_block(place: Place) -> None:
    keyring, other = await place.keyring(), await place.keyring()
    named = keyring.names()[0]
    first = (await keyring.new_data_key(named)).number

    await keyring.rotate(BUILT_IN_KEY)
    second = (await keyring.new_data_key(named)).number
    await other.rotate(BUILT_IN_KEY)
    await until(lambda: named.versions == 3)
    third = (await keyring.new_data_key(named)).number

    assert (first, second, third) == (1, BLOCK + 1, 2 * BLOCK + 1)


@pytest.mark.slow
async def test_more_blocks_than_fit_into_a_transaction_are_rewrapped(place: Place) -> None:
    keyring = await place.keyring()
    named = keyring.names()[0]
    sealed = []
    for _ in range(105):
        keyring._blocks.clear()  # as after a restart
        key = await keyring.new_data_key(named)
        sealed.append((key.number, key.seal(b"body")))
    await (await place.keyring()).rotate(BUILT_IN_KEY)

    assert await (await place.keyring()).rewrap(BUILT_IN_KEY) == 105

    last = await place.keyring()
    assert last.named(BUILT_IN_KEY).versions == 1
    assert [last.data_key(number)[1].open(data) for number, data in sealed] == [b"body"] * 105


async def test_no_block_is_left_under_a_version_that_another_host_forgets(place: Place) -> None:
    one, other = await place.keyring(), await place.keyring()
    named = one.names()[0]
    for _ in range(5):
        one._blocks.clear()

        async def rotate() -> None:
            await other.rotate(BUILT_IN_KEY)
            await other.rewrap(BUILT_IN_KEY)

        await at_once(rotate(), one.new_data_key(named))

    last = await place.keyring()
    assert [last.data_key(number)[0].name for number in one._data_keys] == [BUILT_IN_KEY] * 5


async def test_of_the_hosts_that_start_first_one_makes_the_first_access_key(place: Place) -> None:
    stores = [await place.identities() for _ in range(3)]

    made = await at_once(*[each.add_first_key(ACCOUNT) for each in stores])

    (key,) = [each for each in made if isinstance(each, AccessKey)]
    assert made.count(None) == 2
    await place.heard(*stores)
    assert [each.all_keys() for each in stores] == [[key]] * 3
    assert await (await place.identities()).add_first_key(ACCOUNT) is None


async def test_a_user_who_is_removed_while_keys_are_made_leaves_none(place: Place) -> None:
    one, other = await place.identities(), await place.identities()
    for _ in range(5):
        ann = await one.add_user(ACCOUNT, "ann", {})
        make, remove = other.add_key(ACCOUNT, ann), one.remove_user(ann)

        await at_once(make, remove)

        last = await place.identities()
        assert last.all_keys() == []
        assert len(last.users()) == 0


@pytest.mark.slow
async def test_a_user_with_more_keys_than_fit_into_a_transaction_is_removed(place: Place) -> None:
    store = await place.identities()
    ann = await store.add_user(ACCOUNT, "ann", {})
    for _ in range(130):
        await store.add_key(ACCOUNT, ann)
    kept = await store.add_key(ACCOUNT)

    await store.remove_user(ann)

    assert store.all_keys() == (await place.identities()).all_keys() == [kept]
    assert len(store.users()) == 0


# -- on a watch that is late -----------------------------------------------------------------------


@pytest.fixture
async def late() -> AsyncIterator[Late]:
    async with late_hosts() as late:
        yield late


async def test_a_data_key_of_another_host_is_read_where_the_watch_is_late(late: Late) -> None:
    key = await late.one.new_data_key(await late.one.add("orders", ACCOUNT))
    sealed = key.seal(b"body")

    named, again = await found(late.other, key.number)

    assert again.open(sealed) == b"body"
    assert (named.name, named.account) == ("orders", ACCOUNT)
    late.report()
    assert late.other.find("orders", ACCOUNT) is named


async def test_an_event_loop_does_not_wait_for_a_data_key(late: Late) -> None:
    key = await late.one.new_data_key(late.one.names()[0])
    unknown = key.number + BLOCK

    for number in (key.number, unknown):
        with pytest.raises(KeysAway):
            late.other.data_key(number)

    again = (await found(late.other, key.number))[1]
    assert again.open(key.seal(b"body")) == b"body"
    while late.other._sought:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    with pytest.raises(SealBroken, match="no data key"):
        late.other.data_key(unknown)


async def test_a_data_key_that_cannot_be_read_now_is_asked_for_again(late: Late) -> None:
    key = await late.one.new_data_key(late.one.names()[0])
    late.coordination.is_away = True
    for _ in range(3):
        with pytest.raises(KeysAway):
            late.other.data_key(key.number)
        while late.other._sought:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    late.coordination.is_away = False
    again = (await found(late.other, key.number))[1]
    assert again.number == key.number


async def test_a_damaged_block_is_refused_and_the_rest_stays_readable(late: Late) -> None:
    key = await late.one.new_data_key(late.one.names()[0])
    late.coordination.records["data/1"] = Record("data/1", b"{", late.coordination.revision)

    damaged = await late.place.keyring()

    with pytest.raises(SealBroken):
        damaged.data_key(key.number)
    assert (await damaged.new_data_key(damaged.names()[0])).number == BLOCK + 1
