"""Files beside the shards that are gone or were changed stop the start in one line that names
them."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sqs_api.node import Node, NodeRefused
from sqs_api.settings.config import Settings
from sqs_api.tests.served import filled


def _refusal(data: Path) -> str:
    return asyncio.run(_start(data))


async def _start(data: Path) -> str:
    with pytest.raises(NodeRefused) as refused:
        await Node(Settings(port=0, data=data)).start()
    return str(refused.value)


def test_lost_users_and_keys_are_not_replaced_by_a_new_key(tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    for file in data.glob("identities.sqlite*"):
        file.unlink()

    assert "identities.sqlite are missing" in _refusal(data)


@pytest.mark.parametrize(
    "damage",
    [
        "attributes = '{\"a'",
        "attributes = '{}'",
        "attributes = '[]'",
        "attributes = replace(attributes, '345600', '3456x0')",
        "tags = X'FF'",
        "tags = 7",
        "receipt_key = X'00'",
        "receipt_key = 7",
    ],
)
def test_a_changed_queue_in_the_catalog_is_named(tmp_path: Path, damage: str) -> None:
    data = filled(tmp_path / "data")
    file = data / "catalog.sqlite"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(f"UPDATE queues SET {damage} WHERE name = 'q'")

    text = _refusal(data)

    assert str(file) in text
    assert "queue 'q' cannot be read" in text
    assert "\n" not in text
