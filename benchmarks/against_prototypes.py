"""The AMX and AVX-512 block programs against hand-written generators of the same kernels, in one run.

    python benchmarks/against_prototypes.py FOLDER [keys]

FOLDER holds the generators (amxconv.py, f32conv.py, jit.py). Ours and theirs run in turn, with a probe of the peak
before each sample; a sample counts where the probe after it is near the best seen. All threads are pinned, as the
generators want it. Ratios are theirs / ours: above 1,
ours is faster. Keys: a, b, c for bf16, A, B for fp32.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import tilewright
from tilewright.targets.cpu.pool import aligned, pool

BF16 = ml_dtypes.bfloat16
BLOCK = Path(__file__).parent.parent / "examples" / "block"

# key: (channels, height = width, filters), parameters of the block program, options of the generator
AMX = {
    "a": ((64, 56, 64), {"STRIP": 28, "CHUNK": 64, "STREAM_X": 1, "STREAM_W": 0}, {"R": 28, "at1": True}),
    "b": (
        (128, 28, 128),
        {"STRIP": 14, "CHUNK": 128, "STREAM_X": 0, "STREAM_W": 1},
        {"R": 14, "chunk": 128, "bt1": True},
    ),
    "c": (
        (256, 14, 256),
        {"STRIP": 14, "CHUNK": 32, "SPLIT": 2, "STREAM_X": 0, "STREAM_W": 1},
        {"R": 14, "split": "N", "chunk": 32, "bt1": True},
    ),
}
AVX = {"A": ((64, 56, 64), {}, {}), "B": ((128, 28, 128), {"SPLIT": 2}, {"split": "N"})}


def kept(array):
    """A copy at the start of a page."""
    made = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def timed(run, least=0.004):
    """The shortest of a few calls."""
    best, start = 1e9, time.perf_counter()
    while True:
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        best = min(best, after - before)
        if after - start > least:
            return best


def cases(keys):
    """(key, flops, theirs, ours, kind) for each key."""
    from amxconv import AmxConv
    from f32conv import F32Conv
    from jit import Pool

    theirs, _ = Pool(spin=3000), pool()
    workers = [t for t in threading.enumerate() if t.name.startswith("tilewright")]
    os.sched_setaffinity(0, {0})
    for thread in (theirs.th, *workers):
        os.sched_setaffinity(thread.native_id, {1})
    rng = np.random.default_rng(0)
    for key in keys:
        amx = key in AMX
        (c, h, f), params, options = (AMX if amx else AVX)[key]
        kind = BF16 if amx else np.float32
        x, w = (rng.standard_normal(s).astype(kind) for s in ((1, h, h, c), (f, 3, 3, c)))
        x = kept(x)
        outputs = [kept(np.zeros((1, h, h, f), kind)) for _ in range(2)]
        made = (
            AmxConv(1, c, h, h, f, 3, 1, 1, defer=2, **options) if amx else F32Conv(1, c, h, h, f, 3, 1, 1, **options)
        )
        packed = made.pack(w)
        call = made.bind(x, packed, outputs[0])
        text = (BLOCK / ("conv_amx.block" if amx else "conv_avx512.block")).read_text()
        ours = tilewright.compile_text(text, "cpu", {"H": h, "W": h, "C": c, "F": f, **params})
        shape = tuple(int(n) for n in ours.main.args[1].type.shape)
        mine = kept(np.asarray(packed).view(kind).reshape(-1)[: int(np.prod(shape))].reshape(shape))
        launch = ours.bind(x, mine, outputs[1])
        call(theirs)
        launch()
        if not np.array_equal(outputs[0].astype(np.float32), outputs[1].astype(np.float32)):
            worst = np.abs(outputs[0].astype(np.float64) - outputs[1].astype(np.float64)).max()
            print(f"{key}: results differ by up to {worst:.3g} (rounding of sums in another order)")
        yield key, 2 * h * h * c * f * 9, (lambda call=call: call(theirs)), launch, "amx" if amx else "fma", theirs


def main():
    folder, keys = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "abcAB"
    sys.path.insert(0, folder)
    from jit import Gate

    for key, flops, theirs, ours, kind, probed in cases(keys):
        gate = Gate(probed, kind)
        good = {"theirs": [], "ours": []}
        start = time.perf_counter()
        while time.perf_counter() - start < 20 and min(map(len, good.values())) < 12:
            for name, run in (("theirs", theirs), ("ours", ours)):
                time.sleep(0.003)
                gate.wait(15)
                run()
                took = timed(run)
                if gate.probe() < 1.2 * gate.best:
                    good[name].append(took)
        if not all(good.values()):
            print(f"{key}: no clean samples")
            continue
        best = {name: min(times) for name, times in good.items()}
        middle = {name: float(np.median(times)) for name, times in good.items()}
        print(
            f"{key}: theirs {best['theirs'] * 1e6:7.1f} us, ours {best['ours'] * 1e6:7.1f} us, "
            f"ratio {best['theirs'] / best['ours']:.2f} (medians {middle['theirs'] / middle['ours']:.2f}), "
            f"{flops / best['ours'] / 1e9:.0f} GFLOP/s, clean samples {len(good['theirs'])}+{len(good['ours'])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
