"""Hosts of a cluster that start at once with the same declarations make each thing once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.catalog.catalog import Catalog
from cluster.catalog.other_hosts import NO_OTHERS
from cluster.clock import SystemEntropy
from cluster.coordination.coordination import Coordination
from cluster.tests.catalogs import opened_catalog
from cluster.tests.coordinations import simulated_hosts, until
from cluster.tests.planned_hosts import RaisingHosts
from cluster.tests.stores import opened_place
from cluster.tests.virtual_time import SettableClock
from sqs_api.settings.config import Settings, load
from sqs_api.settings.declaring import DeclaredQueues, declare_users
from sqs_api.tests.test_declarations import FILE
from visibility.contract.errors import ServiceUnavailable

HOSTS = 3


@pytest.fixture
def settings_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Settings]:
    monkeypatch.setenv("ANNS_SECRET", "a-secret-of-ann-0123456789")

    def loaded(text: str) -> Settings:
        file = tmp_path / "holdfast.toml"
        file.write_text(text)
        return load({}, file)

    return loaded


CHANGED = FILE.replace("= 60", "= 61").replace('"shop"', '"office"').replace("sqs:*", "sqs:Get*")


def _no_note(event: str, **fields: Any) -> None:
    pass


async def test_users_policies_and_keys_are_made_once(
    request: pytest.FixtureRequest, tmp_path: Path, settings_of: Callable[[str], Settings]
) -> None:
    async with opened_place(request, "simulated", tmp_path) as hosts:
        stores = [await hosts.identities() for _ in range(HOSTS)]
        for settings in map(settings_of, (FILE, FILE, CHANGED)):
            made: list[str] = []
            note = partial(_note, made)
            await asyncio.gather(*[declare_users(settings, store, note) for store in stores])

            assert made.count("user_declared") <= 1
            await hosts.heard(stores[0])
            (user,) = stores[0].users()
            (key,) = stores[0].all_keys()
            assert (key.access_key_id, key.user, key.principal) == ("AKIAANN", "ann", user.user_id)
            assert stores[0].policies(user) == settings.users[0].documents()
            assert user.tags == settings.users[0].tags


def _note(made: list[str], event: str, **fields: Any) -> None:
    made.append(event)


async def _opened_catalog(
    coordination: Coordination,
    clock: SettableClock | None = None,
    leader: Leader | None = None,
) -> Catalog:
    return await opened_catalog(
        coordination,
        clock=clock,
        entropy=SystemEntropy(),
        others=NO_OTHERS if leader is None else RaisingHosts(leader.raises_ids),
    )


async def test_queues_are_made_once(settings_of: Callable[[str], Settings]) -> None:
    hosts = simulated_hosts()
    catalogs = [await _opened_catalog(hosts.host()) for _ in range(HOSTS)]
    for settings in map(settings_of, (FILE, FILE, CHANGED)):
        await asyncio.gather(
            *[DeclaredQueues(settings, each, _no_note).make() for each in catalogs]
        )

        last = max(each.revision for each in catalogs)
        await until(lambda: all(each.revision >= last for each in catalogs))  # noqa: B023
        found = [{queue.name: queue for queue in each} for each in catalogs]
        assert found[1:] == found[:-1]
        assert found[0].keys() == {"orders", "orders-dead", "steps.fifo"}
        assert catalogs[0].highest_queue_id == 3
        declared = {each.name: each for each in settings.queues}["orders"]
        timeout = str(declared.attributes["VisibilityTimeout"])
        assert found[0]["orders"].attributes["VisibilityTimeout"] == timeout
        assert found[0]["orders"].tags == declared.tags
    await hosts.close()


ACCOUNT, REGION = "000000000000", "us-east-1"
THERE_AND_LATE = '[[queues]]\nname = "there"\n[[queues]]\nname = "late"\n'


class Leader:
    """The leader of a shard, which there is not yet."""

    is_there = False

    async def raises_ids(self, shard: int) -> None:
        if not self.is_there:
            raise ServiceUnavailable


def _late(settings: Settings, catalog: Catalog) -> DeclaredQueues:
    """Those of a host of a cluster."""
    on_cluster = settings.model_copy(update={"etcd": "http://127.0.0.1:2379"})
    return DeclaredQueues(on_cluster, catalog, _no_note)


async def test_queues_that_a_cluster_cannot_make_yet_are_made_once_it_can(
    settings_of: Callable[[str], Settings],
) -> None:
    hosts, leader, there = simulated_hosts(), Leader(), (ACCOUNT, REGION, "there")
    before = await _opened_catalog(hosts.host())
    queue = await before.create_queue(there, {}, {})
    await before.close()
    catalog = await _opened_catalog(hosts.host(), leader=leader)
    declared = _late(settings_of(THERE_AND_LATE), catalog)
    with capture_logs() as logs:
        await declared.make()
        await declared.make_late()
    waits = [line for line in logs if line["event"] == "declared_queues_wait"]
    assert [line["queues"] for line in waits] == [["late"]]
    assert [each.name for each in catalog] == ["there"]

    await catalog.set_attributes(queue, {"DelaySeconds": "9"})
    leader.is_there = True
    await declared.make_late()
    assert sorted(each.name for each in catalog) == ["late", "there"]
    delay = catalog.queue(*there).attributes["DelaySeconds"]
    assert delay == "9", "it was changed as declared at the start, once"
    await catalog.close()


async def test_a_late_queue_waits_until_its_name_is_free(
    settings_of: Callable[[str], Settings],
) -> None:
    clock = SettableClock()
    leader = Leader()
    catalog = await _opened_catalog(simulated_hosts().host(), clock, leader)
    declared = _late(settings_of(THERE_AND_LATE), catalog)
    await declared.make()
    leader.is_there = True
    await catalog.delete_queue(await catalog.create_queue((ACCOUNT, REGION, "there"), {}, {}))

    await declared.make_late()
    assert len(catalog) == 0
    clock.at_ms += 61_000
    await declared.make_late()
    assert sorted(each.name for each in catalog) == ["late", "there"]
    await catalog.close()


async def test_a_late_queue_that_is_refused_is_logged_once_and_does_not_hold_up_others(
    settings_of: Callable[[str], Settings],
) -> None:
    leader = Leader()
    catalog = await _opened_catalog(simulated_hosts().host(), leader=leader)
    wrong = '[[queues]]\nname = "wrong"\ndead_letter_queue = "nowhere"\n'
    file = f'[[queues]]\nname = "late"\n{wrong}[[queues]]\nname = "later"\n'
    declared = _late(settings_of(file), catalog)
    await declared.make()
    leader.is_there = True
    with capture_logs() as logs:
        await declared.make_late()
        await declared.make_late()
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "declaration_refused"
    ]
    assert sorted(each.name for each in catalog) == ["late", "later"]
    await catalog.close()
