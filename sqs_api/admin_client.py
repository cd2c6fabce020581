"""What commands ask a running service for, over its reserved path. Standard library only, so that a command starts fast."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

_TIMEOUT_S = 10.0


class AdminRefused(Exception):
    """The service did not do it; the text says why in one line."""


def restore_queue(url: str, name: str) -> dict[str, Any]:
    """Restore the latest deleted queue of that name, of any account and region; returns `queue_id`, `account`, `region`.

    `url` is the service's http:// or https:// address. Raises AdminRefused.
    """
    base = f"{url.rstrip('/')}/_holdfast/deleted-queues"
    try:
        named = [deleted["queue_id"] for deleted in _ask("GET", base) if deleted["name"] == name]
        if named:
            restored = _ask("POST", f"{base}/{named[0]}/restore")
            return {member: restored[member] for member in ("queue_id", "account", "region")}
    except (TypeError, LookupError) as error:
        raise AdminRefused(f"what answers at {url} is not holdfast") from error
    raise AdminRefused(f"no deleted queue {name} can be restored")


def make_backup(url: str, target: str, *, with_master_key: bool) -> dict[str, Any]:
    """Have the service write a backup to an absolute path of this machine; returns `queues`, `files`, `bytes`.

    Waits as long as it takes. Raises AdminRefused.
    """
    wanted = {"target": target, "with_master_key": with_master_key}
    made = _ask("POST", f"{url.rstrip('/')}/_holdfast/backups", wanted, timeout_s=None)
    try:
        return {member: made[member] for member in ("queues", "files", "bytes")}
    except (TypeError, LookupError) as error:
        raise AdminRefused(f"what answers at {url} is not holdfast") from error


def _ask(
    method: str, url: str, content: object = None, *, timeout_s: float | None = _TIMEOUT_S
) -> Any:
    """The JSON of the answer; no proxy is asked, since the service answers this machine only."""
    body = None if content is None else json.dumps(content).encode()
    headers = {"Content-Type": "application/json"} if body else {}
    request = Request(url, body, headers, method=method)
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise AdminRefused(_reason(error)) from error
    except (OSError, HTTPException, ValueError) as error:
        text = " ".join(str(getattr(error, "reason", error)).split())
        raise AdminRefused(f"cannot ask {url}: {text}") from error


def _reason(error: HTTPError) -> str:
    """What the service says in an `error` member, else the status."""
    try:
        answer = json.loads(error.read())
    except (OSError, HTTPException, ValueError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return str(answer["error"])
    return f"the service answered {error.code} {error.reason}"
