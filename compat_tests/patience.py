"""Settings of all tests: Hypothesis never judges how fast an example is made or runs."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")
