"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A machine that is busy with other tests is slow now and then; that is no fault of what is tested.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
