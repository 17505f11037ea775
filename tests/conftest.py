"""Settings shared by all tests: how many examples the property tests try.

`pytest` tries the same examples every time; `pytest --hypothesis-profile=thorough` tries twenty times as
many, and different ones in every run.
"""

from hypothesis import HealthCheck, settings

EXAMPLES = 40

settings.register_profile(
    "default",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=20 * EXAMPLES, derandomize=False)
settings.load_profile("default")
