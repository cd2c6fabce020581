"""File descriptors: how many the process may have, and how many of them connections may use."""

from __future__ import annotations

import resource

_RESERVE_MAX = 4096
"""For the stores, which keep every table file open, the catalog and logs; no more than a quarter of all."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one, as far as the system lets us; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS says infinity and means another number
            return soft
    return hard


def for_connections(wanted: int, limit: int) -> int:
    """How many of the `wanted` connections can be had when there are `limit` descriptors."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, limit - min(_RESERVE_MAX, limit // 4)))
