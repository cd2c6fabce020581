"""Hosts that may not register: what they were given is another host's."""

from __future__ import annotations

from cluster.members.operations import remove, set_drained
from cluster.tests.members.joining import SimulatedWorld
from cluster.tests.virtual_time import virtual


@virtual
async def test_a_folder_runs_under_its_own_name_only() -> None:
    """A copy has the same replica ids, so that one host's answer would count as the other's."""
    world = SimulatedWorld()
    hosts = await world.founded()
    before = await world.records()

    as_new = await world.host("d", folder="c").refused()
    as_other = await world.host("b", folder="c").refused()

    assert as_new == "this folder is of host c: start it as c, or start d with an empty folder"
    assert as_other == "this folder is of host c: start it as c, or start b with an empty folder"
    assert await world.records() == before, "nothing was registered"
    await set_drained(hosts[0].records, "c", is_drained=True)
    await remove(hosts[0].records, "c")
    assert "host c was removed" in await world.host("d", folder="c").refused()
    await world.host("d", folder="empty").join()
    await world.close()
