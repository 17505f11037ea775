"""A module: a host program and the programs it launches. Compiling a kernel for a machine gives one module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilewright.errors import ProgramError
from tilewright.ir.core import Program
from tilewright.ir.tensors import TensorType


@dataclass(frozen=True)
class Module:
    """A host program and the programs that it launches, by name; all names differ.

    >>> from tilewright.ir.block import parse_block
    >>> from tilewright.ir.host import parse_host
    >>> host = parse_host("host f(%y: out global f32 (4)) { launch zero(%y) workers 1 }")
    >>> print(Module.of(host, [parse_block("block zero(%y: out global f32 (4)) { fill %y 0 }")]))
    host f(%y: out global f32 (4))
    {
      launch zero(%y) workers 1
    }
    <BLANKLINE>
    block zero(%y: out global f32 (4))
    {
      fill %y 0
    }
    <BLANKLINE>
    """

    host: Program
    programs: dict[str, Program] = field(default_factory=dict)

    @classmethod
    def of(cls, host: Program, programs: Iterable[Program]) -> Module:
        """Return the module of the host program `host` and `programs`, the programs that `host` launches.

        Raise ProgramError if two programs have one name, a launched program is missing, a launch passes the wrong
        number of arguments, or an argument of a launched program is not in global memory.
        """
        by_name: dict[str, Program] = {}
        for program in programs:
            if program.name in by_name or program.name == host.name:
                raise ProgramError(f"two programs of one text have the same name, {program.name}")
            by_name[program.name] = program
        for op in host.walk():
            if op.name != "launch":
                continue
            launched = by_name.get(op.attrs["program"])
            if launched is None:
                raise ProgramError(f"launch: the text holds no program {op.attrs['program']}", op.loc)
            if len(op.operands) != len(launched.args):
                raise ProgramError(
                    f"launch: {launched.name} takes {len(launched.args)} arguments, not {len(op.operands)}", op.loc
                )
            for arg in launched.args:
                if not isinstance(arg.type, TensorType) or arg.type.space != "global":
                    raise ProgramError(
                        f"launch: %{arg.name} of {launched.name} is {arg.type}; arguments lie in global memory", op.loc
                    )
        return cls(host, by_name)

    def __str__(self) -> str:
        return "\n".join(map(str, (self.host, *self.programs.values())))


def with_free_name(program: Program, used_names: Iterable[str]) -> Program:
    """Return `program` under a name that is not in `used_names`: the same name, or else the name with `_2`, `_3`, ...
    added.

    >>> from tilewright.ir.block import parse_block
    >>> pack = parse_block("block pack() {}")
    >>> [with_free_name(pack, used).name for used in (["gemm"], ["pack"], ["pack", "pack_2"])]
    ['pack', 'pack_2', 'pack_3']
    """
    others, name, number = set(used_names), program.name, 1
    while name in others:
        number += 1
        name = f"{program.name}_{number}"
    return program if name == program.name else replace(program, name=name)
