"""What is collected: the parts for torch where torch is installed, as `make test-torch` has it, and not elsewhere."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["src/tilewright/torch", "docs/pytorch.md"]
