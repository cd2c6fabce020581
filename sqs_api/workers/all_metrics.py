"""The metrics of all workers in one page: each sample gets the label `worker`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sqs_api.admin.every_host import EveryHost
from sqs_api.gateway.metrics import Metrics

_ACTION = "ReadWorkerMetrics"
_WAIT_S = 5.0
_HELP = b"# HELP "


class AllMetrics:
    """The metrics of all workers on one page."""

    def __init__(
        self, own: Metrics, workers: EveryHost, number: int, names: Sequence[str] | None = None
    ) -> None:
        """`number` is that of this worker; `names` are those of all, if `workers` reaches others,
        too."""
        self._names = names
        self._own = own
        self._workers = workers
        self._number = number
        workers.serve(_ACTION, self._answer)

    async def _answer(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode((self._number, await self._own.page()))

    async def page(self) -> bytes:
        """The page of all workers that answer."""
        heard = await self._workers.ask(_ACTION, b"", _WAIT_S, self._names)
        decoded = (msgspec.msgpack.decode(part, type=tuple[int, bytes]) for part in heard.parts)
        return merged(dict(decoded))


def merged(pages: Mapping[int, bytes]) -> bytes:
    """The pages of several workers, by their numbers, in the Prometheus text format."""
    families: dict[bytes, list[bytes]] = {}
    for number, page in sorted(pages.items()):
        for name, head, samples in _families(page.splitlines()):
            lines = families.setdefault(name, head)
            lines += (_labelled(sample, number) for sample in samples)
    return b"".join(line + b"\n" for lines in families.values() for line in lines)


def _families(lines: Iterable[bytes]) -> Iterable[tuple[bytes, list[bytes], list[bytes]]]:
    """Name, comments and samples of each family."""
    found: list[tuple[bytes, list[bytes], list[bytes]]] = []
    for line in lines:
        if line.startswith(_HELP):
            found.append((line.split(b" ", 3)[2], [], []))
        _, head, samples = found[-1]
        (head if line.startswith(b"#") else samples).append(line)
    return found


def _labelled(sample: bytes, number: int) -> bytes:
    """A sample with the worker's label first; neither a name nor its end has a brace or a space."""
    name, space, value = sample.partition(b" ")
    begin, brace, labels = sample.partition(b"{")
    label = b'worker="%d"' % number
    if brace and len(begin) < len(name):
        return begin + b"{" + label + b"," + labels
    return name + b"{" + label + b"}" + space + value
