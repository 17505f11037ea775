"""Where the coefficients of the vector mathematics come from: best polynomials by Remez' exchange, in mpmath.

    python benchmarks/coefficients.py              # all tables, as codegen/mathematics/coefficients.py holds them
    python benchmarks/coefficients.py exp.f32      # one

Each line says what a polynomial Q stands for, on which interval, and what its error weighs in the result: the largest
weighted error is printed as a power of two. Coefficients are rounded to the element type, lowest degree first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.prec = 240
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Fit:
    """A polynomial of this degree for f on [lo, hi], its error times `weight` least."""

    f: Function
    weight: Function
    lo: float
    hi: float
    degree: int

    def solved(self) -> tuple[list[Any], Any]:
        """The coefficients and the largest weighted error."""
        count = self.degree + 2
        middle, half = (mp.mpf(self.hi) + self.lo) / 2, (mp.mpf(self.hi) - self.lo) / 2
        # points of a grid that is dense at the ends; the interval's ends may be where f is 0/0
        grid = [middle - half * mp.cos(mp.pi * (k + mp.mpf("0.5")) / (24 * count)) for k in range(24 * count)]
        values, weights = [self.f(x) for x in grid], [self.weight(x) for x in grid]
        chosen = [round(24 * k + 11.5) for k in range(count)]
        for _ in range(30):
            rows = mp.matrix(count, count)
            right = mp.matrix(count, 1)
            for i, k in enumerate(chosen):
                for j in range(count - 1):
                    rows[i, j] = grid[k] ** j
                rows[i, count - 1] = (-1) ** i / weights[k]
                right[i] = values[k]
            found = mp.lu_solve(rows, right)
            coefficients = [found[j] for j in range(count - 1)]
            error = [(mp.polyval(coefficients[::-1], x) - v) * w for x, v, w in zip(grid, values, weights, strict=True)]
            level, worst = abs(found[count - 1]), max(abs(e) for e in error)
            if worst <= level * mp.mpf("1.001"):
                break
            chosen = _exchanged(error, count)
        return coefficients, worst


def _exchanged(error: list[Any], count: int) -> list[int]:
    """The largest error of each run of one sign; `count` neighbouring runs with the largest."""
    runs: list[int] = []
    for k, e in enumerate(error):
        if runs and (error[runs[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[runs[-1]]):
                runs[-1] = k
        else:
            runs.append(k)
    while len(runs) > count:
        runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
    return runs


def _log_ratio(z: Any) -> Any:
    """log((1 + s)/(1 - s))/s for z = s*s."""
    s = mp.sqrt(z)
    return mp.log((1 + s) / (1 - s)) / s


def _odd(f: Function) -> Function:
    """f(x)/x for z = x*x."""
    return lambda z: f(mp.sqrt(z)) / mp.sqrt(z)


def _minus_log_erfc(a: Any) -> Any:
    return -mp.log(mp.erfc(a))


S = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
"""The largest s = f/(2 + f) for 1 + f between sqrt(1/2) and sqrt(2)."""
ANGLE = (mp.pi / 4) ** 2 * 1.001
LN2 = mp.log(2)

FITS: dict[str, tuple[Fit, str]] = {}
for _kind, _degrees in {
    "f32": {"exp": 4, "exp2": 5, "log": 2, "sin": 2, "cos": 2, "tanh": 5, "erf": 6, "erfc": 6},
    "f64": {"exp": 9, "exp2": 11, "log": 6, "sin": 5, "cos": 5, "tanh": 10, "erf": 11, "erfc": 17},
}.items():
    _far = 4.0 if _kind == "f32" else 6.0
    FITS |= {
        f"exp.{_kind}": (
            Fit(lambda r: (mp.exp(r) - 1 - r) / r**2, lambda r: r**2 / mp.exp(r), -0.34662, 0.34662, _degrees["exp"]),
            "e^r = 1 + r + r^2 Q(r)",
        ),
        f"exp2.{_kind}": (
            Fit(lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: r / mp.mpf(2) ** r, -0.5, 0.5, _degrees["exp2"]),
            "2^r = 1 + r Q(r)",
        ),
        f"log.{_kind}": (
            Fit(lambda z: (_log_ratio(z) - 2) / z, lambda z: z / 2, 0, S**2 * 1.001, _degrees["log"]),
            "log((1 + s)/(1 - s)) = s (2 + z Q(z)), z = s^2",
        ),
        f"sin.{_kind}": (
            Fit(lambda z: (_odd(mp.sin)(z) - 1) / z, lambda z: z, 0, ANGLE, _degrees["sin"]),
            "sin r = r (1 + z Q(z)), z = r^2",
        ),
        f"cos.{_kind}": (
            Fit(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2, 0, ANGLE, _degrees["cos"]),
            "cos r = 1 - z/2 + z^2 Q(z), z = r^2",
        ),
        f"tanh.{_kind}": (
            Fit(lambda z: (_odd(mp.tanh)(z) - 1) / z, lambda z: z, 0, 0.391, _degrees["tanh"]),
            "tanh a = a (1 + z Q(z)), z = a^2, a < 0.625",
        ),
        f"erf.{_kind}": (
            Fit(lambda z: _odd(mp.erf)(z) - 1, lambda z: 1, 0, 1.0, _degrees["erf"]),
            "erf a = a (1 + Q(z)), z = a^2, a < 1",
        ),
        f"erfc.{_kind}": (
            Fit(lambda u: _minus_log_erfc(1 + u), lambda u: mp.erfc(1 + u), 0, _far - 1, _degrees["erfc"]),
            f"erfc a = e^-Q(a - 1), 1 <= a < {_far:g}",
        ),
    }
FITS |= {
    "reciprocal.f32": (
        Fit(lambda e: 1 / (1 + e), lambda e: 1 + e, 0, 1.0, 5),
        "1/(1 + e) = Q(e), 0 <= e <= 1",
    ),
    "log2.short": (
        Fit(lambda z: _log_ratio(z) / LN2, lambda z: LN2 / 2, 0, S**2 * 1.001, 4),
        "log2((1 + s)/(1 - s)) = s Q(z), for pow in f32",
    ),
    "exp2.short": (
        Fit(lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: r / mp.mpf(2) ** r, -0.5, 0.5, 6),
        "2^r = 1 + r Q(r), for pow in f32",
    ),
    "sinh.f64": (
        Fit(lambda z: (_odd(mp.sinh)(z) - 1) / z, lambda z: z, 0, 1.0, 6),
        "sinh a = a (1 + z Q(z)), z = a^2, a < 1",
    ),
    "atan.f64": (
        Fit(lambda z: (_odd(mp.atan)(z) - 1) / z, lambda z: z, 0, 0.2501, 11),
        "atan a = a (1 + z Q(z)), z = a^2, a <= 1/2",
    ),
    "log.long": (
        Fit(
            lambda z: (_log_ratio(z) / 2 - 1 - z / 3 - z**2 / 5) / z**3, lambda z: z**3, 0, S**2 * 1.001, 6
        ),
        "log((1 + s)/(1 - s)) = 2 s (1 + z/3 + z^2/5 + z^3 Q(z)), for pow in f64",
    ),
}  # fmt: skip


def main() -> None:
    for name, (fit, meaning) in FITS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        coefficients, worst = fit.solved()
        kind: Any = np.float32 if name.endswith("f32") else float
        numbers = ", ".join(repr(float(kind(mp.nstr(c, 40)))) for c in coefficients)
        print(f'    # {meaning}: 2^{mp.nstr(mp.log(worst, 2), 4)}\n    "{name}": ({numbers}),')


if __name__ == "__main__":
    main()
