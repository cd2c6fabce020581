"""Keys belong to accounts, and can be granted to others."""

from __future__ import annotations

import pytest

from auth.envelope import BUILT_IN_KEY
from auth.policy_document import Kind, read_policy
from cluster.keys.key_owners import Grant
from cluster.tests.stores import ACCOUNT, Place

OTHERS = "222222222222"


async def test_each_account_has_its_own_keys(place: Place) -> None:
    keyring = await place.keyring()
    mine, others = [await keyring.add("orders", account) for account in (ACCOUNT, OTHERS)]

    for found in (keyring, await place.keyring()):
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
        await keyring.add("orders", OTHERS)
    with pytest.raises(KeyError):  # it does not reveal which of them
        await keyring.rotate("orders")


async def test_keys_of_one_name_are_rotated_and_disabled_apart(place: Place) -> None:
    keyring = await place.keyring()
    mine, others = [await keyring.add("orders", account) for account in (ACCOUNT, OTHERS)]
    data_keys = [await keyring.new_data_key(key) for key in (mine, others)]

    await keyring.rotate(keyring.named("orders", OTHERS).key_id)
    await keyring.set_enabled(keyring.named("orders", OTHERS).key_id, False)
    assert await keyring.rewrap(keyring.named("orders", OTHERS).key_id) == 1

    assert (mine.versions, mine.enabled, others.enabled) == (1, True, False)
    again = await place.keyring()
    for named, data_key in zip((mine, others), data_keys, strict=True):
        owner, key = again.data_key(data_key.number)
        assert owner == named
        assert key.open(data_key.seal(b"x")) == b"x"


async def test_grants_are_taken_over_by_a_running_server(place: Place) -> None:
    server, command = await place.keyring(), await place.keyring()
    await command.add("orders", ACCOUNT)
    await place.heard(server)
    seen = server.named("orders", ACCOUNT)
    assert (seen.grants, seen.policy) == ((), None)

    await command.grant(
        command.named("orders", ACCOUNT).key_id, Grant(OTHERS, ("GenerateDataKey", "Decrypt"))
    )
    await command.grant(command.named("orders", ACCOUNT).key_id, Grant(OTHERS, ("Decrypt",)))

    await place.heard(server)
    assert seen.grants == (Grant(OTHERS, ("Decrypt",)),)
    assert read_policy(seen.policy or "", Kind.KEY).statements[0].allows
    await command.revoke(command.named("orders", ACCOUNT).key_id, OTHERS)
    await place.heard(server)
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
async def test_grants_that_cannot_be_are_refused(place: Place, grant: Grant) -> None:
    keyring = await place.keyring()
    await keyring.add("orders", ACCOUNT)

    with pytest.raises(ValueError, match=r"account|operations"):
        await keyring.grant(keyring.named("orders", ACCOUNT).key_id, grant)


async def test_the_built_in_key_is_nobodys_to_grant(place: Place) -> None:
    keyring = await place.keyring()
    with pytest.raises(ValueError, match="belongs to no account"):
        await keyring.grant(BUILT_IN_KEY, Grant(OTHERS, ("Decrypt",)))
