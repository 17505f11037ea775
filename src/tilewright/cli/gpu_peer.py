"""cuBLAS and cuDNN through PyTorch: their calls timed beside Tilewright's in CUDA graphs, on the GPU in use."""

from __future__ import annotations

import importlib
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
    """PyTorch on a GPU, with the libraries (cublas, cudnn) to measure against."""

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
        """Time one workload with Tilewright and with cuBLAS (GEMM) or cuDNN (convolution), and return its row of
        results ({name: number or text}).

        Times are medians of interleaved graph replays. `waiting` is called with a text that says what is being waited
        for. Raise `ArgumentError` if `self.names` lacks the library for this workload, if the library refuses the
        problem, or if the two results differ.
        """
        p = work.problem
        name = CUDNN if isinstance(p, ConvProblem) else CUBLAS
        if name not in self.names:
            raise ArgumentError(f"it is {name}'s: --against {name} measures it")
        waiting("the peer's call")
        tensors, call = self._matmul_call(p, work) if isinstance(p, MatmulProblem) else self._convolution_call(p, work)
        try:
            peer_result = call()
        except RuntimeError as fault:
            raise ArgumentError(f"{name} refuses it: {str(fault).splitlines()[0]}") from None
        waiting("code")
        kernel = work.compiled(target=CUDA)
        out = self.torch.empty(work.shapes[list(work.shapes)[2]], dtype=self._torch_type(work.types[2]), device="cuda")
        launch = kernel.bind({**dict(zip(work.shapes, tensors, strict=False)), list(work.shapes)[2]: out})
        launch()
        expected = peer_result.movedim(1, -1) if isinstance(p, ConvProblem) else peer_result
        error = float((out.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))
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
            "predicted_us": kernel.choice.cycles / self.machine.limits.clock_ghz * 1e-3,
            "peer_form": name,
            "plan": str(kernel.plan),
        }

    def _torch_type(self, name: str) -> Any:
        """Return PyTorch's type for the element type called `name`, such as "bf16"; raise `ArgumentError` for types
        that are not measured on GPUs.
        """
        names = FLOATS | {"s8": "int8", "s32": "int32", "f8e4m3fn": "float8_e4m3fn"}
        if name not in names:
            raise ArgumentError(f"{name}: one of {', '.join(names)} is measured on GPUs")
        return getattr(self.torch, names[name])

    def _random_tensor(self, shape: tuple[int, ...], name: str) -> Any:
        """Return a random tensor of this `shape` on the GPU. `name` is its element type, such as "bf16": floats are
        normally distributed, integers are from -128 to 127. Raise `ArgumentError` for types that are not measured on
        GPUs.
        """
        torch_type = self._torch_type(name)
        if name in FLOATS or name == "f8e4m3fn":
            return self.torch.randn(shape, device="cuda").to(torch_type)
        return self.torch.randint(-128, 128, shape, device="cuda", dtype=torch_type)

    def _matmul_call(self, p: MatmulProblem, work: Workload) -> tuple[list[Any], Callable[[], Any]]:
        """Return ([a, b], call) for the GEMM problem `p` (perhaps batched): random operands of the types of `work`, and
        a function that multiplies them by cuBLAS. Also set PyTorch's global tf32 flags as `work` needs them.

        Raise `ArgumentError` if the result's type differs from that of the operands; operands of s8 and f8e4m3fn may
        have another result type.
        """
        torch, operand_type, result = self.torch, work.types[0], self._torch_type(work.types[2])
        a, b = self._random_tensor(p.src, operand_type), self._random_tensor(p.wei, operand_type)
        self._set_tf32(work)
        if operand_type == "s8":
            return [a, b], lambda: torch._int_mm(a, b)
        if operand_type == "f8e4m3fn":  # its second operand is column-major: k is the contiguous dimension
            b_column_major, scale = b.t().contiguous().t(), torch.ones((), device="cuda")
            return [a, b], lambda: torch._scaled_mm(a, b_column_major, scale, scale, out_dtype=result)
        if work.types[2] != operand_type:
            raise ArgumentError(f"{':'.join(work.types)}: the result has the factors' type where cuBLAS is called")
        return [a, b], lambda: torch.matmul(a, b)

    def _convolution_call(self, p: ConvProblem, work: Workload) -> tuple[list[Any], Callable[[], Any]]:
        """Return ([x, w], call) for the convolution problem `p`: random channels-last operands of the types of `work`,
        and a function that convolves them by cuDNN. Also set PyTorch's global tf32 flags as `work` needs them.

        Raise `ArgumentError` for other types than f32, bf16 and f16, mixed types, or uneven padding.
        """
        torch, operand_type = self.torch, work.types[0]
        if operand_type not in FLOATS or len(set(work.types)) != 1:
            raise ArgumentError(f"{work.dt}: one of {', '.join(FLOATS)} is measured beside cuDNN")
        check_padding(p)
        self._set_tf32(work)
        x, w = (self._random_tensor(work.shapes[name], operand_type) for name in ("x", "w"))
        images, filters = x.movedim(-1, 1), w.movedim(-1, 1)
        call = getattr(torch.nn.functional, f"conv{p.rank}d")
        options = {"stride": p.s, "padding": p.p, "dilation": p.dilation, "groups": p.groups}
        return [x, w], lambda: call(images, filters, **options)

    def _set_tf32(self, work: Workload) -> None:
        """Set PyTorch's global flags: f32 operands are rounded to tf32 if `work` has the precision "tf32", otherwise
        not.
        """
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
"""{column name: cell text of a row}, printed before the problem."""
