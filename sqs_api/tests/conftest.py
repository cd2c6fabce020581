"""What the tests of the gateway share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from sqs_api.tests.serving import Service, running


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    """A service over memory in open mode."""
    async with running() as started:
        yield started
