"""What all tests share: property tests are judged by what they show, not by how long a busy machine takes for it."""

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
