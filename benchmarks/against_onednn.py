"""Convolutions of a list against oneDNN, on this CPU, in one run: `tilewright bench SET --against onednn`.

    python benchmarks/against_onednn.py [SET] [--dt bf16] [--mb 1] [--rounds 5] [--json FILE]

SET is resnet_50 unless given. It needs PyTorch, the extra `bench`.
"""

from __future__ import annotations

import sys

from tilewright.cli import app


def main() -> None:
    given = sys.argv[1:]
    names = [] if given and not given[0].startswith("-") else ["resnet_50"]
    app(["bench", *names, *given])


if __name__ == "__main__":
    main()
