"""`compile_text`: from the text of a program of the block, loop or host level to an executable.

Targets: "cpu", machine code for this CPU; "cpu:NAME", for a machine by name; "gpu", "cuda" and "gpu:NAME", likewise for
GPUs; and "interpreter", which defines the meaning of a program and reports its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.compiler.compiled import machine_code, machine_levels
from tilewright.compiler.device import GpuDevice, InterpretingDevice, NativeProgram, device_of, ready
from tilewright.compiler.module_executor import NativeExecutor, executor_of
from tilewright.errors import ArgumentError, ProgramError
from tilewright.ir.binding import allowed, open_sizes, parameters
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Program
from tilewright.ir.host import HOST
from tilewright.ir.loop import LOOP
from tilewright.ir.module import Module
from tilewright.ir.parser import parse_programs
from tilewright.limits import WORKERS, written
from tilewright.runtime.calls import arranged, known_level, signature_of
from tilewright.runtime.device_arrays import DeviceArray, array_of, made_like, share_memory
from tilewright.runtime.eager import eager
from tilewright.runtime.host import HostExecutor
from tilewright.runtime.outputs import maker
from tilewright.runtime.overlap import require_own_memory
from tilewright.runtime.scripts import Whole
from tilewright.runtime.sizes import extent, sizes_of
from tilewright.runtime.tensors import Form, as_array, count_writes
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.cpu.entry import EntryMember
from tilewright.targets.cpu.launch_cache import LaunchCache
from tilewright.targets.gpu.again import GpuLaunchCache
from tilewright.targets.names import CPU, GPU, INTERPRETER
from tilewright.targets.registry import check_target

Array = np.ndarray[Any, np.dtype[Any]]
LEVELS = {level.name: level for level in (BLOCK, LOOP, HOST)}


@eager
def compile_text(
    text: str,
    target: str = CPU,
    params: Mapping[str, int] | None = None,
    *,
    workers: int | None = None,
    seed: int = 0,
) -> TextExecutable:
    """Compile the program in `text` for `target` and return an executable; call it with arrays, in the order of its
    arguments.

    The text has one block or loop program, or a host program and those that it launches. `params` binds the first
    program's parameters; those with a range (`param M in 1..65536`) may stay open until a call, whose arrays give their
    values. Targets are:

    - "cpu": machine code for this CPU;
    - "cpu:NAME": for a machine by name; its text can be read everywhere, and it can be called where it runs;
    - "gpu" (or "cuda", if it is NVIDIA's): the GPU in use; "gpu:NAME": for a GPU by name;
    - "interpreter": finds races and reads of unwritten memory, and runs programs for every machine.

    `workers` is the number of workgroups that share the tasks (None: two on the interpreter, one per core on a CPU). On
    the interpreter, `seed` chooses the order in which waves run; correct programs give the same results for all. Errors
    in the text raise ProgramError.

    >>> import numpy as np
    >>> double = compile_text('''block double(%x: in global f32 (M, N), %y: out global f32 (M, N))
    ...   param M = 4, N = 16
    ... {
    ...   tasks m in 0..M {
    ...     %row = view %x (j N) -> [m, j]
    ...     %to = view %y (j N) -> [m, j]
    ...     map %to = %row + %row
    ...   }
    ... }''', params={"M": 2, "N": 3})
    >>> double(np.arange(6, dtype=np.float32).reshape(2, 3))
    array([[ 0.,  2.,  4.],
           [ 6.,  8., 10.]], dtype=float32)
    """
    if not isinstance(text, str):
        raise ArgumentError(f"compile_text takes the text of a program, not {written(text, 60)}")
    if params is not None and not isinstance(params, Mapping):
        raise ArgumentError(f"params={written(params, 60)}: a dictionary of parameters and their values")
    check_target(target, (INTERPRETER, GPU))
    try:
        programs = parse_programs(text, LEVELS)
        return TextExecutable(programs, dict(params or {}), target, workers, seed)
    except ProgramError as fault:
        raise fault.with_traceback(None) from None


def restored(text: str, target: str, params: dict[str, int], workers: int | None, seed: int) -> TextExecutable:
    """Compile `text` with these options of `compile_text` and return the executable. Unpickling calls this."""
    return compile_text(text, target, params, workers=workers, seed=seed)


class TextExecutable:
    """A program compiled from its text: call it with arrays. Outputs that a call leaves out are allocated and
    returned.
    """

    def __init__(self, programs: list[Program], params: dict[str, int], target: str, workers: int | None, seed: int):
        if workers is not None and (type(workers) is not int or not 1 <= workers <= WORKERS.most):
            raise ArgumentError(f"workers={written(workers)}: an integer of at least 1; {WORKERS.rule}")
        if type(seed) is not int:
            raise ArgumentError(f"seed={seed!r}: an integer")
        self.target, self.workers, self.seed = target, workers, seed
        self.programs = {p.name: p for p in programs}
        if len(self.programs) != len(programs):
            names = [p.name for p in programs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ProgramError(f"two programs of one text have the same name, {twice}")
        self.device = device_of(target, seed)
        self._launchable, self._executor = None, None
        if programs[0].level is HOST:
            self.main, _ = ready(programs[0], params)
            self._executor = executor_of(Module.of(self.main, programs[1:]), self.device)
        else:
            self._launchable = self.device.prepare(programs[0], params)
            self.main = self._launchable.program
            if isinstance(self._launchable, NativeProgram):
                self._launchable.make()
        self._has_open_sizes, self._params = bool(open_sizes(self.main)), params
        types = {a.name or "": str(a.type) for a in self.main.args}
        self.__signature__ = signature_of(types, self._outputs, ["params"])

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a public one, such as `workers`, also drops remembered calls."""
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            on_gpu = isinstance(self.__dict__.get("device"), GpuDevice)
            self._remembered: GpuLaunchCache | LaunchCache = GpuLaunchCache() if on_gpu else LaunchCache()

    @property
    def _outputs(self) -> list[str]:
        """Return the names of the arguments with the role `out`, which a call may leave out."""
        return [a.name or "" for a in self.main.args if a.type.role == "out"]

    @property
    def logs(self) -> list[tuple[str, Array]]:
        """Return [(label, array)] of each `debug_log` that ran on the interpreter so far; [] on other targets."""
        return self.device.logs if isinstance(self.device, InterpretingDevice) else []

    @property
    def executor(self) -> HostExecutor | None:
        """Return the executor of a host program, which runs its launches; None if the text is one block or loop
        program."""
        return self._executor

    @property
    def launchable(self) -> Any:
        """Return the block or loop program, ready to be launched on the target; None if the text has a host program."""
        return self._launchable

    @property
    def _kernel(self) -> Any:
        """Return the machine code of a block or loop program; None for a host program and on the interpreter."""
        return None if self._launchable is None else self._launchable.kernel

    @property
    def why_script(self) -> str | None:
        """Return a text that says why calls copy arrays or launch programs one by one; None if one native call does
        everything.

        None also on a GPU and on the interpreter.
        """
        reason: str | None = getattr(self._executor or self._launchable, "why_script", None)
        return reason

    @property
    def launches(self) -> LaunchCache | None:
        """Return the cache of calls on the host, of which later calls repeat the launches; None on a GPU."""
        return self._remembered if isinstance(self._remembered, LaunchCache) else None

    @property
    def name(self) -> str:
        """Return the name of the text's first program, which calls run."""
        return self.main.name

    def text(self, level: str | None = None) -> str:
        """Return the text of all programs on the level `level`; None gives the programs of all levels.

        The first (main) program is shown with its parameters bound. Levels are those of the programs ("block", "loop",
        "host"). If the main program is a block or loop program for a CPU or GPU, there are also the levels below it:
        "loop", "llvm" and "asm", on NVIDIA GPUs "ptx" and, if a disassembler is installed, "sass". Raise ArgumentError
        for other levels.
        """
        programs = [self.main, *(p for p in self.programs.values() if p.name != self.main.name)]
        if level is None:
            return "\n".join(map(str, programs))
        levels = list(dict.fromkeys(p.level.name for p in programs))
        lower = {} if self._kernel is None else {"loop": "loop", **machine_levels(self._kernel)}
        known_level(level, list(dict.fromkeys((*levels, *lower))), f"{self.name} on {self.target}")
        if level in levels:
            return "\n".join(str(p) for p in programs if p.level.name == level)
        return str(self._kernel.loop) if level == "loop" else machine_code(self._kernel, level)

    @property
    def object_code(self) -> bytes:
        """Return the object code of a block or loop program. Raise ArgumentError for a host program and on the
        interpreter."""
        if self._kernel is None:
            raise ArgumentError(f"{self.name} is no machine code on {self.target}")
        code: bytes = self._kernel.object
        return code

    @eager
    def __call__(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Any:
        """Run the program and return the outputs that were left out: one array, a tuple of several, or None. With
        `out=`, return that.

        Arguments are passed by position or by name. `params` is {name: value} of open parameters that no shape gives.
        `logs` has the values of debug_log. Raise ArgumentError if the arguments do not fit.
        """
        if not named and params is None:
            result = self._remembered.call(*args)
            if result is not UNLIKE:
                return result
        arrays, left_out = self._arguments(args, params, named)
        form, kinds = Form([*args, *named.values()]), {a.name: a.type.dtype for a in self.main.args}
        for name in left_out:
            form.require(kinds[name], f"{self.name}: the output {name}")
        launch, whole = self._bind_arrays(arrays, params, passing=True)
        launch()
        self._count_writes(args, named)
        results = [a.given if isinstance(a := arrays[name], DeviceArray) else form.of(a) for name in left_out]
        if not named and params is None:
            if isinstance(self._remembered, GpuLaunchCache):
                self._remembered.learn(args, results, launch)
            elif whole is not None and len(args) + len(left_out) == len(arrays):
                index_of = {name: n for n, name in enumerate(arrays)}  # passed arguments first, then new outputs
                self._remembered.learn(
                    args, [(arrays[name], True) for name in left_out], whole, [index_of[name] for name in whole.names]
                )
        return results[0] if len(results) == 1 else tuple(results) or named.get("out")

    def _count_writes(self, args: tuple[Any, ...], named: Mapping[str, Any] | None = None) -> None:
        """Increment torch's write counters of the tensors that a call wrote: arguments of any role but "in", and `out`.

        `args` are the call's arguments by position, `named` those by name; None: there are none.
        """
        argument_of = dict(zip((a.name or "" for a in self.main.args), args, strict=False)) | dict(named or {})
        written_names = {a.name for a in self.main.args if a.type.role != "in"} | {"out"}
        count_writes(a for name, a in argument_of.items() if name in written_names)

    @eager
    def bind(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Any:
        """Return a function that launches the program on these arrays, with the contents that they have at each call.

        Arguments are passed by position or by name, outputs too. Work on constant arguments (a host program's `bind`
        block) is done once, now. `params` is {name: value} of open parameters that no argument's shape gives. Raise
        ArgumentError if an argument is left out or does not fit.
        """
        arrays, left_out = self._arguments(args, params, named)
        if left_out:
            raise ArgumentError(f"{self.name}: bind takes all arguments; {', '.join(left_out)} is missing")
        launch, _ = self._bind_arrays(arrays, params)
        return getattr(launch, "alone", launch)

    def _arguments(
        self, args: tuple[Any, ...], params: Mapping[str, int] | None, named: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """Return ({argument name: array} of a call, the list of the names of the outputs that it left out).

        New arrays are allocated for outputs that are left out. `args` are the arguments by position, `named` those by
        name. `params` is {name: value} of open parameters that no shape gives. Raise ArgumentError if an argument is
        missing or invalid.
        """
        names = [a.name or "" for a in self.main.args]
        if named:
            args = arranged(self.name, names, self._outputs, args, named)
        if len(args) > len(names):
            raise ArgumentError(f"{self.name} takes {len(names)} arguments ({', '.join(names)}), not {len(args)}")
        passed = {
            name: self._array(a, f"{self.name}: argument {name}")
            for a, name in zip(args, names, strict=False)
            if a is not None or name not in self._outputs
        }
        arrays: dict[str, Any] = dict(passed)
        self._check_written(arrays)
        left_out = [a for a in self.main.args if a.name not in arrays]
        for arg in left_out:
            if arg.type.role != "out":
                raise ArgumentError(f"{self.name}: the argument {arg.name} is missing")
        sizes = sizes_of(self.main, arrays, params) if left_out and self._has_open_sizes else {}
        for arg in left_out:
            if self._has_open_sizes:
                shape = tuple(extent(e, sizes, arg.name or "", dim) for dim, e in enumerate(arg.type.shape))
            else:
                shape = tuple(_closed_extent(e, arg.name) for e in arg.type.shape)
            arrays[arg.name or ""] = (
                made_like(list(passed.values()), shape, arg.type.dtype, self.device.near)
                if isinstance(self.device, GpuDevice)
                else maker(shape, arg.type.dtype.numpy, zeroed=True)()
            )
        return arrays, [a.name or "" for a in left_out]

    def _array(self, argument: Any, where: str) -> Any:
        """Return `argument` as an array that shares its memory: a numpy array, or a DeviceArray if it is in GPU memory.

        Raise ArgumentError if it is no array, or if it is in GPU memory and the target is no GPU. `where` names it in
        the message.
        """
        return array_of(argument, where) if isinstance(self.device, GpuDevice) else as_array(argument, where)

    def _check_written(self, arrays: Mapping[str, Any]) -> None:
        """Raise ArgumentError if an array that is written shares memory with another argument; a numpy array also if it
        is read-only or has overlapping elements.

        `arrays` is {argument name: array}; arguments that it lacks are not checked. Arguments of all roles but "in" are
        written.
        """
        written = [a.name or "" for a in self.main.args if a.type.role != "in" and a.name in arrays]
        for name in written:
            output = arrays[name]
            if isinstance(output, np.ndarray):
                require_own_memory(output, f"{self.name}: argument {name}")
            for other, array in arrays.items():
                if other != name and share_memory(output, array):
                    raise ArgumentError(
                        f"{self.name}: {name}, which is written, shares memory with {other}; "
                        "give them memory of their own"
                    )

    def _bind_arrays(
        self, arrays: dict[str, Any], params: Mapping[str, int] | None, passing: bool = False
    ) -> tuple[Any, Whole | None]:
        """Return (a function that runs the program on `arrays`, a Whole or None).

        A Whole describes the launches of the call, for a launch cache. It is None for a block or loop program on the
        interpreter, and if the function does more than copies and launches. `arrays` is {argument name: array};
        `params` is {name: value} of open parameters that no shape gives. With `passing`, the caller promises to call
        the function exactly once, right away. Raise ArgumentError for `params` of a program without open sizes, and if
        the arrays do not fit.
        """
        if params and not self._has_open_sizes:
            raise ArgumentError(f"params: {self.name} has no open parameters; compile_text binds the others")
        args = self.main.args
        ordered_arrays = [arrays[a.name or ""] for a in args]
        try:
            if self._executor is not None:
                launch, whole = self._executor.bind_whole(ordered_arrays, params, passing=passing)
                return (launch if isinstance(self.device, GpuDevice) else _without_traceback(launch)), whole
            assert self._launchable is not None
            launch = self._launchable.launch(ordered_arrays, self.workers, params)
        except ProgramError as fault:
            raise fault.with_traceback(None) from None
        if self._kernel is None:
            return _without_traceback(launch), None
        names, written = tuple(a.name or "" for a in args), tuple(a.type.role != "in" for a in args)
        return launch, Whole(names, tuple(ordered_arrays), written, ((launch, tuple(range(len(ordered_arrays)))),))

    def arguments(self, *args: Any, params: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return {argument name: array} of a call with these arrays, without running it.

        Outputs that are left out get new arrays. `params` is {name: value} of open parameters that no shape gives.
        Raise ArgumentError if an argument is missing or invalid.
        """
        arrays, _ = self._arguments(args, params, {})
        return arrays

    def member(self, *args: Any, params: Mapping[str, int] | None = None) -> tuple[EntryMember, dict[str, Any]]:
        """Return (entry, {argument name: array}) for a call on a CPU with these arrays, by position.

        The entry is the native function that runs the program, as an EntryMember. New arrays are allocated for outputs
        that are left out. Nothing is run and no element is read. `params` is {name: value} of open parameters that no
        shape gives. Raise ArgumentError if an argument is invalid, or if there is no entry, because calls copy arrays
        or launch programs one by one.
        """
        arrays = self.arguments(*args, params=params)
        ordered_arrays = [arrays[a.name or ""] for a in self.main.args]
        runner: NativeExecutor | NativeProgram = self._executor or self._launchable  # type: ignore[assignment]
        member = runner.member(ordered_arrays, params)
        if member is None:
            raise ArgumentError(f"{self.name}: {runner.why_script}, which tilewright.jax does not do")
        return member, arrays

    def parameters(self) -> dict[str, int | range | None]:
        """Return {name: value} of the first program's parameters.

        The value is a range for a parameter that is still open. For one with a range that was bound when the text was
        compiled, it is that number. Any other parameter has the number in the program's text; None if the text gives
        none.
        """
        all_parameters = parameters(self.programs[self.main.name])
        return {
            s.name: n if s.upper is None else self._params.get(s.name, allowed(s)) for s, n in all_parameters.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        text = "\n".join(map(str, self.programs.values()))
        return restored, (text, self.target, self._params, self.workers, self.seed)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{a.name}: {a.type}" for a in self.main.args)
        why = f"; {self.why_script}" if self.why_script else ""
        return f"<executable {self.name}({arguments}) on {self.target}{why}>"


def _without_traceback(action: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `action`. A ProgramError that `action` raises gets a traceback without the frames
    inside `action`."""

    def run() -> None:
        try:
            action()
        except ProgramError as fault:
            raise fault.with_traceback(None) from None

    return run


def _closed_extent(e: Any, name: str | None) -> int:
    """Return `e`, an extent of the argument `name`, as an int. Raise ArgumentError if only the array can tell it."""
    try:
        return int(e)
    except (TypeError, ValueError) as fault:
        raise ArgumentError(f"{name} has the size {e}, which only its array can tell: pass it") from fault
