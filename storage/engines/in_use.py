"""The process that has a data folder open: its lock, its id and its listening addresses.

Reading /proc/locks opens no file of the folder: if this process held a LOCK file, closing it would
end its lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path

from storage.files.folder import FolderRefused

_LOCK = "LOCK"
"""File of each shard that RocksDB keeps locked."""
RECORDS_LOCK = "records.lock"
"""File of a data folder that the process keeps locked which has the records open."""
_LISTENING = "0A"


def refuse_if_in_use(data: Path, shards: Iterable[Path]) -> None:
    """Raise FolderRefused if another process has a shard open; without /proc, RocksDB refuses
    later."""
    for shard in shards:
        pid = _holder(shard / _LOCK)
        if pid is not None and pid != os.getpid():
            raise FolderRefused(_used_by(data, pid))


def lock_records(data: Path) -> int:
    """Lock the records of a data folder until the descriptor is closed that this returns. Raises
    FolderRefused if they are locked already, OSError."""
    lock = data / RECORDS_LOCK
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderRefused(_used_by(data, _holder(lock))) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _used_by(data: Path, pid: int | None) -> str:
    if pid is None:
        return f"data folder {data} is in use by another process"
    addresses = " and ".join(sorted(set(_addresses(pid))))
    where = f", which listens on {addresses}" if addresses else ""
    return f"data folder {data} is in use by process {pid}{where}"


def _holder(lock: Path) -> int | None:
    """The process that locks the file."""
    try:
        found = lock.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:  # "1: POSIX  ADVISORY  WRITE 4711 fe:01:1234 0 EOF"; waiting ones have "->"
        fields = line.split()
        if len(fields) == 8 and fields[5] == device and fields[4].isdecimal():
            return int(fields[4]) or None  # 0 if the process is in another container
    return None


def _addresses(pid: int) -> Iterator[str]:
    """The addresses of the process's listening sockets; none without permission to read them."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return
    for line in "".join(tables).splitlines():
        fields = line.split()
        if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in links:
            yield _address(fields[1])


def _address(hexadecimal: str) -> str:
    """ "0100007F:246C" is 127.0.0.1:9324: words of four bytes in the machine's order, and the
    port."""
    words, _, port = hexadecimal.partition(":")
    numbers = (int(words[at : at + 8], 16) for at in range(0, len(words), 8))
    packed = b"".join(socket.htonl(number).to_bytes(4, "big") for number in numbers)
    address = ip_address(packed)
    return f"[{address}]:{int(port, 16)}" if address.version == 6 else f"{address}:{int(port, 16)}"
