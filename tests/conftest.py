"""Settings shared by all tests: how many examples the property tests try, and where compiled Python is kept.

`pytest` tries the same examples every time; `pytest --hypothesis-profile=thorough` tries twenty times as
many, and different ones in every run.
"""

import atexit
import os
import shutil
import sys
import tempfile

if sys.dont_write_bytecode:
    # Whoever sets PYTHONDONTWRITEBYTECODE wants no files beside the sources. Without any, each of the many processes
    # that tests start would compile the package's text again, which takes longer than most of what they test: compiled
    # modules of one run are kept in a folder of its own, which workers and their children find in the environment.
    compiled = tempfile.mkdtemp(prefix="tilewright-bytecode-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    sys.dont_write_bytecode, sys.pycache_prefix = False, compiled
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = compiled

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
