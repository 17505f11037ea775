"""This CPU beside XNNPACK and OpenBLAS, in one run: `python benchmarks/cpu_peers.py [--models FOLDER] [--threads N]`.

Six convolutions in f32 and s8 beside XNNPACK (through LiteRT, the package ai-edge-litert; its models, one convolution
each, come from `python benchmarks/cpu_peers.py make FOLDER`, where TensorFlow is installed); the same in f16, with sums
in f32 and in f16, beside our own f32; a product of 1024x1024 matrices in f32 beside numpy's library. All sides run in
turn, the shortest call counts, arrays are bound and weights packed before. Ratios are theirs / ours: above 1, ours is
faster. XNNPACK's s8 gives s8, ours the sums.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CONVOLUTIONS = [
    # image, channels, filters, extent of a filter, stride, padding
    (56, 64, 64, 3, 1, 1),
    (28, 128, 128, 3, 1, 1),
    (14, 256, 256, 3, 1, 1),
    (56, 64, 256, 1, 1, 0),
    (14, 1024, 256, 1, 1, 0),
    (224, 3, 64, 7, 2, 3),
]
ROUNDS, SECONDS, PAUSE = 12, 0.05, 0.05
Call = Callable[[], object]


def make(folder: Path) -> None:
    """Writes the models that XNNPACK runs."""
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    for number, (side, channels, filters, k, stride, pad) in enumerate(CONVOLUTIONS):
        rng = np.random.default_rng(number)
        weights = tf.constant((rng.standard_normal((k, k, channels, filters)) / k).astype(np.float32))
        traced = _traced(tf, weights, (1, side, side, channels), stride, pad)
        examples = [[rng.standard_normal((1, side, side, channels)).astype(np.float32)] for _ in range(3)]
        for kind in ("f32", "s8"):
            converter = tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()], traced)
            if kind == "s8":
                _quantised(tf, converter, examples)
            (folder / f"{kind}_{number}.tflite").write_bytes(converter.convert())


def _traced(tf: Any, weights: Any, shape: tuple[int, ...], stride: int, pad: int) -> Any:
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])  # type: ignore[untyped-decorator]
    def convolution(x: Any) -> Any:
        padded = x if stride == 1 else tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
        return tf.nn.conv2d(padded, weights, stride, "SAME" if stride == 1 else "VALID")

    return convolution


def _quantised(tf: Any, converter: Any, examples: list[Any]) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: iter(examples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8


def xnnpack(file: Path, threads: int) -> Call:
    """A call of XNNPACK on a model."""
    from ai_edge_litert.interpreter import Interpreter

    made = Interpreter(str(file), num_threads=threads)
    made.allocate_tensors()
    taken = made.get_input_details()[0]
    made.set_tensor(taken["index"], np.random.default_rng(0).integers(-3, 4, taken["shape"]).astype(taken["dtype"]))
    return made.invoke


def ours(problem: str, dt: str) -> tuple[str, Call]:
    """(the atom, a call) of ours on a problem, checked against exact results."""
    from tilewright.cli.workload import read_problem, read_workload

    work = read_workload(read_problem(problem), dt)
    arrays = work.arrays(np.random.default_rng(0), exact=True)
    *_, out = arrays.values()
    kernel = work.compiled(None)
    bound = kernel.bind(arrays)
    bound()
    assert np.array_equal(out, work.reference(arrays).astype(out.dtype)), f"{problem} {dt}: wrong"
    return kernel.plan.atom or "", bound


def row(name: str, sides: dict[str, Call], operations: int) -> float:
    """Times two sides in turn and prints them; the ratio."""
    from tilewright.cli.timing import shortest

    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for side, call in sides.items():
            time.sleep(PAUSE)  # threads of the other side stop looking for work
            best[side] = min(best[side], shortest(call, SECONDS))
    (mine, a), (theirs, b) = best.items()
    print(f"| {name} | {mine} | {a * 1e6:.0f} | {operations / a * 1e-9:.1f} | {theirs} | {b * 1e6:.0f} | {b / a:.2f} |",
          flush=True)  # fmt: skip
    return b / a


def convolutions(models: Path | None, threads: int) -> None:
    """Prints the rows of the six convolutions, and the geometric mean of each kind."""
    ratios: dict[str, list[float]] = {}
    for number, (side, channels, filters, k, stride, pad) in enumerate(CONVOLUTIONS):
        problem = f"mb1ic{channels}ih{side}oc{filters}kh{k}sh{stride}ph{pad}"
        out = (side + 2 * pad - k) // stride + 1
        operations = 2 * out * out * filters * channels * k * k
        plain = ours(problem, "f32")
        for kind in ("f32", "s8"):
            if models is not None:
                atom, call = plain if kind == "f32" else ours(problem, kind)
                sides = {atom: call, "XNNPACK": xnnpack(models / f"{kind}_{number}.tflite", threads)}
                ratios.setdefault(f"{kind} / XNNPACK", []).append(row(f"{problem} {kind}", sides, operations))
        for kind, name in (("f16", "f16"), ("f16sums", "f16 sums")):
            atom, call = ours(problem, kind)
            sides = {f"{atom} of f16": call, "our f32": plain[1]}
            ratios.setdefault(f"{name} / our f32", []).append(row(f"{problem} {name}", sides, operations))
    for kind, found in ratios.items():
        print(f"{kind}: geometric mean {np.exp(np.log(found).mean()):.3f}, least {min(found):.3f}")


def product(n: int) -> None:
    """Prints the row of a matrix product."""
    a, b = (np.random.default_rng(s).standard_normal((n, n)).astype(np.float32) for s in (1, 2))
    c = np.empty_like(a)
    atom, call = ours(f"{n}x{n}:{n}x{n}", "f32")
    row(f"GEMM {n} f32", {atom: call, "numpy": lambda: np.matmul(a, b, out=c)}, 2 * n**3)


def main() -> None:
    """The tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    os.environ["TILEWRIGHT_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(given.threads)
    print("| problem | ours | us | GF/s | peer | us | ratio |\n|---|---|---|---|---|---|---|")
    convolutions(given.models, given.threads)
    product(1024)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(Path(sys.argv[2]))
    else:
        main()
