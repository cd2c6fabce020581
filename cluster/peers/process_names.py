"""Names of the processes of a host: its first worker bears the host's name, worker 2 of host `a` is
`a.worker-2`. The certificate of a host is that of all its workers. Pure."""

from __future__ import annotations

import re

_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A host's id is a DNS name, so that a certificate can bear it."""
_WORKER = re.compile(r"(.+)\.worker-([1-9][0-9]?)")


def is_host_id(name: str) -> bool:
    """True if a certificate can bear the name."""
    return _HOST.fullmatch(name) is not None


def process_name(host: str, worker: int) -> str:
    """The name of a worker of a host; workers are numbered from 0 on."""
    return f"{host}.worker-{worker + 1}" if worker else host


def host_of(process: str) -> str:
    """The host of a process, whose name its certificate bears."""
    found = _WORKER.fullmatch(process)
    return process if found is None else found[1]


def worker_of(process: str) -> int:
    """The number of the worker that a process is."""
    found = _WORKER.fullmatch(process)
    return 0 if found is None else int(found[2]) - 1
