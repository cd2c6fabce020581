"""Types of a route, from the annotations of the function that answers it."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import msgspec

from sqs_api.operators.desk import AnswerRoute


def taken_by(answer: AnswerRoute) -> type[msgspec.Struct] | None:
    """The type of the body, or of a GET's parameters; None if the route takes nothing."""
    names = list(inspect.signature(answer).parameters)[2:]
    if not names:
        return None
    taken: type[msgspec.Struct] = get_type_hints(answer)[names[0]]
    return taken


def given_by(answer: AnswerRoute) -> Any:
    """The type of the answer."""
    return get_type_hints(answer, include_extras=True)["return"]
