"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.lib.job_options import parse_instant

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T08:00", datetime(2026, 11, 20, 8, tzinfo=UTC)),
        ("2026-11-20 08:00:01.5", datetime(2026, 11, 20, 8, 0, 1, 500_000, UTC)),
        ("2026-11-20T08:00Z", datetime(2026, 11, 20, 8, tzinfo=UTC)),
        ("2026-11-20T08:00+05:30", datetime(2026, 11, 20, 2, 30, tzinfo=UTC)),
        ("90s", NOW - timedelta(seconds=90)),
        ("30m", NOW - timedelta(minutes=30)),
        ("2h", NOW - timedelta(hours=2)),
        ("3d", NOW - timedelta(days=3)),
        ("1w", NOW - timedelta(weeks=1)),
    ],
)
def test_time_is_understood(text: str, instant: datetime) -> None:
    parsed = parse_instant(text, NOW)

    assert parsed == instant
    assert parsed.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2", "-2h", "2 h", "2H", "2026-13-01", "999999999w", "h"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_instant(text, NOW)
