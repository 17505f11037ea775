"""Tests of tilewright.jax: where JAX is installed, with two devices of the host, which XLA reads when it is first used.

The folder has another name than the package: a folder `jax` among those of the tests would be found by `import jax`.
"""

import os
from importlib.util import find_spec

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
collect_ignore_glob = [] if find_spec("jax") else ["*.py"]
