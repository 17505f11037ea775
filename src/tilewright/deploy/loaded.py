"""The base class of loaded kernels for CPUs and GPUs: calls, and checks of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tilewright.algebra.expr import Symbol, as_expr
from tilewright.errors import ArgumentError, ManifestError, ParseError, ProgramError
from tilewright.ir.core import Program, Value
from tilewright.ir.tile import parse_tile
from tilewright.limits import written
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.calls import arranged, signature_of
from tilewright.runtime.device_arrays import is_same_array
from tilewright.runtime.eager import eager
from tilewright.runtime.tensors import count_writes

Call = Callable[[], None]


class LoadedArguments(Arguments):
    """The checked arguments of a call of a loaded kernel. Unlike other calls, an input must not be the same array as an
    output.
    """

    def _why_not_shared(self, output: Value, other: Value) -> str | None:
        """Return the error text that says why `output` must not share memory with the argument `other`. It is never
        None.

        Even if both are the same array, there is a reason: an exported kernel does nothing in place.
        """
        if not is_same_array(self.values[output], self.values[other]):
            return super()._why_not_shared(output, other)
        return "an exported kernel does nothing in place"


class LoadedKernel(ABC):
    """An exported kernel that is called with arrays; outputs that are left out are allocated and returned.

    Arguments are checked like those of the compiled kernel. Several threads may call it; a lock serialises them.
    """

    near: Callable[[Sequence[Any]], Any] | None = None
    """Returns the memory of the device that arrays are on; None: the host's."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]):
        self.manifest = manifest
        self._program = _signature(path, manifest)
        known = {a.name: a for a in self._program.args}
        self._outputs = tuple(known[name] for name in manifest["outputs"])
        self._optional: list[str] = manifest["optional"]
        types = {a.name or "": str(a.type).removeprefix("global ") for a in self._program.args}
        self.__signature__ = signature_of(types, self._optional, ["params"])
        self._lock = Lock()

    @property
    def name(self) -> str:
        """Return the kernel's name."""
        return str(self.manifest["name"])

    @property
    def arguments(self) -> Sequence[Value]:
        """Return the arguments of the tile program against which calls are checked."""
        return self._program.args

    @abstractmethod
    def launch(self, bound: Arguments, sizes: Mapping[str, int], *, passing: bool) -> Call:
        """Return a function that runs the kernel on `bound`, a call's checked arguments. Subclasses implement this.

        `sizes` is {name: value} of the open sizes (known only at the call). With `passing`, the caller promises to call
        the function once, right away, while no other thread is in this kernel.
        """

    @eager
    def __call__(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Any:
        """Run the kernel and return the outputs that were left out: one array, a tuple of several, or None. With
        `out=`, return that.

        `params` is {name: value} of sizes that no shape of the arguments determines. Raise ArgumentError if the
        arguments do not fit.
        """
        bound = self._checked(args, params, named)
        if not bound.is_empty:
            with self._lock:
                self.launch(bound, self._sizes(bound, params), passing=True)()
        count_writes(a for v, a in zip(self._program.args, bound.given, strict=True) if v in self._outputs)
        results = bound.finish()
        return named.get("out") if results is None else results

    @eager
    def bind(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Call:
        """Return a function without parameters that runs the kernel on these arguments, with the contents that arrays
        have at each call.

        `args` and `named` have all arguments, by position and by name, outputs too. Work on constant arguments (the C
        function `NAME_bind`) is done now. `params` is {name: value} of sizes that no shape of the arguments determines.
        Raise ArgumentError if an output is left out, or if the arguments do not fit.
        """
        bound = self._checked(args, params, named)
        if bound.allocated:
            raise ArgumentError(f"{self.name}: bind takes all arguments, outputs too")
        return (lambda: None) if bound.is_empty else self.launch(bound, self._sizes(bound, params), passing=False)

    # -- arguments ----------------------------------------------------------------------------------------

    def _checked(self, args: tuple[Any, ...], params: Mapping[str, int] | None, named: Mapping[str, Any]) -> Arguments:
        """Return the checked arguments of a call, with new arrays for outputs that are left out.

        `args` are the arguments by position, `named` those by name. `params` is {name: value} of open sizes that no
        shape determines. Raise ArgumentError if they do not fit the exported kernel.
        """
        names = [a.name or "" for a in self._program.args]
        if named or len(self._optional) != len(self._outputs):
            args = arranged(self.name, names, self._optional, args, named)
        known = {s: as_expr(e) for s, e in self._program.bindings.items() if isinstance(s, Symbol)}
        known |= {s: as_expr(n) for s, n in self._given(params).items()}
        lenient = bool(self.manifest["lenient"])
        bound = LoadedArguments(self._program, self._outputs, known, args, lenient, self.near)
        for value, argument in zip(self._program.args, self.manifest["arguments"], strict=True):
            array = bound.values[value]
            shape, actual = argument["shape"], tuple(getattr(array, "shape", np.shape(array)))
            if all(isinstance(n, int) for n in shape) and actual != tuple(shape):
                raise ArgumentError(
                    f"{self.name}: argument {value.name} has shape {actual}; it was exported for {tuple(shape)}"
                )
        return bound

    def _given(self, params: Mapping[str, int] | None) -> dict[Any, int]:
        """Return {symbol: value} for `params`, {name of an open size: value}; `params` None gives {}.

        A size that no argument's type mentions is left out. Raise ArgumentError for unknown names, and for values that
        the kernel does not take.
        """
        if params is not None and not isinstance(params, Mapping):
            raise ArgumentError(f"params={written(params, 60)}: a dictionary of sizes, {{'M': 64}}")
        symbols = {s.name: s for a in self._program.args for d in getattr(a.type, "dims", ()) for s in d.symbols}
        rows = {row["name"]: row for row in self.manifest["sizes"]}
        values = {}
        for name, number in (params or {}).items():
            if name not in rows:
                raise ArgumentError(f"params: {self.name} has no open size {name}; it has {', '.join(rows) or 'none'}")
            row = rows[name]
            if type(number) is not int or number not in range(row["least"], row["most"] + 1, row["step"]):
                takes = f"{self.name} takes {row['least']} to {row['most']}"
                raise ArgumentError(f"params: {name} = {written(number)}; {takes}")
            if row["symbol"] in symbols:
                values[symbols[row["symbol"]]] = number
        return values

    def _sizes(self, bound: Arguments, params: Mapping[str, int] | None) -> dict[str, int]:
        """Return {name: value} of the open sizes (known only at the call), in the order of the manifest.

        A value comes from `params`, {name: value}, or from `bound`, the call's checked arguments. Raise ArgumentError
        for a size without a value.
        """
        by_symbol = {s.name: n for s, n in bound.symbols.items()}
        values = {}
        for row in self.manifest["sizes"]:
            number = (params or {}).get(row["name"], by_symbol.get(row["symbol"]))
            if number is None:
                raise ArgumentError(f"{self.name} needs a value for {row['name']}, which no shape tells: give params=")
            values[row["name"]] = int(number)
        return values

    def __repr__(self) -> str:
        given = ", ".join(f"{a.name}: {str(a.type).removeprefix('global ')}" for a in self._program.args)
        return f"<loaded kernel {self.name}({given}) for {self.manifest['machine']['name']}>"


def _signature(path: Path, manifest: Mapping[str, Any]) -> Program:
    """Return the tile program, without operations, against which calls are checked. It is parsed from `manifest`.

    Raise ManifestError, which names the file `path`, if it cannot be parsed or differs from the manifest's arguments.
    """
    try:
        program = parse_tile(manifest["signature"])
    except (ParseError, ProgramError) as fault:
        raise ManifestError(f"{path}: its signature cannot be read: {fault}") from None
    names = [a.name for a in program.args]
    written_to = {*manifest["outputs"], *manifest["optional"]}
    if names != [a["name"] for a in manifest["arguments"]] or not written_to <= {*names}:
        raise ManifestError(f"{path}: its arguments are not those of its signature; export the kernel again")
    return program
