"""Wave's compile call, options and utility names, so that its programs run with only their imports changed.

Options that place or schedule work have no meaning at the tile level: they are accepted, and a warning names them once
as ignored. The torch utilities need torch, which is imported when one of them is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

import tilewright.wave
from tilewright.algebra.expr import Expr
from tilewright.compiler import Executable, compile
from tilewright.compiler.kernels import EXECUTOR
from tilewright.compiler.symbols import known_names
from tilewright.errors import ArgumentError, IgnoredOptionWarning, MissingPackage, OutOfScope
from tilewright.ir import dtypes
from tilewright.ir.location import warn_author
from tilewright.limits import written
from tilewright.runtime.eager import eager
from tilewright.signatures import checked
from tilewright.targets.names import CPU, is_gpu, is_native
from tilewright.wave.constraints import (
    Constraint,
    GenericDot,
    MMAOperand,
    MMAType,
    ScaledMMAType,
    SymbolicAlias,
)
from tilewright.wave.kernel import Kernel

_USED = ("subs", "dynamic_symbols")
_IGNORED = (
    *("canonicalize", "schedule", "use_scheduling_barriers", "multi_buffer_count", "backend", "device", "target"),
    *("use_water_backend", "linearize_reads", "run_bench", "benchmark_batch_size", "benchmark_repetitions"),
    *("benchmark_results_file", "bench_file", "profile_python_wrapper", "profile_python_cprofile", "kernel_usages"),
    *("compile_to_mlir", "print_ir_after", "print_ir_before", "print_ir_after_all", "print_mlir", "print_mlir_file"),
    *("print_pass_times", "print_trace_begin", "print_grid", "print_signature", "print_schedule", "print_indices"),
    *("dump_intermediates", "dump_binaries", "override_mlir", "postprocess", "denorm_fp_math_f32", "waves_per_eu"),
    *("wave_runtime", "use_buffer_ops", "use_fast_math", "use_global_to_shared", "optimization_level", "inplace"),
    *("minimize_shared_allocs", "reorder_allocs", "override_schedule", "dump_schedule", "use_bound_check"),
    *("specialize", "eliminate_epilogue", "kernel_hash", "func_name", "iree_preprocessing_pass_pipeline"),
    *("num_devices", "mlir_print_ir_after_all", "check_water_analysis", "gpu_native_math_precision", "kernel_sig"),
    *("use_stride_cache", "drop_debug_info_before_mlir", "inline_asm", "iree_launch_async", "create_vmfb_file"),
    *("use_buffer_load_ops", "use_buffer_store_ops", "dynamic_symbols_map", "kernel_launch_info", "codeobj"),
    *("capture_trace", "bench_with_constant_weights", "profile_python_warmup", "profile_python_repetitions"),
    *("use_local_scope", "use_water_leak_check", "use_water_pipeline", "enforce_locations", "profile_pass"),
    *("linearize_shared_access", "scalarize_packed_math", "compile_to_asm", "coalescing_strategy_hint"),
    *("use_multicast", "use_real_wave_barrier", "verify_region_captures", "enable_swizzle", "cluster_barrier_delay"),
    *("enable_mark_hardware_transpose_candidates", "allow_noncontiguous_runtime_buffers"),
    *("dynamic_strides", "use_wave_asm_backend", "use_location", "location_capture_config", "debug_info", "options"),
)


_DEFAULTS: dict[str, Any] = {
    "canonicalize": True,
    "num_devices": 1,
    "backend": "llvm",
    "optimization_level": True,
    "target": CPU,
}
_FAMILIES = ("edit_ir_", "print_mlir_")
"""Prefixes of the names of Wave's options for debugging its passes, which are many and change."""


class WaveCompileOptions:
    """Wave's options: `subs` binds symbols, `dynamic_symbols` are read from shapes; almost all others are ignored."""

    def __init__(self, subs: Mapping[Any, Any] | None = None, **options: Any):
        if subs is not None and not isinstance(subs, Mapping):
            raise ArgumentError(f"WaveCompileOptions: subs={written(subs, 80)} is no dictionary of symbols and values")
        self.subs: dict[Any, Any] = dict(subs or {})
        self.dynamic_symbols: Sequence[Any] = options.pop("dynamic_symbols", ())
        self._set: dict[str, Any] = {}
        for name, value in options.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _USED:
            object.__setattr__(self, name, value)
            return
        if name not in _IGNORED and not name.startswith(_FAMILIES):
            raise ArgumentError(f"WaveCompileOptions has no option {name}")
        self._set[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in _IGNORED or name.startswith(_FAMILIES):
            default = SchedulingType.NONE if name == "schedule" else _DEFAULTS.get(name)
            return self.__dict__.get("_set", {}).get(name, default)
        raise AttributeError(f"WaveCompileOptions has no option {name}")

    @property
    def ignored(self) -> tuple[str, ...]:
        """The sorted names of the options that are set (not None, False, () or []) without effect here, as a tuple."""
        used = {"target"} if _is_ours(self.target) else set()
        return tuple(
            sorted(name for name, v in self._set.items() if v not in (None, False, (), []) and name not in used)
        )


def _is_ours(target: Any) -> bool:
    """True if `target` is a target of `tilewright.compile`, such as "cpu" or "gpu:hopper".

    False for Wave's names of GPUs, such as "gfx942", and for values that are no strings.
    """
    return isinstance(target, str) and (target == EXECUTOR or is_native(target) or is_gpu(target))


_named: set[str] = set()


@eager
def wave_compile(options: WaveCompileOptions, kernel: Kernel, schedule: Any = None) -> Executable:
    """Return `kernel`, a Wave kernel, compiled for `options`. Call the result with arrays or tensors, in the kernel's
    order.

    The order is that of the kernel's parameters. The meaning is Wave's if it differs from that of `tilewright.compile`.
    The operator % on tiles takes the dividend's sign. Reads with a mapping return 0 out of bounds. Arguments may be
    larger than their dimensions say, and i8 and u8 are the same. A violated Assumption only warns. A manual `schedule`
    is ignored with one warning, as are options without effect. Values for symbols that the kernel lacks are skipped.

    `options.target` may be a target of `tilewright.compile`: "cpu" (the default), "gpu", "cuda", one of these with a
    machine ("gpu:hopper"), or "executor", which runs the program in numpy. Wave's names of GPUs ("gfx942") are ignored
    and give the default. Raise ArgumentError for arguments of other types, OutOfScope for the option `compile_to_asm`.
    """
    if not isinstance(options, WaveCompileOptions):
        raise ArgumentError(f"wave_compile: options={written(options, 80)} are no WaveCompileOptions")
    if not isinstance(kernel, Kernel):
        raise ArgumentError(f"wave_compile: kernel={written(kernel, 80)} is no kernel, a function under @tkw.wave()")
    if options.compile_to_asm:
        raise OutOfScope(
            "compile_to_asm: there is no AMD assembly here; text('asm') of a native executable is the CPU's"
        )
    ignored = [*options.ignored]
    if schedule is not None:
        ignored.append(f"the schedule {getattr(schedule, '__name__', type(schedule).__name__)}")
    fresh = [name for name in ignored if name not in _named]
    if fresh:
        _named.update(fresh)
        warn_author(f"ignored, without meaning here: {', '.join(fresh)}", IgnoredOptionWarning)
    dynamic = {getattr(s, "name", s) for s in options.dynamic_symbols}
    named = {getattr(s, "name", s): (s, v) for s, v in options.subs.items() if getattr(s, "name", s) not in dynamic}
    values = {s: v for s, v in named.values() if isinstance(v, Expr)}
    program = kernel.trace(as_wave=True)
    known = known_names(program, program, values)  # Wave accepts values for symbols that the kernel lacks
    subs = {s: v for name, (s, v) in named.items() if name in known}
    return compile(program, subs, target=options.target if _is_ours(options.target) else CPU, lenient=True)


def wave_sim(constraints: Sequence[Constraint] | None = None) -> Callable[[Callable[..., Any]], Executable]:
    """Return a decorator that turns a Python function, a Wave kernel, into a kernel compiled for the CPU.

    The kernel's sizes are those of the arrays of each call. `constraints` are Wave's; those that place or schedule work
    are ignored.
    """

    def decorate(function: Callable[..., Any]) -> Executable:
        """Return the compiled kernel of `function`, a Wave kernel in Python."""
        return wave_compile(WaveCompileOptions(), tilewright.wave.wave(constraints)(function))

    return decorate


def set_default_run_config(options: WaveCompileOptions) -> WaveCompileOptions:
    """Return `options` unchanged: here there is nothing to set for a run."""
    return options


class SchedulingType(Enum):
    """Wave's schedules; accepted and not used."""

    NONE, MODULO, PREFETCH, FOUR_STAGE, MODULO_MULTI_BUFFERED, PREFETCH_ATTENTION, MANUAL = range(7)


def get_default_scheduling_params(*args: Any, **options: Any) -> dict[Any, int]:
    """Return an empty dictionary: Wave's scheduling parameters have no meaning here. All arguments are ignored."""
    return {}


def ceildiv(a: int, b: int) -> int:
    """Return a / b rounded up to an integer: 7, 2 -> 4. Symbolic integers are allowed, too."""
    return -(-a // b)


def clamp(x: int, min_val: int, max_val: int) -> int:
    """Return x limited to the range from `min_val` to `max_val`: 9, 0, 5 -> 5."""
    return max(min_val, min(max_val, x))


_NUMBERS = {
    "int": (lambda x: isinstance(x, int | np.integer | Expr), "an integer"),
    "ceildiv.b": (lambda x: isinstance(x, int | np.integer | Expr) and x != 0, "an integer other than 0"),
}
ceildiv, clamp = checked(ceildiv, _NUMBERS), checked(clamp, _NUMBERS)


def run_test(function: Callable[[], None]) -> Callable[[], None]:
    """Return `function` unchanged. If its module is run as a script (`__main__`), call it once, immediately."""
    if function.__module__ == "__main__":
        function()
    return function


class CoalescingType(Enum):
    """Wave's hints about how reads are coalesced; accepted and not used."""

    LINEAR, WAVE_TILE_ALIGNED = range(2)


def get_default_arch() -> str:
    """Return "cpu", the name of the default machine."""
    return "cpu"


def get_arch_family() -> str:
    """Return "cpu", the family of the default machine."""
    return "cpu"


def enable_scheduling_barriers(options: WaveCompileOptions) -> WaveCompileOptions:
    """Return `options` unchanged: scheduling barriers, an option of Wave, have no meaning here."""
    return options


def dump_generated_mlir() -> bool:
    """Return False. Wave's programs call this to ask whether to print MLIR; there is no MLIR here."""
    return False


def check_individual_kernels() -> bool:
    """Return False. Wave's programs call this to ask whether to check kernels one by one: each is one program."""
    return False


def check_leaks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` unchanged; nothing is checked. It stands for Wave's decorator of the same name."""
    return function


def get_mfma_load_elems_per_thread(mma_type: Any) -> int:
    """Return 4, a vector width for loads, for every `mma_type`. Reads accept a width and do not use it."""
    return 4


def get_mfma_store_elems_per_thread(mma_type: Any) -> int:
    """Return 4, a vector width for stores, for every `mma_type`. Writes accept a width and do not use it."""
    return 4


# -- torch, only when called --------------------------------------------------------------------------


def _torch(what: str) -> Any:
    """Return the module torch. Raise MissingPackage if it is not installed.

    The error's message says that `what`, the name of a function of this module, needs torch.
    """
    import importlib

    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        why = f"tilewright.compat.wave.{what} needs torch, which is not installed: pip install torch"
        raise MissingPackage(why) from None


def torch_dtype_to_wave(dtype: Any) -> dtypes.DType:
    """Return the element type that corresponds to `dtype`, a torch dtype: torch.float16 gives f16.

    Raise ArgumentError if there is none, and MissingPackage if torch is not installed.
    """
    table = _torch_dtypes("torch_dtype_to_wave")
    if dtype not in table:
        raise ArgumentError(f"there is no element type for {dtype}")
    return table[dtype]


def wave_dtype_to_torch(dtype: dtypes.DType) -> Any:
    """Return the torch dtype that corresponds to the element type `dtype`: f16 gives torch.float16.

    Raise ArgumentError if there is none, and MissingPackage if torch is not installed.
    """
    for of_torch, ours in _torch_dtypes("wave_dtype_to_torch").items():
        if ours is dtype:
            return of_torch
    raise ArgumentError(f"torch has no dtype for {dtype}")


def torch_dtype_range(dtype: Any) -> list[float]:
    """Return [smallest, largest] finite number of `dtype`, a torch dtype.

    Raise MissingPackage if torch is not installed.
    """
    torch = _torch("torch_dtype_range")
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return [limits.min, limits.max]


def __getattr__(name: str) -> Any:
    if name == "TORCH_DTYPE_TO_WAVE":  # made on demand, since it needs torch
        return _torch_dtypes(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _torch_dtypes(what: str) -> dict[Any, dtypes.DType]:
    """Return {torch dtype: element type}. Raise MissingPackage if torch is not installed.

    The error's message says that `what`, the name of a function of this module, needs torch.
    """
    torch = _torch(what)
    return {
        torch.bool: dtypes.bool_,
        torch.uint8: dtypes.u8,
        torch.int8: dtypes.i8,
        torch.int16: dtypes.i16,
        torch.int32: dtypes.i32,
        torch.int64: dtypes.i64,
        torch.float16: dtypes.f16,
        torch.bfloat16: dtypes.bf16,
        torch.float32: dtypes.f32,
        torch.float64: dtypes.f64,
        torch.float8_e4m3fn: dtypes.f8e4m3fn,
        torch.float8_e5m2: dtypes.f8e5m2,
        torch.float8_e4m3fnuz: dtypes.f8e4m3fnuz,
        torch.float8_e5m2fnuz: dtypes.f8e5m2fnuz,
    }


def _maker(name: str) -> Callable[..., Any]:
    """Return a function called `device_NAME` for `name`, the name of a torch function that makes a tensor, such as
    "zeros".

    It calls the torch function without the argument `device`, so that the tensor is on the CPU.
    """

    def make(*args: Any, **options: Any) -> Any:
        """Return the tensor that the torch function called `name` returns for these arguments, without `device`."""
        options.pop("device", None)
        return getattr(_torch(f"device_{name}"), name)(*args, **options)

    make.__name__ = f"device_{name}"
    make.__doc__ = f"torch.{name}, on the CPU."
    return make


device_randn, device_zeros, device_ones, device_empty = (_maker(n) for n in ("randn", "zeros", "ones", "empty"))
device_arange, device_randperm, device_full, device_rand = (_maker(n) for n in ("arange", "randperm", "full", "rand"))
device_randint, device_tensor = _maker("randint"), _maker("tensor")
device_zeros_like, device_randn_like = _maker("zeros_like"), _maker("randn_like")


def quantized_tensor(shape: Sequence[int], dtype: Any, scale: float) -> Any:
    """Return a torch tensor of shape `shape` and torch dtype `dtype` with random whole numbers.

    They are normally distributed numbers times `scale`, limited to the range from -scale to scale, and rounded up.
    Raise MissingPackage if torch is not installed.
    """
    torch = _torch("quantized_tensor")
    return (torch.randn(shape, dtype=dtype) * scale).clamp(-scale, scale).ceil()


def to_default_device(tensor: Any) -> Any:
    """Return `tensor` unchanged: the default device is the CPU."""
    return tensor


def get_default_device() -> str:
    """Return "cpu", the name of the default device for torch tensors."""
    return "cpu"


__all__ = [
    "CoalescingType",
    "GenericDot",
    "MMAOperand",
    "MMAType",
    "ScaledMMAType",
    "SchedulingType",
    "SymbolicAlias",
    "WaveCompileOptions",
    "ceildiv",
    "check_individual_kernels",
    "check_leaks",
    "clamp",
    "dump_generated_mlir",
    "enable_scheduling_barriers",
    "get_default_scheduling_params",
    "quantized_tensor",
    "run_test",
    "set_default_run_config",
    "torch_dtype_range",
    "torch_dtype_to_wave",
    "wave_compile",
    "wave_dtype_to_torch",
    "wave_sim",
]
__all__ += [name for name in globals() if name.startswith(("device_", "get_", "to_")) and name not in __all__]

# Wave's kernels also reach these names as tkw.utils.general_utils.ceildiv and the like
_here = sys.modules[__name__]
tilewright.wave.utils = SimpleNamespace(general_utils=_here, run_utils=_here, torch_utils=_here, mma_utils=_here)
