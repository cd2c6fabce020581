"""Settings of all tests: Hypothesis never judges the speed of an example, and collected tests are
no work for Python's collector of garbage."""

import gc
import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("patient"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))


def pytest_collection_finish() -> None:
    """Leave thousands of tests out of each full collection."""
    gc.freeze()
