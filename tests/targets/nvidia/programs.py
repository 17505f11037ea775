"""The programs of the NVIDIA machines: one list, in which every atom, copy, role form and synchronisation occurs.

`make test` makes each of them PTX, assembles it, and runs it on the loop level under several schedules against the
block level (test_program_list.py); `make test-gpu` runs them on a GPU (tests/gpu). Small texts stand in
`programs/`, products are made from two templates, and the examples come in the forms that are fast. What a program is
there for it says itself (`# covers:`), and is held to: `forms_of` tells what a program holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.check.block import check
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.ir.core import Program
from tilewright.ir.tensors import numbers
from tilewright.machine import Machine, MultiplyAtom, RegisterOperand
from tilewright.targets.registry import machine

Array = np.ndarray[Any, np.dtype[Any]]
TEXTS = Path(__file__).parent / "programs"
EXAMPLES = Path(__file__).parents[3] / "examples" / "block"


@dataclass(frozen=True)
class Case:
    """A program: its text and sizes, and what it is there for."""

    name: str
    text: str
    covers: frozenset[str] = frozenset()
    params: dict[str, int] = field(default_factory=dict)
    small: dict[str, int] | None = field(default_factory=dict)
    """Sizes at which the loop level is interpreted; None: another case stands for it."""
    large: dict[str, int] = field(default_factory=dict)
    """Sizes at which it is assembled, where they are others: registers are needed for large ones too."""
    exact: bool = True
    """Whether results are the same whatever the order of sums; otherwise they are close."""

    @property
    def interpreted(self) -> Case | None:
        """The program for the loop level's interpreter; None: another case is it."""
        return None if self.small is None else replace(self, params=self.small)

    @property
    def assembled(self) -> Case:
        """The program for the assembler."""
        return replace(self, params=self.params | self.large)

    @cached_property
    def program(self) -> Program:
        """The block program, with its sizes, checked."""
        found = bind(parse_block(self.text), self.params)
        check(found, self.machine)
        return found

    @cached_property
    def machine(self) -> Machine:
        """The machine that it is written for."""
        named = re.search(r"^  machine (\w+)$", self.text, re.M)
        assert named is not None
        return machine(named[1])

    def arguments(self, seed: int = 7) -> dict[str, Array]:
        """Small whole numbers; outputs hold something else. `%deal` is a table of tasks, in any order."""
        chance, found = np.random.default_rng(seed), {}
        for arg in self.program.args:
            shape = numbers(arg.type.shape, "argument")
            values = np.full(shape, 77) if arg.type.role == "out" else chance.integers(-3, 4, shape)
            if arg.name == "deal":
                values = np.full(shape, -1)
                tasks = next(op for op in self.program.walk() if op.attrs.get("schedule") == "table")
                (count,) = numbers((tasks.attrs["ranges"][0].hi,), "tasks")
                values.reshape(-1)[chance.permutation(values.size)[:count]] = chance.permutation(count)
            found[arg.name or ""] = values.astype(arg.type.dtype.numpy)
        return found

    def assert_same(self, got: dict[str, Array], wanted: dict[str, Array]) -> None:
        """That both hold the same."""
        for name, array in wanted.items():
            mine, theirs = got[name].astype(np.float64), array.astype(np.float64)
            if self.exact:
                np.testing.assert_array_equal(mine, theirs, err_msg=f"%{name} of {self.name}")
            else:
                np.testing.assert_allclose(mine, theirs, rtol=2e-2, atol=2e-2, err_msg=f"%{name} of {self.name}")

    def __str__(self) -> str:
        return self.name


# -- what a program holds ----------------------------------------------------------------------------------------

_WIDE = {4: r"[bufs]32", 8: r"(?:v2\.[bufs]32|[bufs]64)", 16: r"(?:v4\.[bufs]32|v2\.[bufs]64)"}
INSTRUCTIONS = {
    **{
        f"{word}.{space}.{width}": rf"\b{word}\.{space}(?:\.nc)?\.{form}\s"
        for word in ("ld", "st")
        for space in ("global", "shared")
        for width, form in _WIDE.items()
    },
    **{
        f"{word}.x{n}{way}": rf"{word}\.sync\.aligned\.m8n8\.x{n}{re.escape(way)}\.shared\.b16"
        for word in ("ldmatrix", "stmatrix")
        for n in (1, 2, 4)
        for way in ("", ".trans")
    },
    **{f"cp.async.{w}": rf"cp\.async\.ca\.shared\.global .*, {w}[,;]" for w in (4, 8, 16)},
    "cp.async.16.cg": r"cp\.async\.cg\.shared\.global .*, 16[,;]",
    "tma.load": r"cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.tile",
    "tma.store": r"cp\.async\.bulk\.tensor\.\dd\.global\.shared::cta\.tile",
    "tma.load.im2col": r"cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.im2col",
}
"""Copy atoms whose instructions are looked for in PTX."""


def forms_of(program: Program, lowered: Program, ptx: str) -> set[str]:
    """What a program holds: atoms, copies, operations of waves with what they say, ways of launching."""
    found = {name for name, pattern in INSTRUCTIONS.items() if re.search(pattern, ptx)}
    for op in program.walk():
        found.add(op.name)
        if op.attrs.get("overlap"):
            found.add(f"overlap={op.attrs['overlap']}")
        if op.name == "tasks":
            found.add(f"tasks.schedule={op.attrs.get('schedule') or 'strided'}")
    for op in lowered.walk():
        found |= {op.name, *(f"{op.name}.{attr}" for attr, value in op.attrs.items() if value is not None)}
        if op.name == "atom":
            found.add(op.attrs["atom"])
        if op.name == "role" and "registers" in op.attrs:
            found.add("setmaxnreg")
    for record in program.records:
        if record.name == "launch":
            found |= {f"launch={value}" for value in record.attrs.values()}
        if record.name == "cluster" and numbers((record.attrs["count"],), "cluster")[0] > 1:
            found.add("cluster")
    return found


def read_before_written(text: str) -> list[str]:
    """Registers whose value is taken in a line above the first that gives them one: on a GPU they hold anything."""
    given: set[str] = set()
    found = []
    for line in text.splitlines():
        if taken := re.search(r"= load [\w ]+, ptr (%slot[\w.]*)$", line):
            found += [taken[1]] if taken[1] not in given else []
        elif put := re.search(r"store \w+ \S+, ptr (%slot[\w.]*)$", line):
            given.add(put[1])
    return found


# -- products ----------------------------------------------------------------------------------------------------

_IN_REGISTERS = """
block product(%a: in global {kind} ({m}, {k}), %b: in global {kind} ({n}, {k}), %d: out global {total} ({m}, {n}))
  machine {machine}
  waves 2
{{
  tasks t in 0..1 {{
    %as = alloc shared {kind} ({m}, {k}){how}
    %bs = alloc shared {kind} ({n}, {k}){how}
    %ra = alloc register {kind} ({m}, {k}) as {atom}.a waves (2, 1)
    %rb = alloc register {kind} ({k}, {n}) as {atom}.b waves (2, 1)
    %rc = alloc register {total} ({m}, {n}) as {atom}.c waves (2, 1)
    copy %a -> %as
    copy %b -> %bs
    barrier
    copy %as -> %ra
    %turned = view %bs (k {k}, j {n}) -> [j, k]
    copy %turned -> %rb
    fill %rc 0
    mma %rc += %ra * %rb using {atom}
    copy %rc -> %d
  }}
}}
"""


def in_registers(name: str, atom: MultiplyAtom) -> Case:
    """A product whose factors are in registers: two waves below one another, each with two atoms by three."""
    m, n, k = atom.shape
    size = atom.a.dtype.numpy.itemsize
    text = _IN_REGISTERS.format(
        kind=atom.a.dtype,
        total=atom.c.dtype,
        m=4 * m,
        n=3 * n,
        k=64 if size == 2 else 2 * k,
        machine=name,
        atom=atom.name,
        how=" swizzle <3,3,3>" if size == 2 else "",
    )
    covers = {atom.name, "atom", "barrier.id", "barrier.waves", *(["ldmatrix.x4"] if size == 2 else [])}
    return Case(f"{atom.name} of {name}", text, frozenset(covers))


def in_shared(atoms: list[MultiplyAtom]) -> Case:
    """Products by atoms of one kind and all widths, one after another; their factors end before the tiles do."""
    kind, total = atoms[0].a.dtype, atoms[0].c.dtype
    forms = atoms[0].name.split(".")[3:]
    size = kind.numpy.itemsize
    deep = 128 // size
    swizzle = f"swizzle <3,{(16 // size).bit_length() - 1},3>"
    widest, shape = max(atom.shape[1] for atom in atoms), sum(atom.shape[1] for atom in atoms)
    m, n, k = 60, widest - 6, deep - 8
    a_turned, b_turned = "ta" in forms, "tb" in forms
    slabs, below = max(1, widest // deep), 64 // deep
    a_shape, b_shape = ((k, m) if a_turned else (m, k)), ((k, n) if b_turned else (n, k))
    given = f"%a: in global {kind} {a_shape}, %b: in global {kind} {b_shape}"
    lines = [
        f"block products({given}, %d: out global {total} (64, {shape}))",
        "  machine hopper",
        "  waves 4",
        "{",
        f"  %as = alloc shared {kind} ({f'{below}, {deep}, {deep}' if a_turned else f'64, {deep}'}) {swizzle}",
        f"  %bs = alloc shared {kind} ({f'{slabs}, {deep}, {deep}' if b_turned else f'{widest}, {deep}'}) {swizzle}",
        f"  %ga = view %a (s {below}, c {deep}, i {deep}) -> [c ?, {deep}*s + i ?]"
        if a_turned
        else f"  %ga = view %a (i 64, c {deep}) -> [i ?, c ?]",
        f"  %gb = view %b (s {slabs}, c {deep}, i {deep}) -> [c ?, {deep}*s + i ?]"
        if b_turned
        else f"  %gb = view %b (i {widest}, c {deep}) -> [i ?, c ?]",
        "  tasks t in 0..1 {",
        "    copy %ga -> %as else 0",
        "    copy %gb -> %bs else 0",
        "    barrier",
        f"    %ta = view %as (i 64, c {deep}) -> [{f'i//{deep}, c, i%{deep}' if a_turned else 'i, c'}]",
    ]
    start = 0
    for atom in atoms:
        width, name = atom.shape[1], atom.name
        left = "ta"
        if "ra" in forms:
            left = f"ra{width}"
            lines += [f"    %{left} = alloc register {kind} (64, {deep}) as {name}.a", f"    copy %ta -> %{left}"]
        lines += [
            f"    %c{width} = alloc register {total} (64, {width}) as {name}.c",
            f"    fill %c{width} 0",
            f"    %b{width} = view %bs (c {deep}, i {width}) -> [{f'i//{deep}, c, i%{deep}' if b_turned else 'i, c'}]",
            f"    mma %c{width} += %{left} * %b{width} using {name}",
            f"    %d{width} = view %d (i 64, j {width}) -> [i, j + {start}]",
            f"    copy %c{width} -> %d{width}",
            "    barrier",  # otherwise the assembler holds more of them at once than there are registers
        ]
        start += width
    covers = {*(atom.name for atom in atoms), "atom", "atom.b", "atom.b_at", "atom.fresh"}
    covers |= set() if "ra" in forms else {"atom.a", "atom.a_at"}
    covers |= {"fence", "settle"} if atoms[0].asynchronous else set()
    family, _, rest = atoms[0].name.split(".", 2)
    label = f"{family}.{rest} from shared memory"
    return Case(label, "\n".join([*lines, "  }", "}", ""]), frozenset(covers))


def products() -> list[Case]:
    """Every multiplication atom of both machines."""
    found = []
    wide: dict[str, list[MultiplyAtom]] = {}
    for name in ("ampere", "hopper"):
        for atom in machine(name).multiply.values():
            if isinstance(atom.b, RegisterOperand):
                found.append(in_registers(name, atom))
            else:
                family, _, rest = atom.name.split(".", 2)
                wide.setdefault(f"{family}.{rest}", []).append(atom)
    return [*found, *(in_shared(atoms) for atoms in wide.values())]


# -- texts and examples --------------------------------------------------------------------------------------------


def texts() -> list[Case]:
    """The texts of `programs/`; those for Ampere for Hopper too."""
    found = []
    for path in sorted(TEXTS.glob("*.block")):
        text = path.read_text()
        covers = frozenset(word for line in re.findall(r"^# covers: (.*)$", text, re.M) for word in line.split())
        found.append(Case(path.stem, text, covers))
        if "  machine ampere\n" in text:
            again = text.replace("machine ampere", "machine hopper")
            found.append(Case(f"{path.stem} on hopper", again, covers, small=None))
    return found


def dealt(text: str) -> str:
    """A program whose tasks are dealt out by a table."""
    text = text.replace("%a: in", "%deal: in global i32 (7, 5), %a: in")
    return text.replace("0..TM*TN", "0..TM*TN schedule table of %deal")


def early(text: str) -> str:
    """A program that may begin before the launch before it has ended."""
    return text.replace("machine hopper", "machine hopper\n  launch programmatic")


_MULTICAST = "cluster arrive.everywhere copy_in.multicast setmaxnreg"
_SMALL = {"BN": 64, "STAGES": 2}
FORMS: list[tuple[str, dict[str, int], dict[str, int] | None, str]] = [
    (
        "gemm_hopper",
        {"M": 200, "N": 264, "K": 136, "BN": 256},
        {"M": 72, "N": 72, "K": 136, **_SMALL},
        "wgmma.m64n256k16.bf16 setmaxnreg settle stmatrix.x4 arrive expect await",
    ),
    (
        "gemm_hopper",
        {"M": 200, "N": 136, "K": 72, "BM": 256, **_SMALL},
        {"M": 200, "N": 64, "K": 72, "BM": 256, **_SMALL},
        "tma.load tma.store",
    ),
    (
        "gemm_hopper",
        {"M": 136, "N": 264, "K": 200, "BM": 64, "BN": 256, "WG": 1},
        {"M": 64, "N": 64, "K": 128, "BM": 64, "BN": 64, "WG": 1, "STAGES": 1},
        "",
    ),
    (
        "gemm_hopper",
        {"M": 264, "N": 264, "K": 136, "BN": 256, "CLUSTER": 2},
        {"M": 136, "N": 72, "K": 136, "BM": 64, "WG": 1, "CLUSTER": 2, **_SMALL},
        _MULTICAST,
    ),
    ("gemm_hopper", {"M": 300, "N": 72, "K": 136, "CLUSTER": 4, "BN": 64, "STAGES": 3}, None, _MULTICAST),
    (
        "gemm_hopper_pingpong",
        {"M": 200, "N": 264, "K": 136, "BN": 256},
        {"M": 200, "N": 72, "K": 136, **_SMALL},
        "overlap=pingpong tasks.turn",
    ),
    (
        "gemm_hopper_pingpong",
        {"M": 264, "N": 136, "K": 136, "BM": 128, "BN": 128},
        {"M": 200, "N": 136, "K": 72, "BM": 128, "GROUP": 2, **_SMALL},
        "",
    ),
    (
        "conv_hopper",
        {"N": 3, "H": 9, "W": 7, "F": 264, "BM": 192, "WG": 1, "STAGES": 5, "CLUSTER": 4},
        {"N": 2, "H": 5, "W": 4, "F": 136, "BM": 64, "WG": 1, "STAGES": 2, "CLUSTER": 2},
        _MULTICAST,
    ),
    (
        "conv_hopper",
        {"N": 2, "H": 9, "W": 7, "F": 136, "BN": 128},
        {"N": 1, "H": 7, "W": 5, "R": 3, "S": 2, "F": 72, "STAGES": 2},
        "tma.load.im2col",
    ),
    (
        "conv_hopper",
        {"N": 2, "H": 9, "W": 7, "STRIDE": 2},
        {"N": 2, "H": 9, "W": 7, "STRIDE": 2, "STAGES": 2},
        "tma.load.im2col",
    ),
    ("conv_hopper", {"N": 3, "H": 7, "W": 5, "S": 2, "C": 128, "F": 72, "BM": 192, "BN": 128, "WG": 3}, None, ""),
    ("conv_hopper", {"N": 2, "H": 8, "W": 8, "R": 1, "S": 1, "PAD": 0}, None, ""),
    ("conv_hopper_halo", {"N": 3, "H": 5, "W": 4, "C": 256, "F": 128}, {"N": 1, "H": 3, "W": 4, "C": 128}, ""),
    ("conv_hopper_patches", {"N": 3, "H": 21, "W": 40}, {"N": 1, "H": 9, "W": 9, "PATCHES": 1}, ""),
    (
        "conv_hopper_patches",
        {"N": 3, "H": 21, "W": 40, "STAGES": 1},
        {"N": 3, "H": 8, "W": 5, "PATCHES": 2, "STAGES": 1},
        "",
    ),
    ("attention_hopper", {"B": 3, "T": 192, "U": 256, "BK": 128}, {"B": 1, "T": 64, "U": 128}, ""),
    ("flash_hopper", {"B": 1, "T": 200, "U": 384, "BK": 128}, {"B": 1, "T": 72, "U": 128}, "edge"),
    ("flash_hopper", {"B": 2, "T": 384, "U": 384, "BK": 128, "CAUSAL": 1, "GROUP": 2}, None, "tasks.schedule=dynamic"),
    ("flash_hopper", {"B": 2, "T": 200, "U": 512, "BK": 128, "D": 64, "WG": 3}, None, ""),
]
"""The examples as they are fast, with sizes that end within tiles; then with small tiles, for the interpreter (None: as
another line's); then what each is there for."""


LARGE = {
    "gemm_hopper": {"M": 4096, "N": 4096, "K": 4096},
    "gemm_hopper_pingpong": {"M": 4096, "N": 4096, "K": 4096},
    "conv_hopper": {"N": 32, "H": 28, "W": 28},
    "conv_hopper_halo": {"N": 32, "H": 7, "W": 7, "C": 512, "F": 512},
    "conv_hopper_patches": {"N": 32, "H": 56, "W": 56},
    "attention_hopper": {"B": 64, "T": 4096, "U": 4096},
    "flash_hopper": {"B": 64, "T": 4096, "U": 4096},
}
"""The sizes that are measured."""


def examples() -> list[Case]:
    """The examples for Hopper, and one that is dealt out and launched otherwise."""
    found = []
    for name, params, small, covers in FORMS:
        text = (EXAMPLES / f"{name}.block").read_text()
        sizes = " ".join(f"{key}={value}" for key, value in params.items())
        exact = name not in ("attention_hopper", "flash_hopper")
        found.append(Case(f"{name} {sizes}", text, frozenset(covers.split()), params, small, LARGE[name], exact))
    turns = early(dealt((EXAMPLES / "gemm_hopper_pingpong.block").read_text()))
    covers = frozenset({"tasks.schedule=table", "overlap=pingpong", "launch=programmatic"})
    sizes = {"M": 512, "N": 384, "K": 136}
    return [*found, Case("gemm_hopper_pingpong of a table, early", turns, covers, sizes, None)]


CASES = [*texts(), *products(), *examples()]
