"""Client of the administrative pages, for commands and jobs.

It signs requests and follows neither redirects nor proxies.
"""

from __future__ import annotations

import json
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, responses
from typing import Any
from urllib.parse import urlsplit

from auth.signing import signed_headers
from cluster.clock import SystemClock, SystemEntropy
from sqs_api.settings.service_note import LOGIN_HEADER, login_name
from sqs_api.settings.service_place import Place, PlaceUnknown

_CONNECT_S = 5.0
ANSWER_S = 10.0
_NONCE_BYTES = 12
_FORBIDDEN = 403
_CONFLICT = 409
_UNABLE = 500
_NO_TURN = 503
_TRIES = 4
"""Tries of what the service has no room for, such as one search of many at once."""
_PAUSE_S_MAX = 30.0


class AdminRefused(Exception):
    """The request failed; the text gives the reason in one line."""


class NoAnswer(AdminRefused):
    """Nothing answered, or something that cannot at present: the same request may succeed later."""


class ServiceAway(NoAnswer):
    """The connection was refused: no service listens at this address."""


class AdminConflict(AdminRefused):
    """The service answered 409; the text is its reason."""


class AdminClient:
    """Client of one service. Every method raises AdminRefused."""

    def __init__(self, place: Place, region: str | None = None) -> None:
        """`region`: sign for this one; by default that of the key."""
        self._place = place
        self._region = region
        self._clock, self._entropy = SystemClock(), SystemEntropy()

    def restore_queue(self, name: str, account: str | None, region: str | None) -> dict[str, Any]:
        """Restore the latest deleted or purged queue of that name; an account or region of None is
        any, if only one has it.

        Returns it in the form of `deleted_queues`, with the messages that follow as `left`.
        """
        named = [
            deleted
            for deleted in self.deleted_queues()
            if deleted["name"] == name
            and not deleted["restoring"]
            and account in (None, deleted["account"])
            and region in (None, deleted["region"])
        ]
        if not named:
            raise AdminRefused(f"no deleted queue {name} can be restored")
        places = sorted({f"account {each['account']} in {each['region']}" for each in named})
        if len(places) > 1:
            raise AdminRefused(
                f"several queues {name} can be restored: of {', '.join(places)}; "
                "say which with --account and --region"
            )
        kept = named[0]
        self.ask("POST", f"deleted-queues/{kept['queue_id']}/restore", answer_s=None)
        of_it = ("account", "region", "name", "deleted_at_ms")
        left = [
            each["messages"]
            for each in self.deleted_queues()
            if each["restoring"] and all(each[part] == kept[part] for part in of_it)
        ]
        return kept | {"left": sum(left)}

    def deleted_queues(self) -> list[dict[str, Any]]:
        """The deleted and purged queues that are kept, the latest first: `queue_id`, `account`,
        `region`, `name`, `purged`, `messages`, `dead_letters`, `deleted_at_ms`,
        `restorable_until_ms`, `obstacle`, `restoring`."""
        names = ("queue_id", "account", "region", "name", "purged", "messages", "dead_letters")
        rest = ("deleted_at_ms", "restorable_until_ms", "obstacle", "restoring")
        found = self.ask("GET", "deleted-queues")
        if not isinstance(found, list):
            raise self._not_ours()
        return [self._members(each, *names, *rest) for each in found]

    def remove_queue(self, how: str, account: str, region: str, name: str, *, force: bool) -> None:
        """Delete or purge a queue; `how` is "delete" or "purge"."""
        named = {"account": account, "region": region, "name": name, "force": force}
        self.ask("POST", f"queues/{how}", named)

    def cluster(self) -> dict[str, Any]:
        """The status of the cluster, see `cluster/members/status.py`."""
        names = ("cluster", "host", "hosts", "shards", "etcd", "problems")
        return self._members(self.ask("GET", "cluster"), *names)

    def usage(self, query: str) -> dict[str, Any]:
        """The usage of all hosts, see `sqs_api/admin/usage_page.py`."""
        found = self.ask("GET", f"usage?{query}" if query else "usage")
        return self._members(found, "rows", "hosts", "missing")

    def queue_metrics(self) -> bytes:
        """The metrics of the account's queues, in the Prometheus text format."""
        return self._answer("GET", "queue-metrics", None, ANSWER_S)

    def drain_host(self, host: str, *, drained: bool) -> None:
        """Have a host lead nothing, or let it lead again."""
        self.ask("POST", "cluster/drain", {"host": host, "drained": drained})

    def remove_host(self, host: str) -> None:
        """Take a host out of the cluster."""
        self.ask("POST", "cluster/remove", {"host": host})

    def raise_formats(self) -> int:
        """Have the cluster write the newest formats that all hosts read, and return them."""
        return int(self._members(self.ask("POST", "cluster/formats"), "formats")["formats"])

    def make_backup(self, target: str, *, with_master_key: bool) -> dict[str, Any]:
        """Have the service write a backup to an absolute path on its machine; returns `queues`,
        `deleted_queues`, `files`, `bytes`. Has no time limit."""
        wanted = {"target": target, "with_master_key": with_master_key}
        made = self.ask("POST", "backups", wanted, answer_s=None)
        return self._members(made, "queues", "deleted_queues", "files", "bytes")

    def ask(
        self, method: str, page: str, content: object = None, *, answer_s: float | None = ANSWER_S
    ) -> Any:
        """The JSON answer of a page, named relative to /_holdfast/.

        Raises AdminConflict for status 409.
        """
        answer = _decoded(self._answer(method, page, content, answer_s))
        if answer is None:
            raise self._not_ours()
        return answer

    def _answer(self, method: str, page: str, content: object, answer_s: float | None) -> bytes:
        """The bytes of an answer with status 200."""
        url = self._place.admin_url
        body = b"" if content is None else json.dumps(content).encode()
        try:
            status, answer = self._taken(method, f"/_holdfast/{page}", body, answer_s)
        except PlaceUnknown as error:
            raise AdminRefused(str(error)) from error
        except (OSError, HTTPException, ValueError) as error:
            is_away = isinstance(error, ConnectionRefusedError)
            text = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise (ServiceAway if is_away else NoAnswer)(
                f"cannot ask {url}: {' '.join(text.split())} ({self._place.named_by})"
            ) from error
        content = _decoded(answer)
        said = content.get("error") if isinstance(content, dict) else None
        if status == _CONFLICT and said:
            raise AdminConflict(str(said))
        if status != 200:
            shown = " ".join(answer[:200].decode("latin-1").split())
            reason = said or shown or responses.get(status, "")
            if status == _FORBIDDEN:
                key = self._place.find_key()
                signed = "no access key was found here" if key is None else self._place.named_by
                reason = f"{reason} ({signed})"
            refused = NoAnswer if status >= _UNABLE else AdminRefused
            raise refused(f"{url}: {status} {reason}")
        return answer

    def _taken(
        self, method: str, path: str, body: bytes, answer_s: float | None
    ) -> tuple[int, bytes]:
        """The answer, with up to three more tries while the service itself asks for one."""
        tried = 0
        while True:
            status, answer, pause_s = self._exchange(method, path, body, answer_s)
            tried += 1
            said = _decoded(answer)
            if pause_s is None or not isinstance(said, dict) or "error" not in said:
                return status, answer  # as it is; a proxy may ask for another try, too
            if tried == _TRIES:
                told = {"error": f"{said['error']} It was tried {_TRIES} times."}
                return status, json.dumps(told).encode()
            time.sleep(pause_s)

    def _exchange(
        self, method: str, path: str, body: bytes, answer_s: float | None
    ) -> tuple[int, bytes, float | None]:
        """Status, body, and the time after which the service takes the same again."""
        parts = urlsplit(self._place.admin_url)
        target = parts.path + path
        headers = {"host": parts.netloc.rpartition("@")[2], "content-type": "application/json"}
        # Without it, two equal requests within a second would have the same signature.
        headers["x-holdfast-nonce"] = self._entropy.secret(_NONCE_BYTES).hex()
        headers[LOGIN_HEADER] = login_name().encode("ascii", "replace").decode()
        key = self._place.find_key()
        if key is not None:
            key = key._replace(region=self._region or key.region)
            headers = signed_headers(key, method, target, headers, body, self._clock.wall_s())
        connection = self._connection()
        try:
            connection.connect()
            connection.sock.settimeout(answer_s)
            connection.request(method, target, body, headers)
            answer: HTTPResponse = connection.getresponse()
            asks = answer.getheader("retry-after") if answer.status == _NO_TURN else None
            return answer.status, answer.read(), _pause_s(asks)
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self._place.admin_url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return HTTPConnection(host, parts.port, timeout=_CONNECT_S)
        context = ssl.create_default_context(cafile=self._place.authorities)
        return HTTPSConnection(host, parts.port, timeout=_CONNECT_S, context=context)

    def _members(self, answer: Any, *names: str) -> dict[str, Any]:
        try:
            return {name: answer[name] for name in names}
        except (TypeError, LookupError) as error:
            raise self._not_ours() from error

    def _not_ours(self) -> AdminRefused:
        return AdminRefused(f"what answers at {self._place.admin_url} is not holdfast")


def _pause_s(header: str | None) -> float | None:
    """The seconds in a Retry-After header."""
    if header is None or not header.isdecimal():
        return None
    return min(float(header), _PAUSE_S_MAX)


def _decoded(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None
