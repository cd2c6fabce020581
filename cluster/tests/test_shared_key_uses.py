"""Days of use in shared records go with their keys, whichever hosts write and remove at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cluster.coordination.coordination import Transaction
from cluster.keys.identity_store import IdentityStore
from cluster.keys.shared_identities import SharedIdentities
from cluster.tests.shared_stores import Memory
from cluster.tests.virtual_time import CountingEntropy, SettableClock, some_secrets

ACCOUNT = "000000000000"


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Hosts whose watches may be late."""
    with ExitStack() as stack:
        yield Memory(stack)


def late_hosts(memory: Memory) -> tuple[SharedIdentities, SharedIdentities, str]:
    """The identities of two hosts, with a key."""
    one, other = (SharedIdentities(memory.open(shown_s=0.01)) for _ in range(2))
    store = IdentityStore(one, some_secrets(), SettableClock(), CountingEntropy())
    return one, other, store.add_key(ACCOUNT).access_key_id


def uses_in(memory: Memory) -> set[str]:
    return {key for key in memory.coordination.records if key.startswith("uses/")}


def test_a_day_of_use_is_removed_with_a_key_that_another_host_uses(memory: Memory) -> None:
    one, other, key_id = late_hosts(memory)
    memory.coordination.held_back = []
    one.uses.write({key_id: 20_000}, {key_id})

    other.change(lambda rows: rows.remove_key(key_id))

    assert uses_in(memory) == set()


def test_a_day_of_use_is_not_written_for_a_key_that_another_host_removed(memory: Memory) -> None:
    one, other, key_id = late_hosts(memory)
    memory.coordination.held_back = []
    one.change(lambda rows: rows.remove_key(key_id))

    other.uses.write({key_id: 20_000}, {key_id})

    assert uses_in(memory) == set()


@pytest.mark.parametrize("value", [b"20000", b"damaged"])
def test_days_of_keys_that_are_gone_are_removed(memory: Memory, value: bytes) -> None:
    one, _, key_id = late_hosts(memory)
    orphan = Transaction({}, {"uses/AKIAGONE": value})
    memory.loop.run(memory.coordination.commit(orphan))

    one.uses.write({key_id: 20_000}, {key_id})

    assert uses_in(memory) == {f"uses/{key_id}"}
