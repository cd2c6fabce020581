"""Record of the whole cluster, and the rules that it must keep."""

from __future__ import annotations

from typing import NamedTuple

from storage.log import BEGINNING, Position


class Acknowledged(NamedTuple):
    """An Entry whose client was told that it is kept."""

    position: Position
    body: bytes


class Record:
    """Checks each step as it happens; what breaks a rule goes to `findings`."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.committed: dict[int, tuple[Position, bytes]] = {}
        """Entries that some replica took for committed, by index."""
        self.highest = BEGINNING
        """The acknowledged Entry with the highest index."""
        self._highest_of: dict[int, Position] = {}
        """The same by term of the Entry."""
        self.acknowledged = 0
        self.answered_reads = 0
        self.served: list[int] = []
        """Terms in which a leader served."""
        self._named: dict[tuple[int, int], int] = {}

    def find(self, text: str) -> None:
        self.findings.append(text)

    def written(self, host: str, position: Position) -> None:
        """A replica has this Entry in its log."""
        name = position.term, position.index
        if self._named.setdefault(name, position.checksum) != position.checksum:
            self.find(f"{host}: term {name[0]} and index {name[1]} name two Entries")

    def applied(self, host: str, position: Position, body: bytes) -> None:
        """A replica brings it into its rows."""
        known = self.committed.setdefault(position.index, (position, body))
        if known != (position, body):
            self.find(f"{host}: another Entry {position.index} was committed elsewhere")

    def acknowledge(self, position: Position, body: bytes) -> None:
        """A client is told."""
        self.acknowledged += 1
        known = self.committed.get(position.index)
        if known != (position, body):
            self.find(f"Entry {position.index} was acknowledged and is not committed")
        if position.index > self.highest.index:
            self.highest = position
            self._highest_of[position.term] = position

    def highest_until(self, term: int) -> Position:
        """The acknowledged Entry with the highest index, of this term or earlier ones.

        A leader that was stopped may learn late that it led: it need not have what came after it.
        """
        known = [each for each in self._highest_of.values() if each.term <= term]
        return max(known, key=lambda each: each.index, default=BEGINNING)

    def holds(self, held: Position | None, start: int, wanted: Position) -> bool:
        """True if a log with this position at the index of `wanted` holds it and all before it."""
        return wanted.index <= start or held == wanted
