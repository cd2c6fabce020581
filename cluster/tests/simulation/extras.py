"""Extras of a seed, drawn each with chance of its own: seeds without one stay as they were."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from cluster.tests.simulation import simulated_roles as roles
from cluster.tests.simulation.resizing import resize
from cluster.tests.simulation.simulated_queues import Extra
from cluster.tests.simulation.simulated_roles import Role
from cluster.tests.simulation.simulated_transactions import transact

_ROLES: dict[Extra, tuple[Role, ...]] = {
    Extra.OPERATOR: (roles.hold_messages,),
    Extra.SHORT: (roles.let_expire,),
    Extra.SOLE: (roles.consume_alone,),
    Extra.PARTS: (resize,),
    Extra.SCHEDULES: (roles.schedule,),
    Extra.BRIEF: (roles.let_times_to_live_end,),
    Extra.ONCE: (roles.take_once, roles.take_once),
    Extra.TRANSACTIONS: (transact,),
    Extra.RANKED: (roles.work_by_priority,),
    Extra.FULL: (roles.fill_up,),
    Extra.DEATHS: (roles.let_die,),
    Extra.CLOCKS: (roles.work_by_clock,),
}
"""In the order in which they join the others."""
_CHANCES = {Extra.OPERATOR: 0.5, Extra.PARTS: 0.33, Extra.TRANSACTIONS: 0.33}
_CHANCE = 0.25
"""Of the others."""
POLICIES = (
    Extra.SHORT,
    Extra.SCHEDULES,
    Extra.BRIEF,
    Extra.ONCE,
    Extra.RANKED,
    Extra.FULL,
    Extra.DEATHS,
    Extra.CLOCKS,
)
"""Extras with policies of queues."""
_FEW = (0, 1, 1, 2)
"""Numbers of policies of a seed of several hosts, each of which costs what all cost on one."""


def drawn_extras(seed: int, among: Collection[Extra] = tuple(Extra)) -> frozenset[Extra]:
    """The extras of a seed."""
    return frozenset(
        each
        for each in among
        if Random(f"{each.value} {seed}").random() < _CHANCES.get(each, _CHANCE)
    )


def drawn_few(seed: int) -> frozenset[Extra]:
    """The same with a few policies of queues."""
    random = Random(f"policies {seed}")
    few = random.sample(POLICIES, random.choice(_FEW))
    return drawn_extras(seed, [each for each in Extra if each not in POLICIES]) | {*few}


def roles_of(extras: Collection[Extra]) -> list[Role]:
    """The clients of these extras."""
    return [role for extra, found in _ROLES.items() if extra in extras for role in found]
