"""The trace of a message, read from its attributes. Pure.

Source: W3C Trace Context for the message attribute `traceparent`; AWS X-Ray for AWSTraceHeader,
whose Root has the 32 digits of the trace id behind its version.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_PARENT = re.compile(r"[0-9a-f]{16}")
_SAMPLED_FLAG = 1


class TraceContext(NamedTuple):
    """The span of the sender; ids are hexadecimal."""

    trace_id: str
    span_id: str


def read_trace(traceparent: str | None, trace_header: str | None) -> TraceContext | None:
    """The sender's span; None without one, or if the sender does not sample it."""
    return _from_traceparent(traceparent or "") or _from_trace_header(trace_header or "")


def _from_traceparent(text: str) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None or not int(found[3], 16) & _SAMPLED_FLAG:
        return None
    return _valid(found[1], found[2])


def _from_trace_header(text: str) -> TraceContext | None:
    parts = dict(part.strip().partition("=")[::2] for part in text.split(";"))
    root, parent = _ROOT.fullmatch(parts.get("Root", "")), parts.get("Parent", "")
    if root is None or not _PARENT.fullmatch(parent) or parts.get("Sampled") != "1":
        return None
    return _valid(root[1] + root[2], parent)


def _valid(trace_id: str, span_id: str) -> TraceContext | None:
    """None for an id of zeros, which names nothing."""
    return TraceContext(trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None
