"""Users and keys of a cluster: hosts that change them at once, and records that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import pytest

from auth.credentials import AccessKey
from auth.envelope import BUILT_IN_KEY, DataKey, SealBroken
from cluster.clock import SystemEntropy
from cluster.coordination.coordination import Record
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import KeysAway
from cluster.keys.master_key import KeysUnusable, WrongMasterKey
from cluster.keys.shared_identities import SharedIdentities
from cluster.keys.shared_key_records import BLOCK
from cluster.keys.shared_keyring import SharedKeyring
from cluster.tests.key_folder import ACCOUNT, MASTER
from cluster.tests.shared_stores import KINDS, Late, SharedHosts, shared_hosts, soon
from cluster.tests.virtual_time import SettableClock, some_secrets


class Opened:
    """Opens stores of hosts, and runs work of several of them at once."""

    def __init__(self, hosts: SharedHosts, stack: ExitStack) -> None:
        self.hosts = hosts
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor(8))

    def identities(self) -> IdentityStore:
        records = SharedIdentities(self.hosts.records(IdentitiesUnreadable))
        store = IdentityStore(records, some_secrets(), SettableClock(), SystemEntropy())
        return self._stack.enter_context(closing(store))

    def keyring(self, master: bytes = MASTER) -> SharedKeyring:
        keyring = SharedKeyring(self.hosts.records(), master, SettableClock(), SystemEntropy())
        return self._stack.enter_context(closing(keyring))

    def at_once(self, *work: Callable[[], object]) -> list[Any]:
        """The results, or errors, of some work on as many threads."""

        def run(each: Callable[[], object]) -> object:
            try:
                return each()
            except (ValueError, KeysUnusable, IdentitiesUnreadable) as error:
                return error

        return list(self._threads.map(run, work))


@pytest.fixture(params=KINDS[1:])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with shared_hosts(request, request.param) as hosts, ExitStack() as stack:
        yield Opened(hosts, stack)


def test_hosts_that_found_a_cluster_at_once_have_the_same_keys(opened: Opened) -> None:
    keyrings = opened.at_once(*[opened.keyring] * 3)

    one, *others = [each for each in keyrings if isinstance(each, SharedKeyring)]
    stored = one.secrets.encrypt(b"a secret", "p")
    assert len(others) == 2
    for other in others:
        assert other.digest_key == one.digest_key
        assert other.secrets.decrypt(stored, "p") == b"a secret"
        assert other.names() == one.names()
    assert [key.name for key in one.names()] == [BUILT_IN_KEY]


def test_a_host_with_another_master_key_is_refused_and_changes_nothing(opened: Opened) -> None:
    keyring = opened.keyring()
    before = opened.hosts.bytes()

    with pytest.raises(WrongMasterKey, match="not under this master key"):
        opened.keyring(b"o" * 32)

    assert opened.hosts.bytes() == before
    keyring.rotate(BUILT_IN_KEY)


def test_a_command_makes_no_cluster(opened: Opened) -> None:
    with pytest.raises(KeysUnusable, match="no keys yet"):
        SharedKeyring(
            opened.hosts.records(), MASTER, SettableClock(), SystemEntropy(), founds=False
        )

    assert opened.hosts.snapshot().records == []


def test_hosts_that_add_keys_at_once_all_succeed_and_no_number_is_issued_twice(
    opened: Opened,
) -> None:
    keyrings = [opened.keyring() for _ in range(3)]

    added = opened.at_once(
        *[partial(each.add, f"k{n}", ACCOUNT) for n, each in enumerate(keyrings * 2)],
        *[partial(each.rotate, BUILT_IN_KEY) for each in keyrings],
    )
    built_in = [each.named(BUILT_IN_KEY) for each in keyrings]
    made = opened.at_once(
        *[partial(each.new_data_key, named) for each, named in zip(keyrings, built_in, strict=True)]
        * 2
    )

    assert [each for each in added if isinstance(each, Exception)] == []
    last = opened.keyring()
    versions = [key.version for key in last.names()]
    assert len(set(versions)) == 7
    assert last.named(BUILT_IN_KEY).versions == 4
    assert len(last._wrapping) == 10
    keys = [each for each in made if not isinstance(each, Exception)]
    assert len({key.number for key in keys}) == len(made) == 6
    for key in keys:
        assert last.data_key(key.number)[1].open(key.seal(b"x")) == b"x"


def test_of_two_hosts_that_add_one_name_one_is_refused(opened: Opened) -> None:
    one, other = opened.keyring(), opened.keyring()
    first, second = opened.identities(), opened.identities()

    for outcomes in (
        opened.at_once(*[partial(each.add, "k", ACCOUNT) for each in (one, other)]),
        opened.at_once(*[partial(each.add_user, ACCOUNT, "k", {}) for each in (first, second)]),
    ):
        (refused,) = [each for each in outcomes if isinstance(each, Exception)]
        assert "k already" in str(refused)


def test_a_block_lasts_for_many_data_keys_and_the_next_one_follows(opened: Opened) -> None:
    keyring, other = opened.keyring(), opened.keyring()
    named = keyring.names()[0]
    before = len(opened.hosts.snapshot().records)

    numbers = [keyring.new_data_key(named).number for _ in range(BLOCK + 1)]
    others = other.new_data_key(other.names()[0])

    assert numbers == list(range(1, BLOCK + 2))
    assert others.number == 2 * BLOCK + 1
    assert len(opened.hosts.snapshot().records) == before + 3 + 1, "three blocks and their counter"
    secrets = {opened.keyring().data_key(number)[1].seal(b"")[8:] for number in numbers[:50]}
    assert len(secrets) == 50


def test_a_rotated_key_makes_no_more_data_keys_from_its_block(opened: Opened) -> None:
    keyring, other = opened.keyring(), opened.keyring()
    named = keyring.names()[0]
    first = keyring.new_data_key(named).number

    keyring.rotate(BUILT_IN_KEY)
    second = keyring.new_data_key(named).number
    other.rotate(BUILT_IN_KEY)
    soon(lambda: named.versions == 3)
    third = keyring.new_data_key(named).number

    assert (first, second, third) == (1, BLOCK + 1, 2 * BLOCK + 1)


@pytest.mark.slow
def test_more_blocks_than_fit_into_a_transaction_are_rewrapped(opened: Opened) -> None:
    keyring = opened.keyring()
    named = keyring.names()[0]
    sealed = []
    for _ in range(105):
        keyring._blocks.clear()  # as after a restart
        key = keyring.new_data_key(named)
        sealed.append((key.number, key.seal(b"body")))
    opened.keyring().rotate(BUILT_IN_KEY)

    assert opened.keyring().rewrap(BUILT_IN_KEY) == 105

    last = opened.keyring()
    assert last.named(BUILT_IN_KEY).versions == 1
    assert [last.data_key(number)[1].open(data) for number, data in sealed] == [b"body"] * 105


def test_no_block_is_left_under_a_version_that_another_host_forgets(opened: Opened) -> None:
    one, other = opened.keyring(), opened.keyring()
    named = one.names()[0]
    for _ in range(5):
        one._blocks.clear()

        def rotate() -> None:
            other.rotate(BUILT_IN_KEY)
            other.rewrap(BUILT_IN_KEY)

        opened.at_once(rotate, lambda: one.new_data_key(named))

    last = opened.keyring()
    assert [last.data_key(number)[0].name for number in one._data_keys] == [BUILT_IN_KEY] * 5


def test_of_the_hosts_that_start_first_one_makes_the_first_access_key(opened: Opened) -> None:
    stores = [opened.identities() for _ in range(3)]

    made = opened.at_once(*[partial(each.add_first_key, ACCOUNT) for each in stores])

    (key,) = [each for each in made if isinstance(each, AccessKey)]
    assert made.count(None) == 2
    assert [each.all_keys() for each in stores] == [[key]] * 3
    assert opened.identities().add_first_key(ACCOUNT) is None


def test_a_user_who_is_removed_while_keys_are_made_leaves_none(opened: Opened) -> None:
    one, other = opened.identities(), opened.identities()
    for _ in range(5):
        ann = one.add_user(ACCOUNT, "ann", {})
        make, remove = partial(other.add_key, ACCOUNT, ann), partial(one.remove_user, ann)

        opened.at_once(make, remove)

        last = opened.identities()
        assert last.all_keys() == []
        assert len(last.users()) == 0


@pytest.mark.slow
def test_a_user_with_more_keys_than_fit_into_a_transaction_is_removed(opened: Opened) -> None:
    store = opened.identities()
    ann = store.add_user(ACCOUNT, "ann", {})
    for _ in range(130):
        store.add_key(ACCOUNT, ann)
    kept = store.add_key(ACCOUNT)

    store.remove_user(ann)

    assert store.all_keys() == opened.identities().all_keys() == [kept]
    assert len(store.users()) == 0


# -- on a watch that is late -----------------------------------------------------------------------


@pytest.fixture
def late() -> Iterator[Late]:
    with ExitStack() as stack:
        yield Late(stack)


def test_a_data_key_of_another_host_is_read_where_the_watch_is_late(late: Late) -> None:
    key = late.one.new_data_key(late.one.add("orders", ACCOUNT))
    sealed = key.seal(b"body")

    named, found = late.other.data_key(key.number)

    assert found.open(sealed) == b"body"
    assert (named.name, named.account) == ("orders", ACCOUNT)
    late.report()
    assert late.other.find("orders", ACCOUNT) is named


async def test_an_event_loop_does_not_wait_for_a_data_key(late: Late) -> None:
    key = await asyncio.to_thread(late.one.new_data_key, late.one.names()[0])
    unknown = key.number + BLOCK

    for number in (key.number, unknown):
        with pytest.raises(KeysAway):
            late.other.data_key(number)

    found: list[DataKey] = []
    while not found:
        with suppress(KeysAway):
            found.append(late.other.data_key(key.number)[1])
        await asyncio.sleep(0.001)
    assert found[0].open(key.seal(b"body")) == b"body"
    while late.other._sought:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    with pytest.raises(SealBroken, match="no data key"):
        late.other.data_key(unknown)


async def test_a_data_key_that_cannot_be_read_now_is_asked_for_again(late: Late) -> None:
    key = await asyncio.to_thread(late.one.new_data_key, late.one.names()[0])
    late.coordination.is_away = True
    for _ in range(3):
        with pytest.raises(KeysAway):
            late.other.data_key(key.number)
        while late.other._sought:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    late.coordination.is_away = False
    found: list[DataKey] = []
    while not found:
        with suppress(KeysAway):
            found.append(late.other.data_key(key.number)[1])
        await asyncio.sleep(0.001)

    assert found[0].number == key.number


def test_a_damaged_block_is_refused_and_the_rest_stays_readable(late: Late) -> None:
    key = late.one.new_data_key(late.one.names()[0])
    soon(lambda: "data/1" in late.coordination.records)
    late.coordination.records["data/1"] = Record("data/1", b"{", late.coordination.revision)

    damaged = late.open()

    with pytest.raises(SealBroken):
        damaged.data_key(key.number)
    assert damaged.new_data_key(damaged.names()[0]).number == BLOCK + 1
