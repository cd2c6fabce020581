"""Plants a bug into the code of a simulation, which must find it (rule 35)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from visibility.contract.operations import Operation
from visibility.rules.features import OPERATIONS

Plant = Callable[[pytest.MonkeyPatch], None]


def change_operation(patch: pytest.MonkeyPatch, operation: type[Operation], **row: Any) -> None:
    """Change fields of an operation's row."""
    patch.setitem(OPERATIONS, operation, OPERATIONS[operation]._replace(**row))
