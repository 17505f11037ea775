"""Settings shared by all tests: how many examples the property tests try, and what Python and numpy do beside them.

`pytest` tries the same examples every time; `pytest --hypothesis-profile=thorough` tries twenty times as
many, and different ones in every run.
"""

import atexit
import gc
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

# numpy's products are small here, and each process has a core: a second thread of BLAS would wait for the first by
# spinning, on the core of another process. It is read when numpy is imported, by children too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

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


def pytest_collection_finish() -> None:
    """The garbage collector leaves aside what was imported and collected, and looks less often at what tests make."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
