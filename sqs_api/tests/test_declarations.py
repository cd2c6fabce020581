"""Declared queues and users exist after a start, and the next start changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sqs_api.node import Node, start_node
from sqs_api.settings.config import ConfigRefused, Settings, load
from sqs_api.start_refusals import NodeRefused
from visibility.tests import prepared

FILE = """
account = "111111111111"

[[queues]]
name = "orders"
attributes = { VisibilityTimeout = 60, SqsManagedSseEnabled = false }
dead_letter_queue = "orders-dead"
max_receive_count = 3
tags = { team = "shop" }

[queues.policy]
Version = "2012-10-17"
Statement = [{ Effect = "Allow", Principal = "*", Action = "sqs:SendMessage", Resource = "*" }]

[[queues]]
name = "orders-dead"

[[queues]]
name = "steps.fifo"
region = "eu-west-1"
attributes = { ContentBasedDeduplication = true }

[[users]]
name = "ann"
tags = { team = "shop" }
access_keys = [{ access_key_id = "AKIAANN", secret_access_key_env = "ANNS_SECRET" }]

[users.policies.all]
Statement = [{ Effect = "Allow", Action = "sqs:*", Resource = "*" }]
"""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNS_SECRET", "a-secret-of-ann-0123456789")


def _settings(folder: Path, text: str = FILE, **flags: Any) -> Settings:
    file = folder / "holdfast.toml"
    file.write_text(text)
    return load({"data": folder / "data", "port": 0, **flags}, file)


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[Node]:
    node = await start_node(settings)
    yield node
    await node.stop()


def _queues(node: Node) -> dict[str, Any]:
    return {queue.name: queue for queue in node.owner.catalog}


async def test_declared_queues_and_users_are_there(tmp_path: Path) -> None:
    async with _running(_settings(tmp_path)) as node:
        queues = _queues(node)
        (user,) = node.owner.identities.users()
        (key,) = node.owner.identities.all_keys()

    orders = queues["orders"]
    assert (orders.account, orders.region, orders.tags) == ("1" * 12, "us-east-1", {"team": "shop"})
    assert orders.attributes["VisibilityTimeout"] == "60"
    assert orders.attributes["SqsManagedSseEnabled"] == "false"
    assert json.loads(orders.attributes["RedrivePolicy"]) == {
        "deadLetterTargetArn": queues["orders-dead"].arn,
        "maxReceiveCount": 3,
    }
    assert json.loads(orders.attributes["Policy"])["Statement"][0]["Effect"] == "Allow"
    assert queues["steps.fifo"].region == "eu-west-1"
    assert queues["steps.fifo"].settings.content_based_deduplication
    assert (user.name, user.tags, [policy.name for policy in user.policies]) == (
        "ann",
        {"team": "shop"},
        ["all"],
    )
    assert (key.access_key_id, key.secret_access_key, key.user, key.principal) == (
        "AKIAANN",
        "a-secret-of-ann-0123456789",
        "ann",
        user.user_id,
    )


async def test_a_second_start_changes_nothing_and_the_file_wins_for_what_it_names(
    tmp_path: Path,
) -> None:
    async with _running(_settings(tmp_path)) as node:
        first = _queues(node)
        await node.owner.catalog.set_attributes(first["orders"], {"DelaySeconds": "7"})
        by_hand = _queues(node)
        await node.owner.catalog.create_queue(("1" * 12, "us-east-1", "other"), {}, {})
    async with _running(_settings(tmp_path)) as node:
        second = _queues(node)
        assert node.first_key is None
    changed = FILE.replace("= 60", "= 61").replace('"shop"', '"office"')
    async with _running(_settings(tmp_path, changed)) as node:
        third = _queues(node)

    assert second.keys() == first.keys() | {"other"}
    assert {name: second[name] for name in first} == by_hand
    assert third["orders"].attributes["VisibilityTimeout"] == "61"
    assert third["orders"].attributes["DelaySeconds"] == "7"
    assert third["orders"].tags == {"team": "office"}
    assert third["orders"].queue_id == first["orders"].queue_id
    assert third["steps.fifo"] == second["steps.fifo"]


async def test_a_key_of_the_account_can_be_known_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ACCESS_KEY_ID", "AKIAFIXED")
    monkeypatch.setenv("HOLDFAST_SECRET_ACCESS_KEY", "fixed-secret-for-tests")

    for _ in range(2):
        async with _running(_settings(tmp_path, "")) as node:
            (key,) = node.owner.identities.all_keys()
            assert node.first_key is None

    assert (key.access_key_id, key.secret_access_key, key.user) == (
        "AKIAFIXED",
        "fixed-secret-for-tests",
        None,
    )


async def test_a_declared_key_that_was_disabled_stays_so(tmp_path: Path) -> None:
    for enabled in (True, False):
        async with _running(_settings(tmp_path)) as node:
            (key,) = node.owner.identities.all_keys()
            assert key.enabled is enabled
            await node.owner.identities.set_key_enabled("AKIAANN", False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('queues = "x"', "queues"),
        ("[[queues]]", "queues.0.name: Field required"),
        ('[[queues]]\nname = "a b"', "queues.0"),
        ('[[queues]]\nname = "a"\ncolour = "red"', "queues.0.colour: unknown setting"),
        (
            '[[queues]]\nname = "a"\nattributes = { VisibilityTimout = 3 }',
            "Unknown Attribute VisibilityTimout.",
        ),
        ('[[queues]]\nname = "a"\nattributes = { VisibilityTimeout = -3 }', "VisibilityTimeout"),
        ('[[queues]]\nname = "a"\naccount = "1"', "queues.0.account: must be 12 digits"),
        ('[[queues]]\nname = "a"\n[[queues]]\nname = "a"', "queue a is declared twice"),
        ('[[queues]]\nname = "a"\npolicy = "missing.json"', "cannot read missing.json"),
        ('[[queues]]\nname = "a"\npolicy = { Statement = 3 }', "Policy"),
        ('[[users]]\nname = "a b"', "users.0.name"),
        (
            '[[users]]\nname = "a"\npolicies = { p = { Version = "1" } }',
            "policies.p: Version must be one of",
        ),
        ('[[users]]\nname = "a"\npolicies = { p = {} }', "policies.p: it has no Statement"),
        ('[[users]]\nname = "a"\naccess_keys = [{ access_key_id = "AKIA" }]', "needs either"),
        ('secret_access_key = "x"', "comes from HOLDFAST_SECRET_ACCESS_KEY only"),
        ('access_key_id = "AKIA"', "needs HOLDFAST_SECRET_ACCESS_KEY too"),
    ],
)
def test_what_is_declared_wrong_is_refused_in_one_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ConfigRefused) as refused:
        _settings(tmp_path, text)

    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '[[queues]]\nname = "a"\ndead_letter_queue = "nobody"',
            "queue a: .*Dead letter target does not exist",
        ),
        (
            '[[queues]]\nname = "a"\ndead_letter_queue = "b"\n[[queues]]\nname = '
            '"b"\ndead_letter_queue = "a"',
            "queue b: .*Dead letter target does not exist",
        ),
        (
            '[[users]]\nname = "a"\naccess_keys = [{ access_key_id = "AKIA", secret_access_key_env '
            '= "NONE" }]',
            "environment variable NONE is not set",
        ),
        (
            '[[users]]\nname = "a"\naccess_keys = [{ access_key_id = "AKIA", secret_access_key_env '
            '= "HOME" }]',
            "at least 16 printable characters",
        ),
    ],
)
async def test_what_cannot_be_made_stops_the_start_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("HOME", "/root")

    with pytest.raises(NodeRefused, match=reason) as refused:
        await start_node(_settings(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_the_shipped_example_of_declarations_can_be_used(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "deploy" / "declarations.example.toml").read_text()

    settings = _settings(tmp_path, text)
    assert len(settings.queues) >= 2
    assert settings.users


@pytest.mark.parametrize("tag", ['"holdfast:archive" = "everything"', '"holdfast:protct" = "on"'])
def test_a_wrong_tag_of_ours_is_refused_before_anything_is_made(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ConfigRefused, match=r":1: queues\.0: .*holdfast:"):
        _settings(tmp_path, f'[[queues]]\nname = "q"\ntags = {{ {tag} }}\n')


async def test_a_declared_queue_never_gets_the_id_of_a_queue_that_a_shard_has(
    tmp_path: Path,
) -> None:
    """The records are older: their next queue would have the messages of the lost first one."""
    data = tmp_path / "data"
    async with _running(_settings(tmp_path, "")):
        pass
    older = (data / "records.sqlite").read_bytes()
    async with _running(_settings(tmp_path, '[[queues]]\nname = "orders"\n')) as node:
        orders = _queues(node)["orders"]
        await node.shards.router.ask(prepared.send(orders, "an order"))
    for file in data.glob("records.sqlite*"):
        file.unlink()
    (data / "records.sqlite").write_bytes(older)

    settings = _settings(tmp_path, '[[queues]]\nname = "audit"\n')
    for _ in range(2):
        with pytest.raises(NodeRefused, match="holds queue 1, but the catalog has issued ids up"):
            await start_node(settings)
