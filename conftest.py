"""What needs a framework that is not installed is left out: its part of the package, and pages that show it."""

from importlib.util import find_spec

NEEDED_BY = {
    "jax": ["src/tilewright/jax", "docs/jax.md"],
    "torch": ["src/tilewright/torch", "docs/pytorch.md"],
}

collect_ignore = [path for name, paths in NEEDED_BY.items() if find_spec(name) is None for path in paths]
