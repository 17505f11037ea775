"""Leave out all that needs a framework which is not installed: its part of the package, its tests, its pages.

Folders of tests have other names than the packages: a folder `jax` among them would be found by `import jax`.
"""

import os
from importlib.util import find_spec

NEEDED_BY = {
    "jax": ["src/tilewright/jax", "tests/with_jax", "docs/jax.md"],
    "torch": ["src/tilewright/torch", "tests/pytorch", "docs/pytorch.md"],
}

collect_ignore = [path for name, paths in NEEDED_BY.items() if find_spec(name) is None for path in paths]
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # XLA reads it when it is first used
