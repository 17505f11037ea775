"""oneDNN through PyTorch: its calls with prepacked weights, and the times that oneDNN itself reports."""

from __future__ import annotations

import ctypes
import importlib
import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.problems import ConvProblem, MatmulProblem, dtype

if TYPE_CHECKING:
    from tilewright.cli.workload import Arrays, Workload

Array = np.ndarray[Any, np.dtype[Any]]
Calls = dict[str, Callable[[], Any]]
KINDS = {"convolution", "matmul", "inner_product"}
FLOATS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def check_padding(p: ConvProblem) -> None:
    """Raise `ArgumentError` if PyTorch cannot compute the convolution `p`, because PyTorch pads an axis equally at its
    start and end.

    The padding at the start of each axis, used at both ends, must give the problem's output shape, and must not be
    negative.
    """
    symmetric_output = tuple(
        (i + 2 * pad - (k - 1) * dilation - 1) // s + 1
        for i, pad, k, dilation, s in zip(p.i, p.p, p.k, p.dilation, p.s, strict=True)
    )
    if symmetric_output != p.o or min(p.p) < 0:
        raise ArgumentError("PyTorch pads both sides alike; this problem does not")


class Library:
    """PyTorch on the CPU, with as many threads as Tilewright has workers."""

    def __init__(self) -> None:
        try:
            self.torch: Any = importlib.import_module("torch")
        except ImportError:
            raise ArgumentError(
                "oneDNN is called by way of PyTorch, which is not installed: install tilewright[bench]"
            ) from None
        from tilewright.runtime import environment

        self.torch.set_num_threads(environment.threads())
        self.torch.set_grad_enabled(False)

    def calls(self, work: Workload, arrays: Arrays) -> Calls:
        """Return {name: call}: PyTorch's oneDNN calls that compute the problem of `work` on its `arrays` ({argument
        name: array}), with prepacked weights if possible.

        Only calls that run on this machine are returned. Accepted are 2-D convolutions with symmetric padding and
        single GEMMs, with f32, bf16 or f16 as the type of operands and result. Raise `ArgumentError` for other problems
        and types, and if no call runs.
        """
        p = work.problem
        if len(set(work.types)) != 1 or work.types[0] not in FLOATS:
            raise ArgumentError(f"{':'.join(work.types)}: one of {', '.join(FLOATS)} is measured")
        if isinstance(p, MatmulProblem):
            return self._matmul_calls(p, arrays, getattr(self.torch, FLOATS[work.types[0]]))
        if p.rank != 2:
            raise ArgumentError("only convolutions over two axes are measured, and matrix products")
        check_padding(p)
        torch_type = getattr(self.torch, FLOATS[work.types[0]])
        image, filters = (self._tensor(arrays[name], torch_type).permute(0, 3, 1, 2) for name in ("x", "w"))
        shape = [list(p.p), list(p.s), list(p.dilation), p.groups]
        is_16_bit = torch_type is not self.torch.float32
        try:
            mkldnn_filters = filters.float().to_mkldnn(torch_type) if is_16_bit else filters.to_mkldnn()
            packed = self.torch._C._nn.mkldnn_reorder_conv2d_weight(mkldnn_filters, *shape, list(image.shape))
            call = self.torch.ops.mkldnn._convolution_pointwise
            channels_first = image.contiguous()
            blocked = image.float().to_mkldnn(torch_type) if is_16_bit else image.to_mkldnn()
        except (RuntimeError, NotImplementedError, AttributeError) as fault:
            raise ArgumentError(f"PyTorch refuses it on this CPU: {str(fault).splitlines()[0]}") from None
        calls: Calls = {
            "channels last": lambda: call(image, packed, None, *shape, "none", [], ""),
            "channels first": lambda: call(channels_first, packed, None, *shape, "none", [], ""),
            "blocked": lambda: self.torch.mkldnn_convolution(blocked, packed, None, *shape),
        }
        return _supported_calls(calls)

    def _matmul_calls(self, p: MatmulProblem, arrays: Arrays, torch_type: Any) -> Calls:
        """Return {name: call}, functions that compute the GEMM `p` on `arrays`, converted to `torch_type`. "mm" is
        `torch.mm`; "packed linear" is oneDNN's call with a packed B, if this PyTorch has that call.

        Raise `ArgumentError` for a batched GEMM, or if no call runs.
        """
        if len(p.src) != 2 or len(p.wei) != 2:
            raise ArgumentError("of matrix products, single ones are measured")
        a, b = (self._tensor(arrays[name], torch_type) for name in ("a", "b"))
        transposed_b = b.t().contiguous()
        calls: Calls = {"mm": lambda: self.torch.mm(a, b)}
        try:
            packed = self.torch.ops.mkldnn._reorder_linear_weight(transposed_b.to_mkldnn(), p.m)
            call = self.torch.ops.mkldnn._linear_pointwise
            calls["packed linear"] = lambda: call(a, packed, None, "none", [], "")
        except (RuntimeError, NotImplementedError, AttributeError):
            pass
        return _supported_calls(calls)

    def _tensor(self, array: Array, torch_type: Any) -> Any:
        """Return a copy of the numpy array `array` as a PyTorch tensor of type `torch_type`. Values are converted to
        f32 first.
        """
        return self.torch.from_numpy(array.astype(np.float32)).to(torch_type)

    def difference(self, out: Array, calls: Calls) -> float:
        """Return the largest absolute difference between `out`, Tilewright's result, and PyTorch's result, divided by
        the root mean square of the latter. Return infinity if a difference is not finite.

        `calls` is {name: call} from `Library.calls`; the first call is run.
        """
        result = next(iter(calls.values()))()
        peer_result = result.to_dense().float() if result.is_mkldnn else result.float()
        expected = (
            (peer_result.permute(0, 2, 3, 1) if peer_result.dim() == 4 else peer_result).numpy().astype(np.float64)
        )
        magnitude = max(float(np.sqrt((expected**2).mean())), 1e-30)
        error = float(np.abs(out.astype(np.float64) - expected).max())
        return error / magnitude if np.isfinite(error) else float("inf")

    def tolerance(self, work: Workload) -> float:
        """Return the largest `difference` that rounding explains for `work`: 16 eps of the result's type, plus 1e-4."""
        return 16 * dtype(work.types[2]).eps + 1e-4

    def primitive(self, run: Callable[[], Any], repeats: int = 4) -> float | None:
        """Call `run` `repeats` times with oneDNN's verbose mode on, and return the shortest time in seconds that oneDNN
        reports for a convolution or GEMM. Return None if oneDNN reports no time, or if this PyTorch lacks the verbose
        mode.
        """
        try:
            verbose = self.torch.backends.mkldnn.verbose(self.torch.backends.mkldnn.VERBOSE_ON)
        except AttributeError:
            return None
        text = _stdout_of(verbose, run, repeats)
        return shortest_exec(text)


def _supported_calls(calls: Calls) -> Calls:
    """Run each of `calls` ({name: call}) once and return {name: call} of those that run; raise `ArgumentError` if all
    fail.
    """
    supported = {}
    for name, run in calls.items():
        try:
            run()
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
        supported[name] = run
    if not supported:
        raise ArgumentError("this PyTorch has no call with prepacked weights for it")
    return supported


def shortest_exec(text: str) -> float | None:
    """Return the shortest time in seconds of an executed convolution or GEMM in oneDNN's verbose output `text`; None if
    no line of `text` has such a time.

    >>> shortest_exec('''onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,,,,64,0.001
    ... onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512,forward_training,src:f32,,,mb1ic8,0.25
    ... onednn_verbose,v1,primitive,create:cache_hit,cpu,convolution,brgconv:avx512,forward_training,,,,mb1,0.01
    ... ''')
    0.00025
    """
    times = []
    for line in text.splitlines():
        fields = line.split(",")
        if line.startswith("onednn_verbose") and "exec" in fields and not KINDS.isdisjoint(fields):
            try:
                times.append(float(fields[-1]) * 1e-3)
            except ValueError:
                continue
    return min(times, default=None)


def _stdout_of(verbose: Any, run: Callable[[], Any], repeats: int) -> str:
    """Call `run` `repeats` times inside the context manager `verbose` (oneDNN's verbose mode), and return the text that
    the process writes to standard output meanwhile, also from C code.

    File descriptor 1 of the process is redirected to a temporary file for that time.
    """
    libc = ctypes.CDLL(None)
    with tempfile.TemporaryFile() as captured:
        libc.fflush(None)
        saved_descriptor = os.dup(1)
        try:
            os.dup2(captured.fileno(), 1)
            with verbose:
                for _ in range(repeats):
                    run()
            libc.fflush(None)
        finally:
            os.dup2(saved_descriptor, 1)
            os.close(saved_descriptor)
        captured.seek(0)
        return captured.read().decode(errors="replace")
