"""oneDNN by way of PyTorch: its calls with prepacked weights, and what oneDNN itself says a call took."""

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
Forms = dict[str, Callable[[], Any]]
KINDS = {"convolution", "matmul", "inner_product"}
FLOATS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def check_padding(p: ConvProblem) -> None:
    """Raises where PyTorch's convolution, which pads both sides alike, would not have the problem's results."""
    alike = tuple(
        (i + 2 * pad - (k - 1) * far - 1) // s + 1
        for i, pad, k, far, s in zip(p.i, p.p, p.k, p.dilation, p.s, strict=True)
    )
    if alike != p.o or min(p.p) < 0:
        raise ArgumentError("PyTorch pads both sides alike; this problem does not")


class Library:
    """PyTorch, with as many threads as Tilewright has workers."""

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

    def forms(self, work: Workload, arrays: Arrays) -> Forms:
        """PyTorch's calls of a convolution with prepacked weights, by name; those that this version has."""
        p = work.problem
        if len(set(work.types)) != 1 or work.types[0] not in FLOATS:
            raise ArgumentError(f"{':'.join(work.types)}: one of {', '.join(FLOATS)} is measured")
        if isinstance(p, MatmulProblem):
            return self._products(p, arrays, getattr(self.torch, FLOATS[work.types[0]]))
        if p.rank != 2:
            raise ArgumentError("only convolutions over two axes are measured, and matrix products")
        check_padding(p)
        form = getattr(self.torch, FLOATS[work.types[0]])
        image, filters = (self._tensor(arrays[name], form).permute(0, 3, 1, 2) for name in ("x", "w"))
        shape = [list(p.p), list(p.s), list(p.dilation), p.groups]
        low = form is not self.torch.float32
        try:
            held = filters.float().to_mkldnn(form) if low else filters.to_mkldnn()
            packed = self.torch._C._nn.mkldnn_reorder_conv2d_weight(held, *shape, list(image.shape))
            call = self.torch.ops.mkldnn._convolution_pointwise
            first = image.contiguous()
            blocked = image.float().to_mkldnn(form) if low else image.to_mkldnn()
        except (RuntimeError, NotImplementedError, AttributeError) as fault:
            raise ArgumentError(f"PyTorch refuses it on this CPU: {str(fault).splitlines()[0]}") from None
        made: Forms = {
            "channels last": lambda: call(image, packed, None, *shape, "none", [], ""),
            "channels first": lambda: call(first, packed, None, *shape, "none", [], ""),
            "blocked": lambda: self.torch.mkldnn_convolution(blocked, packed, None, *shape),
        }
        return _working(made)

    def _products(self, p: MatmulProblem, arrays: Arrays, form: Any) -> Forms:
        """PyTorch's calls of a matrix product: plain, and with a packed second factor."""
        if len(p.src) != 2 or len(p.wei) != 2:
            raise ArgumentError("of matrix products, single ones are measured")
        a, b = (self._tensor(arrays[name], form) for name in ("a", "b"))
        turned = b.t().contiguous()
        made: Forms = {"mm": lambda: self.torch.mm(a, b)}
        try:
            packed = self.torch.ops.mkldnn._reorder_linear_weight(turned.to_mkldnn(), p.m)
            call = self.torch.ops.mkldnn._linear_pointwise
            made["packed linear"] = lambda: call(a, packed, None, "none", [], "")
        except (RuntimeError, NotImplementedError, AttributeError):
            pass
        return _working(made)

    def _tensor(self, array: Array, form: Any) -> Any:
        return self.torch.from_numpy(array.astype(np.float32)).to(form)

    def difference(self, out: Array, forms: Forms) -> float:
        """The largest difference between our result and theirs, as a share of the results' usual size."""
        result = next(iter(forms.values()))()
        theirs = result.to_dense().float() if result.is_mkldnn else result.float()
        wanted = (theirs.permute(0, 2, 3, 1) if theirs.dim() == 4 else theirs).numpy().astype(np.float64)
        size = max(float(np.sqrt((wanted**2).mean())), 1e-30)
        error = float(np.abs(out.astype(np.float64) - wanted).max())
        return error / size if np.isfinite(error) else float("inf")

    def tolerance(self, work: Workload) -> float:
        """The difference that rounding explains: a few units of the result, and more for long sums."""
        return 16 * dtype(work.types[2]).eps + 1e-4

    def primitive(self, run: Callable[[], Any], repeats: int = 4) -> float | None:
        """The shortest time in seconds that oneDNN itself says its convolution took; None if it says nothing."""
        try:
            verbose = self.torch.backends.mkldnn.verbose(self.torch.backends.mkldnn.VERBOSE_ON)
        except AttributeError:
            return None
        text = _printed(verbose, run, repeats)
        return shortest_exec(text)


def _working(made: Forms) -> Forms:
    """Those calls that this version of PyTorch has."""
    found = {}
    for name, run in made.items():
        try:
            run()
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
        found[name] = run
    if not found:
        raise ArgumentError("this PyTorch has no call with prepacked weights for it")
    return found


def shortest_exec(text: str) -> float | None:
    """The shortest time, in seconds, of the convolutions and products that oneDNN reports.

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


def _printed(verbose: Any, run: Callable[[], Any], repeats: int) -> str:
    """What the C library prints meanwhile: its standard output goes to a file."""
    libc = ctypes.CDLL(None)
    with tempfile.TemporaryFile() as kept:
        libc.fflush(None)
        old = os.dup(1)
        try:
            os.dup2(kept.fileno(), 1)
            with verbose:
                for _ in range(repeats):
                    run()
            libc.fflush(None)
        finally:
            os.dup2(old, 1)
            os.close(old)
        kept.seek(0)
        return kept.read().decode(errors="replace")
