"""Settings shared by all tests: how many examples and cases are tried, and what Python and numpy do beside them.

`pytest` tries the same examples every time; `pytest --hypothesis-profile=thorough` tries twenty times as
many, and different ones in every run.

A test with many cases that take long is marked `sampled(N)`: `make test` runs N of them, evenly spread over the list,
and `make test-long` the others. A case that the command line names with `::` always runs.
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections import defaultdict

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

import pytest
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


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` says
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests that are not in the sample as `long`."""
    if any("::" in argument for argument in config.args):
        return
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for every in cases.values():
        (count,) = every[0].get_closest_marker("sampled").args
        kept = {number * (len(every) - 1) // max(1, count - 1) for number in range(count)}
        for number, item in enumerate(every):
            if number not in kept:
                item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """The garbage collector leaves aside what was imported and collected, and looks less often at what tests make."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
