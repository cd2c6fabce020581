"""The optional native module: `native` is `holdfast_native`, or None where it is not there.

It has the pure functions of the hot path once more, in Rust. Python stays complete and is the
judge: a function of the module answers None for whatever is odd, and its caller goes on in Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

INTERFACE = 4
"""Goes up with each change of what the module's functions take or answer."""


def _found() -> Any:
    try:
        module = import_module("holdfast_native")
    except ImportError:
        return None
    return module if module.INTERFACE == INTERFACE else None


native = _found()
