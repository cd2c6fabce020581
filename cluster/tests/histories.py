"""Seeds of random histories, of which the quick suite runs a part."""

from __future__ import annotations

import os

import pytest

seeds = pytest.mark.parametrize("seed", range(int(os.environ.get("HISTORIES", "12"))))
