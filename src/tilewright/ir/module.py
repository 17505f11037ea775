"""A module: a host program and the programs that it launches, by name. It is what a kernel becomes for a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilewright.errors import ProgramError
from tilewright.ir.core import Program
from tilewright.ir.tensors import TensorType


@dataclass(frozen=True)
class Module:
    """A host program and what it launches; no two of them have one name.

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
        """The module of these programs; raises where two have one name, or where what is launched is not there."""
        found: dict[str, Program] = {}
        for program in programs:
            if program.name in found or program.name == host.name:
                raise ProgramError(f"two programs of one text have the same name, {program.name}")
            found[program.name] = program
        for op in host.walk():
            if op.name != "launch":
                continue
            launched = found.get(op.attrs["program"])
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
        return cls(host, found)

    def __str__(self) -> str:
        return "\n".join(map(str, (self.host, *self.programs.values())))


def named_apart(program: Program, taken: Iterable[str]) -> Program:
    """The program under its name, or under one with a number where others have that name.

    >>> from tilewright.ir.block import parse_block
    >>> pack = parse_block("block pack() {}")
    >>> named_apart(pack, ["gemm"]).name, named_apart(pack, ["pack"]).name, named_apart(pack, ["pack", "pack_2"]).name
    ('pack', 'pack_2', 'pack_3')
    """
    others, name, number = set(taken), program.name, 1
    while name in others:
        number += 1
        name = f"{program.name}_{number}"
    return program if name == program.name else replace(program, name=name)
