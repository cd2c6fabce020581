"""Permissions of the files and folders of a lake that is a folder."""

from __future__ import annotations

import re

OWNER_ONLY = "077"
"""The default: archived messages are for their owner."""
UMASK_VARIABLE = "HOLDFAST_LAKE_UMASK"
"""Variable of the environment, for service and jobs."""
UMASK = "0?0[0-7]{2}"
"""Pattern of an octal umask that leaves the owner everything."""


def read_umask(text: str) -> int:
    """The permissions that new files and folders lack, as umask(1) writes them. Raises
    ValueError."""
    if re.fullmatch(UMASK, text) is None:
        raise ValueError(
            "must be an octal umask that leaves the owner everything, from 000 to 077, such as 027"
        )
    return int(text, 8)
