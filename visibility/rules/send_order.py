"""The order of transactions' sends to one FIFO group, from the outbox on.

They go to the part of their group, which may change while some are under way. So those to another
shard wait until all earlier ones are gone, and where one gets a new number, so do those behind it.
The other shard refuses what comes behind one that it refused: the part may be back there meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from visibility.contract.naming import is_fifo_name
from visibility.contract.stored_message import Arrival
from visibility.rows.row_values import Departure
from visibility.state.outbox import Outbox

SendGroup = tuple[str, bytes]
"""ARN of the queue, and group."""
_NOWHERE = -1


def _ordered_group(departure: Departure) -> SendGroup | None:
    """The group of a transaction's send to a FIFO queue; None for others."""
    if departure.sent is None or not is_fifo_name(departure.target_arn):
        return None
    return departure.target_arn, departure.arriving.group


def group_of_arrival(arrival: Arrival) -> SendGroup | None:
    """The same, for one that arrives."""
    if arrival.sent is None or not is_fifo_name(arrival.arn):
        return None
    return arrival.arn, arrival.message.group


class InTurn:
    """Looks at all departures, ascending."""

    def __init__(self) -> None:
        self._to: dict[SendGroup, int] = {}
        """The shard to which the first sends of a group go; none may go behind one for another."""

    def may_go(self, departure: Departure) -> bool:
        """False while earlier sends of its group go to another shard."""
        group = _ordered_group(departure)
        if group is None:
            return True
        if self._to.setdefault(group, departure.to_shard) != departure.to_shard:
            self._to[group] = _NOWHERE
        return self._to[group] != _NOWHERE


def those_behind(
    outbox: Outbox, refused: dict[int, Departure], cleared: Set[int]
) -> Iterator[tuple[int, Departure]]:
    """(number, departure) of the sends that are not to pass those which were refused.

    Nobody has taken any of these: sends of a group to another shard have waited, and to the same
    shard they went later, or were refused as well.
    """
    first: dict[SendGroup, int] = {}
    for number, departure in refused.items():
        group = _ordered_group(departure)
        if group is not None:
            first[group] = min(number, first.get(group, number))
    for number, departure in outbox.departures.items() if first else ():
        group = _ordered_group(departure)
        if group in first and number > first[group]:
            if number not in refused and number not in cleared:
                yield number, departure
