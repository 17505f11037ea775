"""cuBLAS and cuDNN by way of PyTorch: their calls on the GPU at hand, timed beside ours in CUDA graphs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.cli.cuda_graphs import graph_sampler
from tilewright.cli.gpu_timing import floor_of
from tilewright.cli.peer import FLOATS, check_padding
from tilewright.errors import ArgumentError, TargetError
from tilewright.problems import ConvProblem, MatmulProblem, dtype
from tilewright.runtime.timing import interleaved_medians
from tilewright.targets.names import CUDA
from tilewright.targets.registry import gpu_machine

if TYPE_CHECKING:
    from tilewright.cli.workload import Workload

CUBLAS, CUDNN = "cublas", "cudnn"
Row = dict[str, Any]


class GpuLibraries:
    """PyTorch on a GPU, and those of its libraries that are asked for."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        try:
            self.torch: Any = importlib.import_module("torch")
        except ImportError:
            raise ArgumentError(
                f"{' and '.join(names)} are called by way of PyTorch, which is not installed: install tilewright[bench]"
            ) from None
        if not self.torch.cuda.is_available():
            raise TargetError(f"--against {','.join(names)}: PyTorch finds no GPU here")
        self.machine = gpu_machine(CUDA)
        self.torch.set_grad_enabled(False)
        self.torch.backends.cudnn.benchmark = True

    def measured(self, work: Workload, waiting: Callable[[str], None]) -> Row:
        """One problem on both sides: the medians of interleaved replays."""
        p = work.problem
        name = CUDNN if isinstance(p, ConvProblem) else CUBLAS
        if name not in self.names:
            raise ArgumentError(f"it is {name}'s: --against {name} measures it")
        waiting("the peer's call")
        tensors, call = self._products(p, work) if isinstance(p, MatmulProblem) else self._convolution(p, work)
        try:
            theirs = call()
        except RuntimeError as fault:
            raise ArgumentError(f"{name} refuses it: {str(fault).splitlines()[0]}") from None
        waiting("code")
        kernel = work.compiled(target=CUDA)
        out = self.torch.empty(work.shapes[list(work.shapes)[2]], dtype=self._type(work.types[2]), device="cuda")
        launch = kernel.bind({**dict(zip(work.shapes, tensors, strict=False)), list(work.shapes)[2]: out})
        launch()
        wanted = theirs.movedim(1, -1) if isinstance(p, ConvProblem) else theirs
        error = float((out.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))
        if not error <= 4 * dtype(work.types[2]).eps + 1e-3:
            raise ArgumentError(f"the results differ: by {error:.1e} of their size")
        waiting("times")
        ours, peer = interleaved_medians([graph_sampler(launch), graph_sampler(call)])
        floor = floor_of(work, self.machine)
        return {
            "problem": str(p),
            "dt": work.dt,
            "ours_us": ours * 1e6,
            "peer_us": peer * 1e6,
            "ratio": peer / ours,
            "gflops": p.ops / ours / 1e9,
            "floor_us": floor.seconds * 1e6,
            "floor_share": floor.seconds / ours,
            "floor_by": floor.by,
            "predicted_us": getattr(kernel.choice, "cycles", math.nan) / self.machine.limits.clock_ghz * 1e-3,
            "peer_form": name,
            "plan": str(kernel.plan),
        }

    def _type(self, name: str) -> Any:
        names = FLOATS | {"s8": "int8", "s32": "int32", "f8e4m3fn": "float8_e4m3fn"}
        if name not in names:
            raise ArgumentError(f"{name}: one of {', '.join(names)} is measured on GPUs")
        return getattr(self.torch, names[name])

    def _random(self, shape: tuple[int, ...], name: str) -> Any:
        kind = self._type(name)
        if name in FLOATS or name == "f8e4m3fn":
            return self.torch.randn(shape, device="cuda").to(kind)
        return self.torch.randint(-128, 128, shape, device="cuda", dtype=kind)

    def _products(self, p: MatmulProblem, work: Workload) -> tuple[list[Any], Callable[[], Any]]:
        """cuBLAS's product of matrices, or of batches of them."""
        torch, kind, result = self.torch, work.types[0], self._type(work.types[2])
        a, b = self._random(p.src, kind), self._random(p.wei, kind)
        self._allow(work)
        if kind == "s8":
            return [a, b], lambda: torch._int_mm(a, b)
        if kind == "f8e4m3fn":  # its second factor lies with k fastest
            turned, one = b.t().contiguous().t(), torch.ones((), device="cuda")
            return [a, b], lambda: torch._scaled_mm(a, turned, one, one, out_dtype=result)
        if work.types[2] != kind:
            raise ArgumentError(f"{':'.join(work.types)}: the result has the factors' type where cuBLAS is called")
        return [a, b], lambda: torch.matmul(a, b)

    def _convolution(self, p: ConvProblem, work: Workload) -> tuple[list[Any], Callable[[], Any]]:
        """cuDNN's convolution of channels that lie last."""
        torch, kind = self.torch, work.types[0]
        if kind not in FLOATS or len(set(work.types)) != 1:
            raise ArgumentError(f"{work.dt}: one of {', '.join(FLOATS)} is measured beside cuDNN")
        check_padding(p)
        self._allow(work)
        x, w = (self._random(work.shapes[name], kind) for name in ("x", "w"))
        images, filters = x.movedim(-1, 1), w.movedim(-1, 1)
        call = getattr(torch.nn.functional, f"conv{p.rank}d")
        options = {"stride": p.s, "padding": p.p, "dilation": p.dilation, "groups": p.groups}
        return [x, w], lambda: call(images, filters, **options)

    def _allow(self, work: Workload) -> None:
        """Whether PyTorch may round f32 to tf32: where ours does."""
        self.torch.backends.cuda.matmul.allow_tf32 = self.torch.backends.cudnn.allow_tf32 = work.precision == "tf32"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "ratio": lambda row: f"{row['ratio']:.2f}",
    "ours us": lambda row: f"{row['ours_us']:.1f}",
    "peer us": lambda row: f"{row['peer_us']:.1f}",
    "predicted": lambda row: f"{row['predicted_us']:.1f}",
    "TFLOP/s": lambda row: f"{row['gflops'] / 1e3:.1f}",
    "% of floor": lambda row: f"{100 * row['floor_share']:.0f}",
    "peer": lambda row: row["peer_form"],
}
"""What a line says before the problem."""
