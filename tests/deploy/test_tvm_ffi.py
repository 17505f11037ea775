"""The function that TVM-FFI calls, called as TVM-FFI does, with structures of its interface that are declared here.

TVM-FFI is not needed: a library of our own stands in for the function that sets its error.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from exported_kernels import CASES, SEVERAL, arrays_for, compiled, run_compiled

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.deploy.threads import PoolStruct
from tilewright.errors import ArgumentError
from tilewright.kernels import gather_rows, gemm
from tilewright.targets.cpu.exported import object_options
from tilewright.targets.cpu.load import object_of
from tilewright.targets.cpu.objects import read_object, shared_library
from tilewright.targets.registry import machine

NONE, INT, BOOL, FLOAT, OPAQUE, TENSOR_POINTER, TEXT, TENSOR = 0, 1, 2, 3, 4, 7, 8, 70
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class TensorObject(ctypes.Structure):
    _fields_ = (
        ("counts", ctypes.c_uint64),
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("deleter", ctypes.c_void_p),
        ("tensor", DLTensor),
    )


class Value(ctypes.Union):
    _fields_ = (("v_int64", ctypes.c_int64), ("v_float64", ctypes.c_double), ("v_ptr", ctypes.c_void_p))


class Any(ctypes.Structure):
    _anonymous_ = ("value",)
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", Value))


def described(array: np.ndarray, *, packed: bool = False) -> DLTensor:
    """An array as a DLTensor; `packed`: without strides."""
    kind = "bfloat" if array.dtype == ml_dtypes.bfloat16 else array.dtype.name.rstrip("0123456789")
    extents = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(n // array.itemsize for n in array.strides))
    given = None if packed else ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    bits = 8 * array.itemsize
    return DLTensor(array.ctypes.data, 1, 0, array.ndim, CODES[kind], bits, 1, shape, given, 0)


def value_of(argument) -> Any:
    """An argument as TVM-FFI passes it; it holds the DLTensor as long as it lives."""
    found = Any()
    if argument is None:
        found.type_index = NONE
    elif isinstance(argument, bool | int):
        found.type_index, found.v_int64 = (BOOL if isinstance(argument, bool) else INT), int(argument)
    elif isinstance(argument, float):
        found.type_index, found.v_float64 = FLOAT, argument
    elif isinstance(argument, PoolStruct):
        found.type_index, found.v_ptr = OPAQUE, ctypes.addressof(argument)
    elif isinstance(argument, TensorObject):
        found.type_index, found.v_ptr = TENSOR, ctypes.addressof(argument)
    else:
        tensor = argument if isinstance(argument, DLTensor) else described(argument)
        found.type_index, found.v_ptr = TENSOR_POINTER, ctypes.addressof(tensor)
        found.kept = tensor
    return found


class Refused(Exception):
    """TVM-FFI's error: its kind and its message."""


STAND_IN = """@hook = internal global ptr null
define void @set_hook(ptr %hook) { store ptr %hook, ptr @hook ret void }
define void @TVMFFIErrorSetRaisedFromCStrParts(ptr %kind, ptr %parts, i32 %count) {
  %hook = load ptr, ptr @hook
  call void %hook(ptr %kind, ptr %parts, i32 %count)
  ret void
}
"""
_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32)
raised: list[tuple[str, str]] = []


@_HOOK
def hook(kind, parts, count):
    raised.append((kind.decode(), b"".join(parts[n] or b"" for n in range(count)).decode()))


@pytest.fixture(scope="session", autouse=True)
def error_function(tmp_path_factory):
    """TVM-FFI's function that sets an error, where the system's loader finds it."""
    path = tmp_path_factory.mktemp("tvm") / "stand_in.so"
    path.write_bytes(shared_library(object_of(STAND_IN), path.name))
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.set_hook(hook)
    return library


class Function:
    """An exported kernel as TVM-FFI calls it."""

    def __init__(self, kernel, path, *given, **options):
        self.files = tilewright.export(kernel, path.with_suffix(".so"), *given, tvm_ffi=True, **options)
        library = ctypes.CDLL(str(self.files.code))
        self.function = library[self.files.manifest["tvm_ffi"]]
        self.function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        self.function.restype = ctypes.c_int32

    def __call__(self, *arguments) -> None:
        values = [value_of(a) for a in arguments]
        result = Any(NONE)
        raised.clear()
        code = self.function(None, (Any * len(values))(*values), len(values), ctypes.byref(result))
        assert (code, result.type_index) == (-1 if raised else 0, NONE)
        if raised:
            raise Refused(": ".join(*raised))


@pytest.mark.parametrize("name", ["gemm_bf16", "gemm_i8", "gemm_packed", "gemm_open", "conv_packed", "gather", "both"])
def test_tvm_ffi_gets_the_bits_of_the_compiled_kernel(name, tmp_path):
    kernel = compiled(name)
    function = Function(kernel, tmp_path / name, name=name)
    given = arrays_for(function.files.manifest, np.random.default_rng(7), SEVERAL.get(name))
    wanted = [a.copy() for a in given]
    run_compiled(kernel, wanted, SEVERAL.get(name))
    function(*given)
    for mine, theirs in zip(given, wanted, strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_tensors_are_objects_or_pointers_with_offsets_and_with_or_without_strides(tmp_path):
    function = Function(gemm("nn", "f32"), tmp_path / "gemm", {"M": 3, "N": 5, "K": 2})
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (3, 2)).astype(np.float32), rng.integers(-4, 5, (2, 5)).astype(np.float32)
    c = np.zeros((4, 5), np.float32)
    third = described(c, packed=True)
    third.shape[0], third.byte_offset = 3, 20
    function(TensorObject(1, TENSOR, 0, None, described(a)), b, third)
    assert (c[1:] == a @ b).all()
    assert (c[0] == 0).all()


def test_a_pool_may_follow_the_arguments(tmp_path):
    function = Function(compiled("both"), tmp_path / "both", name="both")
    launches = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    def run(context, task, argument, workers):
        launches.append(workers)
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(task)
        for worker in range(workers):
            call(argument, worker)

    x, w, y = np.ones((7, 12), np.float32), np.arange(12, dtype=np.float32), np.zeros((7, 12), np.float32)
    function(x, w, y, PoolStruct(None, ctypes.cast(run, ctypes.c_void_p), 4))
    assert launches == [3, 2]
    assert (y == 2 * w + 1).all()
    function(x, w + 1, y, None)
    assert launches == [3, 2]
    assert (y == 2 * w + 3).all()
    with pytest.raises(Refused, match=r"^ValueError: both: the pool has no function `run`"):
        function(x, w, y, PoolStruct(None, None, 4))


def test_numbers_are_converted_or_refused_by_name(tmp_path):
    M, N = tkl.sym.M, tkl.sym.N

    @tkw.wave()
    def scaled(
        x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
        factor: tkl.f32,
        more: tkl.i8,
        y: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        tkw.write(tkw.read(x) * factor + tkw.cast(more, tkl.f32), y)

    function = Function(scaled, tmp_path / "scaled", {"M": 2, "N": 3})
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    for factor, more in ((2, 5), (0.5, True), (np.array(3, np.float32), np.array(-7, np.int8))):
        function(x, factor, more, y)
        assert (y == x * np.float32(factor) + np.float32(more)).all()
    with pytest.raises(Refused, match=r"^ValueError: scaled: argument more is 300; i8 holds -128 to 127$"):
        function(x, 1, 300, y)
    with pytest.raises(
        Refused, match=r"^TypeError: scaled: argument more has TVM-FFI's type 3; it must be a number of"
    ):
        function(x, 1, 0.5, y)
    with pytest.raises(Refused, match=r"^TypeError: scaled: argument factor holds f64; it must hold f32$"):
        function(x, np.array(3.0), 1, y)


def on_a_gpu(array):
    found = described(array)
    found.device_type = 2
    return found


def overlapping(a, b, c):
    whole = np.zeros(100, np.float32)
    return whole[:12].reshape(4, 3), b, whole[5:25].reshape(4, 5)


WRONG = {
    "count": (
        lambda a, b, c: (a, b),
        "TypeError: gemm: 3 arguments are needed (a, b, c), and a pool may follow; given: 2",
    ),
    "no tensor": (
        lambda a, b, c: (a, 2.0, c),
        "TypeError: gemm: argument b has TVM-FFI's type 3; it must be a tensor of f32",
    ),
    "device": (
        lambda a, b, c: (on_a_gpu(a), b, c),
        "ValueError: gemm: argument a lies on a device of DLPack's kind 2; this kernel is for the CPU (1): copy it "
        "there",
    ),
    "dtype": (
        lambda a, b, c: (a, b.astype(ml_dtypes.bfloat16), c),
        "TypeError: gemm: argument b holds bf16; it must hold f32",
    ),
    "unknown dtype": (
        lambda a, b, c: (a, b.astype(np.uint16), c),
        "TypeError: gemm: argument b holds elements that it does not know; it must hold f32",
    ),
    "rank": (lambda a, b, c: (a[None], b, c), "ValueError: gemm: argument a has 3 dimensions; it must have 2"),
    "extent": (
        lambda a, b, c: (a, b[:2].copy(), c),
        "ValueError: gemm: argument b: its dimension 0 is 2; it must be 3",
    ),
    "open extent": (
        lambda a, b, c: (a, b, c[:3].copy()),
        "ValueError: gemm: argument c: its dimension 0 is 3; it must be M",
    ),
    "size": (
        lambda a, b, c: (a[:0], b, c[:0]),
        "ValueError: gemm: the size M must be from 1 to 1048575; argument a says 0",
    ),
    "strides": (
        lambda a, b, c: (a, np.ones((5, 3), np.float32).T, c),
        "ValueError: gemm: argument b: the stride of its dimension 0 is 1; it must be packed, the last dimension "
        "contiguous",
    ),
    "negative stride": (
        lambda a, b, c: (a[::-1], b, c),
        "ValueError: gemm: argument a: the stride of its dimension 0 is -3; it must be packed, the last dimension "
        "contiguous",
    ),
    "aliasing output": (overlapping, "ValueError: gemm: the buffer c, which is written, overlaps another"),
    "pool": (
        lambda a, b, c: (a, b, c, 4),
        "TypeError: gemm: what follows the arguments has TVM-FFI's type 1; it must be a pool, an opaque pointer (4) to "
        "a tw_pool",
    ),
}


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    sizes = {"M": 4, "N": 5, "K": 3}
    return Function(gemm("nn", "f32"), tmp_path_factory.mktemp("gemm") / "gemm", sizes, dynamic=["M"])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named_by_tvm_ffis_error(name, product):
    spoil, says = WRONG[name]
    arrays = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32), np.full((4, 5), 7, np.float32)
    with pytest.raises(Refused) as fault:
        product(*spoil(*arrays))
    assert str(fault.value) == says
    assert (arrays[2] == 7).all()
    product(*arrays)
    assert (arrays[2] == 3).all()


def test_what_a_check_finds_is_a_runtime_error(tmp_path):
    function = Function(gather_rows("f32"), tmp_path / "gather", {"ROWS": 4, "N": 3, "M": 3})
    table, rows = np.ones((4, 3), np.float32), np.array([1, 3, 9], np.int32)
    with pytest.raises(Refused, match=r"^RuntimeError: gather_rows: "):
        function(table, rows, np.zeros((3, 3), np.float32))


WITHOUT = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(library.__tvm_ffi_gemm(None, None, 0, None))
"""


def test_without_tvm_ffi_in_the_process_the_function_returns_its_code_alone(product):
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(product.files.code)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("-1\n", 0)


@pytest.mark.parametrize("target", ["x86.avx2", "x86.amx", "aarch64.neon"])
def test_the_function_needs_no_library_on_other_machines_either(target, tmp_path):
    kernel, sizes, options = CASES["gemm_open"]
    files = tilewright.export(kernel, tmp_path / "gemm", sizes, target=f"cpu:{target}", tvm_ffi=True, **options)
    given = read_object(files.code.read_bytes())
    assert given.undefined == ()
    optional = {s.name for s in given.symbols if s.is_weak}
    assert optional == {"TVMFFIErrorSetRaisedFromCStrParts", "malloc", "free"}
    assert "__tvm_ffi_gemm" in {s.name for s in given.symbols if s.is_global}
    assert shared_library(files.code.read_bytes(), "x.so")[:4] == b"\x7fELF"
    assert object_options(machine(target)).triple.startswith(("x86_64", "aarch64"))


def test_what_tvm_ffi_cannot_pass_is_refused_by_name(tmp_path):
    text = """block summed(%x: in global f32 (M), %y: out global f32 (M))
      param M in 1..100, T in 1..9
    {
      tasks m in 0..M {
        %a = view %x (j 1) -> [m]
        %to = view %y (j 1) -> [m]
        map %to = %a + 1
      }
    }"""
    with pytest.raises(ArgumentError, match="tvm_ffi=True: no shape of summed tells the size T"):
        tilewright.export(text, tmp_path / "summed", tvm_ffi=True)
    sizes = {"M": 256, "N": 256, "K": 64}
    with pytest.raises(ArgumentError, match="tvm_ffi=True: gemm is for a GPU"):
        tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", sizes, target="gpu:hopper", tvm_ffi=True)
    with pytest.raises(ArgumentError, match="tvm_ffi='yes': True or False"):
        tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", {"M": 2, "N": 2, "K": 2}, tvm_ffi="yes")
