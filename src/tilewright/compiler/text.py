"""`compile_text`: programs of the block, loop and host levels, from their text to what can be called.

Targets: "cpu", machine code for the CPU at hand; "cpu:NAME", that for a named machine; and "interpreter", which defines
what a program means and reports what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tilewright.check.block import check
from tilewright.check.loop import check_loop
from tilewright.errors import ArgumentError, ProgramError
from tilewright.interpret import loop as loop_interpreter
from tilewright.interpret.block.run import HANDLERS, interpret
from tilewright.interpret.host import HostRun
from tilewright.ir.binding import allowed, bind, open_parameters, parameters
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op, Program
from tilewright.ir.host import HOST
from tilewright.ir.loop import LOOP
from tilewright.ir.parser import parse_programs
from tilewright.ir.verifier import verify
from tilewright.limits import BUFFER, ELEMENTS, STEPS, WORKERS, Limit, written
from tilewright.machine import Condition, Machine
from tilewright.runtime.calls import arranged, signature_of
from tilewright.runtime.dump import Dump
from tilewright.runtime.overlap import require_own_memory, share_memory
from tilewright.runtime.sizes import extent, sizes_of
from tilewright.runtime.tensors import Form, as_array
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.gpu.arrays import DeviceArray, array_of, made_like
from tilewright.targets.gpu.kernel import GpuTarget
from tilewright.targets.registry import CPU, GPU, check_target, gpu, is_gpu, is_native, native
from tilewright.targets.registry import machine as machine_named

Array = np.ndarray[Any, np.dtype[Any]]
LEVELS = {level.name: level for level in (BLOCK, LOOP, HOST)}
INTERPRETER = "interpreter"


def compile_text(
    text: str,
    target: str = CPU,
    params: Mapping[str, int] | None = None,
    *,
    workers: int | None = None,
    seed: int = 0,
) -> TextExecutable:
    """What the text becomes for a target: call it with arrays, in the order of the first program's arguments.

    The text holds one block or loop program, or a host program and those it launches. `params` binds the first
    program's parameters; those with a range (`param M in 1..65536`) may stay open until a call, whose arrays tell
    them. `target` is "cpu", machine code for the CPU at hand; "cpu:NAME", that for a machine, which can be read
    everywhere and called where it runs; or "interpreter", which finds races and reads of what nothing wrote, and runs
    programs for every machine. `workers` is how many workgroups share the tasks: two on the interpreter, one for each
    core on a CPU, unless it is given. On the interpreter, `seed` chooses the schedule; the same results must come out
    for all.

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
    if not (isinstance(target, str) and is_gpu(target)):
        check_target(target, (INTERPRETER, GPU))
    try:
        programs = parse_programs(text, LEVELS)
        return TextExecutable(programs, dict(params or {}), target, workers, seed)
    except ProgramError as fault:
        raise fault.with_traceback(None) from None


def restored(text: str, target: str, params: dict[str, int], workers: int | None, seed: int) -> TextExecutable:
    """An executable by what made it; machine code is compiled again, or found in the cache."""
    return compile_text(text, target, params, workers=workers, seed=seed)


def machine_of(program: Program) -> Machine | None:
    """The machine that a program's header names."""
    record = program.record("machine")
    if record is None:
        return None
    try:
        return machine_named(record.attrs["name"])
    except LookupError as fault:
        raise ProgramError(str(fault), record.loc) from None


class TextExecutable:
    """A compiled text: call it with arrays. Outputs that are left out are made and returned."""

    def __init__(self, programs: list[Program], params: dict[str, int], target: str, workers: int | None, seed: int):
        if workers is not None and (type(workers) is not int or not 1 <= workers <= WORKERS.most):
            raise ArgumentError(f"workers={written(workers)}: an integer of at least 1; {WORKERS.rule}")
        if type(seed) is not int:
            raise ArgumentError(f"seed={seed!r}: an integer")
        self.target, self.workers, self.seed, self.steps = target, workers, seed, STEPS.most
        self.programs = {p.name: p for p in programs}
        if len(self.programs) != len(programs):
            names = [p.name for p in programs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ProgramError(f"two programs of one text have the same name, {twice}")
        self._conditions: dict[Program, tuple[Condition, ...]] = {}
        self.main = self._ready(programs[0], params)
        self._open, self._params = bool(open_parameters(self.main)), params
        self._members: dict[Any, Program] = {}
        self.logs: list[tuple[str, Array]] = []
        self._known: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}
        self._compiler = self._target(target)
        self._kernel = None if self.main.level is HOST else self._native(self.main)
        for op in self.main.walk():
            if op.name == "launch":
                self._check_launch(op)
        types = {a.name or "": str(a.type) for a in self.main.args}
        self.__signature__ = signature_of(types, self._outputs, ["params"])

    def _target(self, target: str) -> CpuTarget | GpuTarget | None:
        """What makes code for the target; None: programs are interpreted."""
        if is_gpu(target):
            described = next((m for p in self.programs.values() if (m := machine_of(p)) is not None), None)
            return gpu(target, described)
        return native(target) if is_native(target) else None

    @property
    def _outputs(self) -> list[str]:
        return [a.name or "" for a in self.main.args if a.type.role == "out"]

    def _check_launch(self, op: Op) -> None:
        launched = self.programs.get(op.attrs["program"])
        if launched is None:
            raise ProgramError(f"launch: the text holds no program {op.attrs['program']}", op.loc)
        if len(op.operands) != len(launched.args):
            raise ProgramError(
                f"launch: {launched.name} takes {len(launched.args)} arguments, not {len(op.operands)}", op.loc
            )

    def _ready(self, program: Program, params: Mapping[str, int]) -> Program:
        """The program with its parameters bound, and checked."""
        verify(program)
        bound = bind(program, params)
        if program.level is BLOCK:
            self._conditions[bound] = check(bound, machine_of(program))
        elif program.level is LOOP:
            check_loop(bound, machine_of(program))
        else:
            verify(bound)
        return bound

    @property
    def name(self) -> str:
        """The first program's name."""
        return self.main.name

    def text(self, level: str | None = None) -> str:
        """The program on a level, its parameters bound; None: all programs as they came.

        On a CPU also the levels it became: "loop", "llvm" and "asm".
        """
        programs = [self.main, *(p for p in self.programs.values() if p.name != self.main.name)]
        if level is None:
            return "\n".join(map(str, programs))
        mine = [str(p) for p in programs if p.level.name == level]
        if mine:
            return "\n".join(mine)
        if self._kernel is not None and level in ("loop", "llvm", "asm"):
            found = {"loop": "loop", "llvm": "llvm", "asm": "assembly"}[level]
            return str(getattr(self._kernel, found))
        raise ArgumentError(f"level={level!r}: {self.name} has no such level on {self.target}")

    @property
    def object_code(self) -> bytes:
        """The object code that a block or loop program became."""
        if self._kernel is None:
            raise ArgumentError(f"{self.name} is no machine code on {self.target}")
        found: bytes = self._kernel.object
        return found

    def __call__(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Any:
        """Runs the program; see `logs` for what debug_log kept.

        `params` gives open parameters that no shape of the arguments tells. Arguments may be given by name, the output
        as `out=`, which is returned.
        """
        arrays, made = self._arguments(args, params, named)
        form, kinds = Form([*args, *named.values()]), {a.name: a.type.dtype for a in self.main.args}
        for name in made:
            form.require(kinds[name], f"{self.name}: the output {name}")
        self._bound(arrays, params)()
        found = [a.owner if isinstance(a := arrays[name], DeviceArray) else form.of(a) for name in made]
        return found[0] if len(found) == 1 else tuple(found) or named.get("out")

    def bind(self, *args: Any, params: Mapping[str, int] | None = None, **named: Any) -> Any:
        """The program bound to arrays: what is done once is done now; a call of the result launches it.

        `params` gives open parameters that no shape of the arguments tells.
        """
        arrays, made = self._arguments(args, params, named)
        if made:
            raise ArgumentError(f"{self.name}: bind takes all arguments; {', '.join(made)} is missing")
        return self._bound(arrays, params)

    def _arguments(
        self, args: tuple[Any, ...], params: Mapping[str, int] | None, named: Mapping[str, Any]
    ) -> tuple[dict[str, Array], list[str]]:
        names = [a.name or "" for a in self.main.args]
        if named:
            args = arranged(self.name, names, self._outputs, args, named)
        if len(args) > len(names):
            raise ArgumentError(f"{self.name} takes {len(names)} arguments ({', '.join(names)}), not {len(args)}")
        given = {
            name: self._array(a, f"{self.name}: argument {name}")
            for a, name in zip(args, names, strict=False)
            if a is not None or name not in self._outputs
        }
        arrays: dict[str, Array] = dict(given)
        self._check_written(arrays)
        made = [a for a in self.main.args if a.name not in arrays]
        for arg in made:
            if arg.type.role != "out":
                raise ArgumentError(f"{self.name}: the argument {arg.name} is missing")
        known = sizes_of(self.main, arrays, params) if made and self._open else {}
        for arg in made:
            if self._open:
                shape = tuple(extent(e, known, arg.name or "", dim) for dim, e in enumerate(arg.type.shape))
            else:
                shape = tuple(_number(e, arg.name) for e in arg.type.shape)
            arrays[arg.name or ""] = (
                made_like(list(given.values()), shape, arg.type.dtype)
                if is_gpu(self.target)
                else np.zeros(shape, arg.type.dtype.numpy)
            )
        return arrays, [a.name or "" for a in made]

    def _array(self, argument: Any, where: str) -> Any:
        """The argument as its target takes it: an array of numpy's, or one that lies on a device."""
        return array_of(argument, where) if is_gpu(self.target) else as_array(argument, where)

    def _check_written(self, arrays: Mapping[str, Array]) -> None:
        """Raises where what is written coincides with itself or with another argument."""
        written = [a.name or "" for a in self.main.args if a.type.role != "in" and a.name in arrays]
        arrays = {name: a for name, a in arrays.items() if isinstance(a, np.ndarray)}
        for name in (n for n in written if n in arrays):
            require_own_memory(arrays[name], f"{self.name}: argument {name}")
            for other, array in arrays.items():
                if other != name and share_memory(arrays[name], array):
                    raise ArgumentError(
                        f"{self.name}: {name}, which is written, shares memory with {other}; "
                        "give them memory of their own"
                    )

    def _bound(self, arrays: dict[str, Array], params: Mapping[str, int] | None) -> Any:
        if params and not self._open:
            raise ArgumentError(f"params: {self.name} has no open parameters; compile_text binds the others")
        try:
            if self.main.level is HOST:
                launches: dict[Any, Any] = {}  # those of machine code, bound: they last as long as this binding
                launch = partial(self._launch, launches)
                return _shown(HostRun(self.main, arrays, launch, self._roles, self._room).launch)
            if self._kernel is not None:
                if self._conditions.get(self.main):
                    sizes_of(self.main, arrays, params, self._conditions[self.main])
                return self._kernel.launch([arrays[a.name or ""] for a in self.main.args], self.workers, params)
            bound = self._settled(self.main, arrays, params)
        except ProgramError as fault:
            raise fault.with_traceback(None) from None
        return _shown(lambda: self._interpret(bound, arrays, self.workers or 2))

    def _settled(self, program: Program, arrays: Mapping[str, Array], params: Mapping[str, int] | None) -> Program:
        """The program that is interpreted for these arrays: nothing in it is open."""
        if not open_parameters(program):
            return program
        values = sizes_of(program, arrays, params, self._conditions.get(program, ()))
        key = (program, tuple(values.items()))
        if key not in self._members:
            self._members[key] = self._ready(program, values)
        return self._members[key]

    def _native(self, program: Program) -> Any:
        """Machine code for the target; None where it is interpreted."""
        if self._compiler is None:
            return None
        dump = Dump.of(program.name)
        dump.write("bind", program.level.name, lambda: str(program))
        return self._compiler.kernel(program, machine_of(program), dump)

    @property
    def _room(self) -> Limit:
        """The most elements of a workspace."""
        return BUFFER if self._compiler is None else ELEMENTS

    def _roles(self, name: str) -> list[str | None]:
        return [a.type.role for a in self.programs[name].args]

    def _launch(
        self, launches: dict[Any, Any], name: str, arrays: list[Array], workers: int, settings: dict[str, int], op: Op
    ) -> None:
        program = self.programs[name]
        left = {s.name for s in open_parameters(program)}
        late = {n: v for n, v in settings.items() if n in left}  # told at the launch: no other code for other values
        key = (name, tuple(sorted((n, v) for n, v in settings.items() if n not in left)))
        if key not in self._known:
            bound = self._ready(program, dict(key[1]))
            self._known[key] = self._native(bound) or bound
        if self._compiler is not None:
            place = (key, tuple(late.items()), workers, *(id(a) for a in arrays))
            if place not in launches:  # it keeps the arrays, so their identities stay theirs
                launches[place] = self._known[key].launch(arrays, workers, late)
            launches[place]()
            return
        named = {a.name or "": array for a, array in zip(program.args, arrays, strict=True)}
        self._interpret(self._settled(self._known[key], named, late), named, workers)

    def _interpret(self, program: Program, arrays: dict[str, Array], workers: int) -> None:
        handlers = HANDLERS if program.level is BLOCK else loop_interpreter.HANDLERS
        self.logs += interpret(
            program,
            arrays,
            machine_of(program),
            workers=workers,
            seed=self.seed,
            steps=self.steps,
            handlers=handlers,
        )

    def parameters(self) -> dict[str, int | range | None]:
        """The parameters of the first program, and their defaults; of an open one, the numbers that it may be."""
        known = parameters(self.programs[self.main.name])
        return {s.name: n if s.upper is None else self._params.get(s.name, allowed(s)) for s, n in known.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        text = "\n".join(map(str, self.programs.values()))
        return restored, (text, self.target, self._params, self.workers, self.seed)

    def __repr__(self) -> str:
        given = ", ".join(f"{a.name}: {a.type}" for a in self.main.args)
        return f"<executable {self.name}({given}) on {self.target}>"


def _shown(action: Any) -> Any:
    """The action, its faults without the frames of the interpreter."""

    def run() -> None:
        try:
            action()
        except ProgramError as fault:
            raise fault.with_traceback(None) from None

    return run


def _number(e: Any, name: str | None) -> int:
    try:
        return int(e)
    except (TypeError, ValueError) as fault:
        raise ArgumentError(f"{name} has the size {e}, which only its array can tell: pass it") from fault
