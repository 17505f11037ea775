"""`load`: an exported kernel, to be called on arrays as a compiled one is; the compiler is not needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tilewright.algebra.expr import as_expr
from tilewright.codegen.entry.abi import KIND_BITS, ErrorKind
from tilewright.deploy.library import KernelLibrary, Lent
from tilewright.deploy.manifest import read_manifest
from tilewright.deploy.threads import thread_pool
from tilewright.errors import ArgumentError, ExecutionError, ManifestError, ParseError, ProgramError
from tilewright.ir.core import Program, Value
from tilewright.ir.tile import parse_tile
from tilewright.limits import WORKERS, written
from tilewright.runtime import environment
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.calls import arranged, signature_of
from tilewright.runtime.device_arrays import is_same_array
from tilewright.runtime.eager import eager
from tilewright.runtime.tensors import count_writes

Array = np.ndarray[Any, np.dtype[Any]]


class LoadedArguments(Arguments):
    """The arguments of a call of a loaded kernel: checked as those of a compiled one; nothing is done in place."""

    def _why_apart(self, output: Value, other: Value) -> str | None:
        if not is_same_array(self.values[output], self.values[other]):
            return super()._why_apart(output, other)
        return "an exported kernel does nothing in place"


class LoadedKernel:
    """An exported kernel: call it with arrays. Outputs that are left out are made and returned.

    Arguments are checked as those of the compiled kernel are. Threads may call it at the same time; they take turns.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], workers: int):
        self.manifest, self.workers = manifest, workers
        self._library = KernelLibrary(path, manifest)
        self._program = _signature(path, manifest)
        known = {a.name: a for a in self._program.args}
        self._outputs = tuple(known[name] for name in manifest["outputs"])
        self._roles = {argument["name"]: argument["role"] for argument in manifest["arguments"]}
        self._optional: list[str] = manifest["optional"]
        types = {a.name or "": str(a.type).removeprefix("global ") for a in self._program.args}
        self.__signature__ = signature_of(types, self._optional, ["params"])
        self._lock = Lock()
        self._last: tuple[bytes, Array, Array] | None = None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.manifest["name"])

    @eager
    def __call__(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Any:
        """Runs the kernel; `params` gives sizes that no shape of the arguments tells. `out=` is returned."""
        bound = self._checked(args, params, named)
        if not bound.is_empty:
            with self._lock:
                _Launch(self, bound, self._sizes(bound, params))()
        count_writes(a for v, a in zip(self._program.args, bound.given, strict=True) if v in self._outputs)
        made = bound.finish()
        return named.get("out") if made is None else made

    @eager
    def bind(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Callable[[], None]:
        """The kernel bound to all its arguments: what is done once is done now; a call of the result runs it."""
        bound = self._checked(args, params, named)
        if bound.made:
            raise ArgumentError(f"{self.name}: bind takes all arguments, outputs too")
        return (lambda: None) if bound.is_empty else _Launch(self, bound, self._sizes(bound, params), apart=True)

    def _checked(self, args: tuple[Any, ...], params: Mapping[str, int] | None, named: Mapping[str, Any]) -> Arguments:
        names = [a.name or "" for a in self._program.args]
        if named or len(self._optional) != len(self._outputs):
            args = arranged(self.name, names, self._optional, args, named)
        known = {s: as_expr(e) for s, e in self._program.bindings.items()}
        known |= {s: as_expr(n) for s, n in self._given(params).items()}
        bound = LoadedArguments(self._program, self._outputs, known, args, bool(self.manifest["lenient"]))
        for value, argument in zip(self._program.args, self.manifest["arguments"], strict=True):
            shape, found = argument["shape"], np.shape(bound.values[value])
            if all(isinstance(n, int) for n in shape) and found != tuple(shape):
                raise ArgumentError(
                    f"{self.name}: argument {value.name} has shape {found}; it was exported for {tuple(shape)}"
                )
        return bound

    def _given(self, params: Mapping[str, int] | None) -> dict[Any, int]:
        """The sizes that `params` gives, by their symbols."""
        if params is not None and not isinstance(params, Mapping):
            raise ArgumentError(f"params={written(params, 60)}: a dictionary of sizes, {{'M': 64}}")
        symbols = {s.name: s for a in self._program.args for d in getattr(a.type, "dims", ()) for s in d.symbols}
        rows = {row["name"]: row for row in self.manifest["sizes"]}
        found = {}
        for name, number in (params or {}).items():
            if name not in rows:
                raise ArgumentError(f"params: {self.name} has no open size {name}; it has {', '.join(rows) or 'none'}")
            row = rows[name]
            if type(number) is not int or number not in range(row["least"], row["most"] + 1, row["step"]):
                raise ArgumentError(f"params: {name} = {written(number)}; {self.name} takes {row['least']} to {row['most']}")
            if row["symbol"] in symbols:
                found[symbols[row["symbol"]]] = number
        return found

    def _sizes(self, bound: Arguments, params: Mapping[str, int] | None) -> Array:
        """The sizes of a call, in the order of the C interface."""
        told = {s.name: n for s, n in bound.symbols.items()}
        found = []
        for row in self.manifest["sizes"]:
            number = (params or {}).get(row["name"], told.get(row["symbol"]))
            if number is None:
                raise ArgumentError(f"{self.name} needs a value for {row['name']}, which no shape tells: give params=")
            found.append(number)
        return np.array(found, np.int64)

    def memory(self, sizes: Array) -> tuple[Array, Array]:
        """What is lent to a call of these sizes: what it keeps, and its workspace; the last one's are used again."""
        key = sizes.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, self._library.kept(sizes), self._library.workspace(sizes, self.workers)
        return self._last[1:]

    @property
    def library(self) -> KernelLibrary:
        """The loaded functions."""
        return self._library

    @property
    def arguments(self) -> Sequence[Value]:
        """The arguments that calls are checked against."""
        return self._program.args

    def is_written(self, name: str) -> bool:
        """Whether an argument is written."""
        return self._roles[name] != "in"

    def refuse(self, code: int) -> None:
        """Raises what a code stands for."""
        if code == 0:
            return
        says = self.manifest["errors"].get(str(code), f"its code returned {code}")
        kind = code & (1 << KIND_BITS) - 1
        if kind == ErrorKind.CHECK:
            raise ExecutionError(says)
        raise ArgumentError(f"{self.name}: {says}")

    def __repr__(self) -> str:
        given = ", ".join(f"{a.name}: {str(a.type).removeprefix('global ')}" for a in self._program.args)
        return f"<loaded kernel {self.name}({given}) for {self.manifest['machine']['name']}>"


class _Launch:
    """A loaded kernel bound to arguments; with `apart` it has memory of its own, and threads take turns."""

    def __init__(self, kernel: LoadedKernel, bound: Arguments, sizes: Array, *, apart: bool = False):
        self.kernel, self._sizes, self._lock = kernel, sizes, Lock() if apart else None
        self._arrays, self._copies = [], []
        for value in kernel.arguments:
            array = np.asarray(bound.values[value]).astype(value.type.dtype.numpy, copy=False)
            placed = array if array.flags.c_contiguous and array.flags.aligned else array.copy()
            if placed is not array:
                self._copies.append((array, placed, kernel.is_written(value.name or "")))
            self._arrays.append(placed)
        self._buffers = np.array([a.ctypes.data for a in self._arrays], np.uint64)
        library = kernel.library
        if apart:
            self._kept, self._workspace = library.kept(sizes), library.workspace(sizes, kernel.workers)
        else:
            self._kept, self._workspace = kernel.memory(sizes)
        memory = (self._buffers, sizes, self._kept, self._workspace)
        self._lent: Lent = (*(a.ctypes.data for a in memory), thread_pool(kernel.workers))  # type: ignore[assignment]
        if library.binds:
            kernel.refuse(library.bind(self._lent))

    def __call__(self) -> None:
        """Runs the kernel on what its arguments hold now."""
        if self._lock is None:
            self._run()
            return
        with self._lock:
            for array, placed, _ in self._copies:
                placed[...] = array
            self._run()

    def _run(self) -> None:
        self.kernel.refuse(self.kernel.library.call(self._lent))
        for array, placed, is_written in self._copies:
            if is_written:
                array[...] = placed


def load(path: str | os.PathLike[str], *, workers: int | None = None) -> LoadedKernel:
    """An exported kernel, ready to be called on arrays; neither the compiler nor LLVM is loaded.

    `path` is its code, its manifest, or both without the suffix. `workers` is how many threads a call may use: one for
    each core unless it is given. A CPU without a feature that the code needs is refused (`TargetError`), and so are
    files that are missing, cut off, changed, or of another version (`ManifestError`).
    """
    if workers is not None and (type(workers) is not int or not 1 <= workers <= WORKERS.most):
        raise ArgumentError(f"workers={written(workers)}: an integer of at least 1; {WORKERS.rule}")
    place = Path(path)
    manifest = read_manifest(place)
    if manifest["kind"] not in ("object", "shared"):
        raise ManifestError(f"{place}: {manifest['kind']!r} is no kind of code that is loaded here")
    return LoadedKernel(place, manifest, environment.threads() if workers is None else workers)


def _signature(path: Path, manifest: Mapping[str, Any]) -> Program:
    try:
        return parse_tile(manifest["signature"])
    except (ParseError, ProgramError) as fault:
        raise ManifestError(f"{path}: its signature cannot be read: {fault}") from None
