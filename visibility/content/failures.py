"""Failures: what a dead letter says about why it failed, found without being told where.

    1. attributes, and fields of a JSON body, whose names are like an error's: up to four
    2. else those whose names are like a kind's, such as `event.type`: up to two
    3. else the names of a JSON body's fields, or the beginning of the text

Numbers, ids and quoted texts in values are folded, so that messages which failed for the same
reason have the same failure. It follows from the message alone: the same in each host and at each
time, so a filter finds exactly the messages that were counted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from visibility.content.content import Extras

FAILURE_ID_LENGTH = 16
FAILURE_VERSION = 1
"""To be raised when messages get other failures: what was noted of them counts no more then."""
_SIGNS_MAX, _KINDS_MAX = 4, 2
_VALUE_CHARACTERS_MAX = 120
_READ_CHARACTERS_MAX = 1_000
"""The part of a text that is folded."""
_NAME_CHARACTERS_MAX = 100
_NAMES_CHARACTERS_MAX = 200
_FIELDS_MAX = 500
"""Fields of a body that are looked at, the first ones."""
_DEEPEST = 4

_ERROR = re.compile(r"error|exception|fault|fail|cause|reason|problem|reject", re.IGNORECASE)
_CODE = re.compile(r"(type|class|code|kind|status|name|errno)$", re.IGNORECASE)
_KIND = re.compile(
    r"^(event|message|detail)?[-_]?(type|kind|event|action|operation|category|topic|status|state)$",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"stack|trace|(^|[-_.])(time|date|at|id|ids|count|attempts?)$|(timestamp|[a-z](At|Id|Time|Date|Count))$",
    re.IGNORECASE,
)
_LONE_ID = re.compile(
    r"[0-9]{7,}|(?=.*[0-9])[0-9a-f]{16,}|[0-9a-f]{8}-[0-9a-f-]{27}", re.IGNORECASE
)
_FOLDED = re.compile(
    r"""'[^'\n]{1,200}'|"[^"\n]{1,200}"|`[^`\n]{1,200}`"""
    r"""|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"""
    r"""|\b(?:0x)?(?=[0-9a-f]*[0-9])[0-9a-f]{8,}\b|[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}"""
    r"""|[0-9]+(?:[.,:][0-9]+)*""",
    re.IGNORECASE,
)


class Failure(NamedTuple):
    """The signs by which a failure is told apart, as pairs of a name and a folded value. A name is
    `attribute:NAME`, `json:PATH`, `fields` or `text`."""

    signs: tuple[tuple[str, str], ...]

    @property
    def failure_id(self) -> str:
        """A digest of the signs, in FAILURE_ID_LENGTH hexadecimal digits."""
        packed = msgspec.msgpack.encode(self.signs)
        return hashlib.blake2b(packed, digest_size=FAILURE_ID_LENGTH // 2).hexdigest()


def failure_of(body: str, extras: Extras | None) -> Failure:
    """The failure of a message, whose content may be anything."""
    content = _json(body)
    found = [*_attributes(extras), *_fields(content)]
    errors = [each for each in found if _is_of(_ERROR, each[0])]
    signs = sorted(errors, key=_precise_first)[:_SIGNS_MAX]
    if not signs:
        signs = [each for each in found if _is_of(_KIND, _last_name(each[0]))][:_KINDS_MAX]
    if signs:
        return Failure(tuple((name, _sign(name, value)) for name, value in signs))
    if isinstance(content, dict):
        names = ", ".join(sorted(content)[:_FIELDS_MAX])
        return Failure((("fields", names[:_NAMES_CHARACTERS_MAX]),))
    return Failure((("text", folded(body)),))


def folded(text: str) -> str:
    """The first line of a text, without its numbers, ids, addresses and quoted parts."""
    line = text[:_READ_CHARACTERS_MAX].strip().partition("\n")[0]
    return _FOLDED.sub("…", line).strip()[:_VALUE_CHARACTERS_MAX]


@lru_cache(maxsize=4_096)
def _is_of(names: re.Pattern[str], name: str) -> bool:
    """The same few names come again and again."""
    return names.search(name) is not None


def _sign(name: str, value: str) -> str:
    """A code keeps its digits: E1042 is another error than E1043."""
    is_code = _is_of(_CODE, name) and len(value) <= _VALUE_CHARACTERS_MAX and " " not in value
    return value if is_code and not _LONE_ID.fullmatch(value) else folded(value)


def _precise_first(sign: tuple[str, str]) -> tuple[bool, bool, int, str]:
    name = sign[0]
    return not _is_of(_CODE, name), name.startswith("json:"), name.count("."), name


def _attributes(extras: Extras | None) -> Iterator[tuple[str, str]]:
    for name, (kind, value) in sorted((extras.attributes or {}).items() if extras else ()):
        if not kind.startswith("Binary") and not _is_of(_NOISE, name):
            yield f"attribute:{name}", value.decode(errors="replace")


def _json(body: str) -> Any:
    if not body.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _fields(content: Any) -> Iterator[tuple[str, str]]:
    """Paths and texts of a body's fields, the outer ones first."""
    level, looked_at = [("json:", content)], 0
    for _ in range(_DEEPEST):
        inner: list[tuple[str, Any]] = []
        for path, container in level:
            for name, value in container.items() if isinstance(container, dict) else ():
                looked_at += 1
                if looked_at > _FIELDS_MAX:
                    return
                if len(name) > _NAME_CHARACTERS_MAX or _is_of(_NOISE, name):
                    continue
                if isinstance(value, dict):
                    inner.append((f"{path}{name}.", value))
                elif isinstance(value, str | int | float) and value != "":
                    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                    yield f"{path}{name}", text
        level = inner


def _last_name(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2]
