"""The days on which access keys are used are written once each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from auth.credentials import AccessKey, CredentialSet
from auth.sigv4 import Verifier
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from sqs_api.gateway.used_keys import UsedKeys
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, add_user
from sqs_api.tests.served import serving

KEY = AccessKey("AKIA1", "secret", "0" * 12, "AIDA1")


class Notes:
    """Written days; `is_away` refuses them."""

    def __init__(self) -> None:
        self.days: list[Mapping[str, int]] = []
        self.is_away = False

    async def note(self, days: Mapping[str, int]) -> None:
        if self.is_away:
            raise IdentitiesUnreadable("etcd is away")
        self.days.append(days)


async def test_a_day_of_a_key_is_written_once() -> None:
    notes, verifier = Notes(), Verifier(CredentialSet([KEY]))
    used = UsedKeys(verifier, notes.note)
    await used.write()
    verifier.used.update({"AKIA1": 20_000, "gone": 20_000})
    await used.write()
    await used.write()
    verifier.used["AKIA1"] = 20_001
    await used.write()

    assert notes.days == [{"AKIA1": 20_000}, {"AKIA1": 20_001}]
    assert verifier.used == {"AKIA1": 20_001}


async def test_what_could_not_be_written_is_written_later() -> None:
    notes, verifier = Notes(), Verifier(CredentialSet([KEY]))
    used = UsedKeys(verifier, notes.note)
    verifier.used["AKIA1"] = 20_000
    notes.is_away = True
    await used.write()
    notes.is_away = False
    await used.write()

    assert notes.days == [{"AKIA1": 20_000}]


async def test_a_stop_does_not_wait_for_an_etcd_that_is_away(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Mapping[str, int]] = []

    async def note(store: IdentityStore, days: Mapping[str, int]) -> None:
        called.append(days)
        await asyncio.sleep(60)

    monkeypatch.setattr(IdentityStore, "note_uses", note)
    monkeypatch.setattr("sqs_api.gateway.used_keys.STOP_S", 0.01)
    key = add_user(data, "user", "holdfast:*")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        await Operators(served, key).seen("queues")
    assert called
