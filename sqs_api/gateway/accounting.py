"""Ledger: what the gateway tells of each answered request, to the usage of accounts and to the audit log."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING

import structlog

from auth.errors import AuthError
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.usage import Usage, UsageRow
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import KmsAccessDenied

if TYPE_CHECKING:
    from sqs_api.gateway.gateway import Exchange


class Ledger:
    """Belongs to the event loop's thread."""

    def __init__(self, usage: Usage, audit: AuditLog | None) -> None:
        self._usage = usage
        self.audit = audit
        self._unwritten: list[UsageRow] = []
        self._log = structlog.get_logger("usage")

    def answered(self, exchange: Exchange, bytes_out: int) -> None:
        """A request was answered."""
        caller, operation, audit = exchange.caller, exchange.operation, self.audit
        if caller is not None:
            self._usage.count(caller.account, exchange.queue, exchange.bytes_in, bytes_out)
        if audit is None:
            return
        if isinstance(exchange.refusal, AuthError | KmsAccessDenied):
            ip, code = exchange.client.source_ip, exchange.refusal.code
            audit.denied(exchange.action, caller, ip, exchange.request_id, code)
        elif operation is not None and caller is not None and ACTIONS[exchange.action].audited:
            code = "" if exchange.refusal is None else exchange.refusal.code
            ip = exchange.client.source_ip
            audit.action(operation, exchange.action, caller, ip, exchange.request_id, code)

    async def write(self) -> None:
        """Add what was counted to the file; what cannot be written now comes with the next call."""
        journals, rows = self._usage.take()
        rows, self._unwritten = self._unwritten + rows, []
        if not journals and not rows:
            return
        try:
            await asyncio.to_thread(self._usage.write, journals, rows)
        except (sqlite3.Error, OSError) as error:
            self._unwritten = rows
            self._log.error("usage_not_written", error=str(error))
