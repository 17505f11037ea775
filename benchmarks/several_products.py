"""Programs of two and three products on this CPU, against their products compiled one by one.

    python benchmarks/several_products.py [--programs 20] [--seed 0] [--type bf16] [--seconds 0.4] [--only REGEX]

A program is drawn by its form (two products of one operand, a chain, a low-rank update, ...) and its sizes, some of
them ragged. Its time is compared with the sum of the times of its products, each compiled as `kernels.gemm` with the
same types and sizes: what a caller would write who has one kernel at a time, without the elementwise work between. All
launches are bound before; samples are interleaved; a figure is the median. The ratio is peer / program, so above 1 the
program is faster. The last lines give the geometric mean and the worst; the exit code is 1 if a ratio is below 0.8.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log
from time import perf_counter
from typing import Any

from corpus_kernels import B, F, H, K, L, M, N, f32, gated_unit, low_rank, memory
from old_new_worker import cpu_array

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.kernels.gemm import gemm
from tilewright.runtime.timing import interleaved_medians

BAR = 0.8
ROWS, WIDTHS = (64, 100, 256, 500, 1024, 2048), (64, 100, 128, 256, 384, 512, 1000, 1024, 2048)


@dataclass(frozen=True)
class Drawn:
    """A program: its form, its sizes, and (M, N, K) of each of its products."""

    form: str
    sizes: dict[str, int]
    products: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        return f"{self.form} " + " ".join(f"{name}{n}" for name, n in self.sizes.items())


def total(x: Any, w: Any, dims: tuple[Any, ...], k: Any) -> Any:
    """The product of two arguments, summed in f32 by a loop over `k`."""

    @tkw.iterate(k, init_args=[tkl.Register[(*dims, f32)](0)])
    def sums(acc: Any) -> Any:
        return tkw.mma(tkw.read(x), tkw.read(w), acc)

    return sums


def chain(dtype: str) -> Any:
    """y = relu(x a) b."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def chain(x: memory(M, K, data), a: memory(L, K, data), b: memory(N, L, data), y: memory(M, N, data)) -> None:
        between = tkw.cast(tkw.maximum(total(x, a, (M, L), K), 0.0), data)
        tkw.write(tkw.cast(tkw.mma(between, tkw.read(b), tkl.Register[M, N, f32](0)), data), y)

    return chain


def two_terms(dtype: str) -> Any:
    """y = x a + z b."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def two_terms(
        x: memory(M, K, data),
        a: memory(N, K, data),
        z: memory(M, L, data),
        b: memory(N, L, data),
        y: memory(M, N, data),
    ) -> None:
        tkw.write(tkw.cast(total(x, a, (M, N), K) + total(z, b, (M, N), L), data), y)

    return two_terms


def gated_down(dtype: str) -> Any:
    """y = (silu(x w) * (x u)) v: the three products of a gated feed-forward layer."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def gated_down(
        x: memory(M, K, data),
        w: memory(F, K, data),
        u: memory(F, K, data),
        v: memory(N, F, data),
        y: memory(M, N, data),
    ) -> None:
        gate, up = total(x, w, (M, F), K), total(x, u, (M, F), K)
        hidden = tkw.cast(gate * tkw.sigmoid(gate) * up, data)
        tkw.write(tkw.cast(tkw.mma(hidden, tkw.read(v), tkl.Register[M, N, f32](0)), data), y)

    return gated_down


def weighted_rows(dtype: str) -> Any:
    """y[b] = softmax(q[b] k[b]) v[b] over whole rows: attention as its formula is written."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def weighted_rows(
        q: memory(B, M, H, data), k: memory(B, L, H, data), v: memory(B, L, N, data), y: memory(B, M, N, data)
    ) -> None:
        scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, M, L, f32](0))
        weights = tkw.exp(scores - tkw.max(scores, dim=L))
        weights = tkw.cast(weights / tkw.sum(weights, dim=L), data)
        tkw.write(tkw.cast(tkw.mma(weights, tkw.read(v), tkl.Register[B, M, N, f32](0)), data), y)

    return weighted_rows


def whole_sum(dtype: str) -> Any:
    """y = x a, without a loop over what is summed."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def whole_sum(x: memory(M, K, data), a: memory(N, K, data), y: memory(M, N, data)) -> None:
        tkw.write(tkw.cast(tkw.mma(tkw.read(x), tkw.read(a), tkl.Register[M, N, f32](0)), data), y)

    return whole_sum


FORMS: dict[str, tuple[Callable[[str], Any], str, tuple[str, ...]]] = {
    "gated unit": (gated_unit, "MNK", ("MNK", "MNK")),
    "low rank": (low_rank, "MNKL", ("MNK", "MLK", "MNL")),
    "chain": (chain, "MNKL", ("MLK", "MNL")),
    "two terms": (two_terms, "MNKL", ("MNK", "MNL")),
    "gated feed-forward": (gated_down, "MNKF", ("MFK", "MFK", "MNF")),
    "softmax of a product": (weighted_rows, "BMNLH", ("MLH", "MNL")),
    "one product, no loop": (whole_sum, "MNK", ("MNK",)),
}
"""By form: the kernel, its sizes, and (M, N, K) of each product by their letters."""


def drawn(count: int, seed: int) -> Iterator[Drawn]:
    """Yield so many programs, form after form, with sizes drawn by the seed."""
    rng, forms = random.Random(seed), list(FORMS)
    for number in range(count):
        form = forms[number % len(forms)]
        _, letters, products = FORMS[form]
        sizes = {letter: rng.choice(ROWS if letter == "M" else WIDTHS) for letter in letters}
        sizes |= {"B": rng.choice((1, 4, 12)), "H": 64, "N": 64} if "B" in letters else {}
        sizes |= {"L": rng.choice((16, 64))} if form == "low rank" else {}
        yield Drawn(form, sizes, tuple(tuple(sizes[letter] for letter in p) for p in products))  # type: ignore[misc]


def launch_of(kernel: Any, sizes: dict[str, int], constant: tuple[str, ...]) -> Callable[[], object]:
    """Return a compiled kernel bound to random data."""
    compiled = kernel_for(kernel, sizes, target="cpu", constant=constant)
    arrays = {
        a.name: cpu_array(tuple(map(int, a.type.shape)), "", a.type.dtype.numpy, 3) for a in compiled.module.host.args
    }
    launch: Callable[[], object] = compiled.bind(arrays)
    return launch


def sampler(launches: list[tuple[Callable[[], object], int]], seconds: float) -> Callable[[], float]:
    """Return a function that gives the seconds of one run of all launches, each as often as is said with it."""

    def run() -> float:
        before = perf_counter()
        for launch, times in launches:
            for _ in range(times):
                launch()
        return perf_counter() - before

    run()
    repeats = max(1, int(seconds / 40 / max(run(), 1e-7)))

    def sample() -> float:
        return sum(run() for _ in range(repeats)) / repeats

    return sample


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--type", default="bf16")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    ratios: list[tuple[float, str]] = []
    for one in drawn(given.programs, given.seed):
        if not re.search(given.only, str(one)):
            continue
        kernel = FORMS[one.form][0](given.type)
        mine = launch_of(kernel, one.sizes, ())
        batch = one.sizes.get("B", 1)
        peers = [
            (launch_of(gemm("nt", given.type, given.type), dict(zip("MNK", sizes, strict=True)), ()), batch)
            for sizes in one.products
        ]
        program, products = interleaved_medians([sampler([(mine, 1)], given.seconds), sampler(peers, given.seconds)])
        ratios.append((products / program, str(one)))
        print(f"{products / program:6.2f}  {program * 1e6:9.1f} us, products {products * 1e6:9.1f}  {one}", flush=True)
    if not ratios:
        print("no program has that name")
        return 1
    mean = exp(sum(log(r) for r, _ in ratios) / len(ratios))
    worst, name = min(ratios)
    print(f"geometric mean {mean:.2f}, worst {worst:.2f} ({name}), below {BAR}: {sum(r < BAR for r, _ in ratios)}")
    return int(worst < BAR)


if __name__ == "__main__":
    sys.exit(main())
