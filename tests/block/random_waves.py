"""Random valid programs of one role for waves of many lanes: those of `random_programs`, spread over all lanes."""

from __future__ import annotations

import random
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import random_programs
from random_programs import Modes, random_block_program

Array = np.ndarray[Any, np.dtype[Any]]


def random_wave_program(
    seed: int, waves: int, machine: str = "hopper", lanes: int = 32
) -> tuple[str, dict[str, Array], dict[str, Array]]:
    """(text, arguments by name, what the outputs must be)."""
    own = random_programs.random_modes
    threads = waves * lanes

    def spread(rng: random.Random, shape: tuple[int, ...], _: int = 1) -> Modes:
        """A distribution over all threads: of the modes that one would have, those that fit; the rest is repeated."""
        found = own(rng, shape)
        mine: list[tuple[int, int, int]] = []
        values = list(found.values)
        for mode in found.threads:
            if mode[1] == 2 and prod(m[1] for m in mine) * 2 <= threads:
                mine.append(mode)
            elif mode[0] != -1:
                values.append(mode)
        return Modes(shape, [*mine, (-1, threads // prod(m[1] for m in mine), 0)], values)

    with patch.object(random_programs, "random_modes", spread):
        text, arrays, expected = random_block_program(seed, max(2, waves))
    text = text.replace(f"  waves {max(2, waves)}\n", f"  machine {machine}\n  waves {waves}\n")
    return text.replace(f"by ({max(2, waves)},1):(0,0)", f"by ({threads},1):(0,0)"), arrays, expected
