"""Commands change users and keys through the service that has the folder open; nobody else may."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.signing import SigningKey
from cluster.coordination.coordination import Snapshot
from sqs_api.settings.config import AuthMode
from sqs_api.settings.service_note import read_note
from sqs_api.tests.commands import KEY, run
from sqs_api.tests.operator_client import add_user, keys_of
from sqs_api.tests.served import Served, serving
from storage.engines.in_use import lock_records
from storage.files.folder import FolderRefused


def local_key(data: Path) -> SigningKey:
    note = read_note(data)
    assert note is not None
    return SigningKey(note.access_key_id, note.secret_access_key, "us-east-1")


async def commit(
    served: Served, key: SigningKey | None, **changes: bytes | None
) -> tuple[int, Any]:
    named = {name.replace("_", "/"): value for name, value in changes.items()}
    body = msgspec.json.encode([{}, named])
    answer = await served.ask_page("POST", "records", body, key=key)
    return answer.status, answer.json


async def test_the_key_of_the_folder_reads_and_changes_users_and_keys_only(data: Path) -> None:
    async with serving(data, auth=AuthMode.SIGV4) as served:
        key = local_key(data)
        answer = await served.ask_page("GET", "records", key=key)
        status, outcome = await commit(served, key, keyring_test=b"1", identities_test=b"2")
        other, refused = await commit(served, key, catalog_test=b"1")
        broken = await served.ask_page("POST", "records", b"[]", key=key)
        again = await served.ask_page("GET", "records", key=key)

    found = msgspec.convert(answer.json, Snapshot)
    assert {record.key.partition("/")[0] for record in found.records} == {"keyring", "identities"}
    assert (status, outcome) == (200, ["Done", found.revision + 1])
    assert (other, broken.status) == (400, 400)
    assert refused == {"error": "These are no records of users and keys."}
    now = {record.key: record.value for record in msgspec.convert(again.json, Snapshot).records}
    assert (now["keyring/test"], now["identities/test"]) == (b"1", b"2")


@pytest.mark.parametrize("auth", [AuthMode.SIGV4, AuthMode.OPEN])
async def test_no_other_key_does(data: Path, auth: AuthMode) -> None:
    root = keys_of(run("credentials", "--data", data, "add"))
    user = add_user(data, "ann", "holdfast:*")
    async with serving(data, auth=auth) as served:
        forged = local_key(data)._replace(secret_access_key="x")
        for key in (None, root, user, forged):
            assert (await served.ask_page("GET", "records", key=key)).status == 403
            assert (await commit(served, key, identities_test=b"1"))[0] == 403
        passed_on = {"x-forwarded-for": "10.0.0.1"}
        answer = await served.ask_page("GET", "records", key=local_key(data), more=passed_on)
        assert answer.status == 403


async def test_a_command_beside_the_service_is_known_to_it_at_once(data: Path) -> None:
    async with serving(data, auth=AuthMode.SIGV4) as served:
        with pytest.raises(FolderRefused, match="is in use by process"):
            lock_records(data)

        said = await asyncio.to_thread(run, "credentials", "--data", data, "add")
        (key_id,) = KEY.findall(said.out)
        assert served.node.worker.verifier.credentials.find(key_id) is not None
        await asyncio.to_thread(run, "credentials", "--data", data, "remove", key_id)
        assert served.node.worker.verifier.credentials.find(key_id) is None

        await asyncio.to_thread(run, "keys", "--data", data, "add", "orders")
        changed = await asyncio.to_thread(run, "keys", "--data", data, "change-master")
        assert changed.status == 0
        named = served.node.owner.keyring.named("orders")
        key = await served.node.owner.keyring.new_data_key(named)
        sealed = key.seal(b"body")

    async with serving(data, auth=AuthMode.SIGV4) as served:
        assert served.node.owner.keyring.data_key(key.number)[1].open(sealed) == b"body"
    assert "orders" in run("keys", "--data", data, "list").out


async def test_a_service_that_starts_waits_for_a_command(data: Path) -> None:
    run("credentials", "--data", data, "add")
    lock = lock_records(data)

    async def ends() -> None:
        await asyncio.sleep(0.2)
        os.close(lock)

    ending = asyncio.create_task(ends())
    async with serving(data):
        assert ending.done()
