"""Random valid products for machines with waves of many lanes: every atom, its operands where it takes them from.

| form | factors | who brings them |
|---|---|---|
| lanes | in registers, from shared memory | the waves themselves |
| shared | in shared memory, as the atom reads them; A also in registers | the waves themselves |
| ring | the same, in stages of a channel | a role of its own, by boxes |
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.targets.registry import machine

Array = np.ndarray[Any, np.dtype[Any]]
ROW = 128
"""Bytes of a row in shared memory that is swizzled as a whole."""


class Product:
    """One product: D[t] = A[t] * B[t], in blocks along k; A and B with k fastest, or turned."""

    def __init__(self, seed: int, name: str, atoms: list[MultiplyAtom]):
        self.rng = rng = random.Random(seed)
        self.seed, self.machine = seed, name
        self.atom = atom = rng.choice(atoms)
        self.kind, self.total = atom.a.dtype, atom.c.dtype
        self.size = self.kind.numpy.itemsize
        self.lanes = isinstance(atom.b, RegisterOperand)
        words = atom.name.split(".")
        self.from_registers = self.lanes or "ra" in words
        if self.lanes:
            self.turned_a, self.turned_b = (rng.random() < 0.4 for _ in range(2))
            self.groups = rng.choice(((1, 1), (2, 1), (1, 2), (2, 2)))
            self.waves = self.groups[0] * self.groups[1]
        else:
            self.turned_a, self.turned_b = "ta" in words, "tb" in words
            self.groups = (rng.choice((1, 2)), 1)
            self.waves = 4 * self.groups[0]
        m, n, k = atom.shape
        most = 256 // n if not self.lanes else 4
        self.m = m * self.groups[0] * (rng.randint(1, 2) if self.lanes else 1)
        self.n = n * self.groups[1] * rng.randint(1, max(1, min(2, most)))
        self.k = k * rng.randint(1, 3) if self.lanes else ROW // self.size
        self.tasks, self.rounds = rng.randint(1, 3), rng.randint(1, 3)
        # boxes lie at multiples of 16 bytes; what is copied by lanes may end anywhere
        self.ring = not self.lanes and rng.random() < 0.5
        step = 16 // self.size if self.ring else 1
        self.sizes = tuple(
            n - rng.randrange(0, n // 2, step) if rng.random() < 0.5 else n
            for n in (self.m, self.n, self.k * self.rounds)
        )
        self.lines: list[str] = []
        self.depth = 1

    # -- text -----------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line, indented as its braces say."""
        self.depth -= text.startswith("}")
        self.lines.append("  " * self.depth + text)
        self.depth += text.endswith("{")

    def alloc(self, name: str, rows: int, turned: bool, stages: int = 0) -> None:
        """Shared memory of a factor: rows of the matrix, or slabs of 64 of them with k in between."""
        whole = not self.lanes or self.k * self.size == ROW
        swizzle = f" swizzle <3,{(16 // self.size).bit_length() - 1},3>" if whole else ""
        if turned:
            shape: tuple[int, ...] = (self.k, rows) if self.lanes else (rows // 64, self.k, 64)
            swizzle = "" if self.lanes else swizzle
        else:
            shape = (rows, self.k)
        shape = (stages, *shape) if stages else shape
        self.line(f"%{name} = alloc shared {self.kind} ({', '.join(map(str, shape))}){swizzle}")

    def bring(self, source: str, target: str, rows: int, turned: bool, by: str) -> None:
        """A block of a factor to shared memory; what lies outside is 0."""
        if turned and by:  # a box is a slab
            for s in range(rows // 64):
                self.line(f"%g{source}{s} = view %{source} (c {self.k}, i 64) -> [t, {self.k}*k + c ?, i + {64 * s} ?]")
                self.line(f"%{target}{s} = view %{target} (c {self.k}, i 64) -> [{s}, c, i]")
                self.line(f"copy %g{source}{s} -> %{target}{s} else 0{by}")
            return
        if turned and not self.lanes:
            over, at = f"s {rows // 64}, c {self.k}, i 64", f"t, {self.k}*k + c ?, 64*s + i ?"
        elif turned:
            over, at = f"c {self.k}, i {rows}", f"t, {self.k}*k + c ?, i ?"
        else:
            over, at = f"i {rows}, c {self.k}", f"t, i ?, {self.k}*k + c ?"
        self.line(f"%g{source} = view %{source} ({over}) -> [{at}]")
        self.line(f"copy %g{source} -> %{target} else 0{by}")

    def factor(self, source: str, name: str, rows: int, turned: bool, second: bool) -> str:
        """A factor as the product takes it, from shared memory: A is (m, k), B is (k, n)."""
        where = "i//64, c, i%64" if turned and not self.lanes else "c, i" if turned else "i, c"
        if not turned and not second:
            return source
        over = f"c {self.k}, i {rows}" if second else f"i {rows}, c {self.k}"
        self.line(f"%{name} = view %{source} ({over}) -> [{where}]")
        return name

    def multiply(self, a: str, b: str) -> None:
        """The product of one block, its factors in registers where the atom takes them there."""
        a = self.factor(a, "ma", self.m, self.turned_a, False)
        b = self.factor(b, "mb", self.n, self.turned_b, True)
        if self.from_registers:
            self.line(f"copy %{a} -> %ra")
            a = "ra"
        if self.lanes:
            self.line(f"copy %{b} -> %rb")
            b = "rb"
        self.line(f"mma %rc += %{a} * %{b} using {self.atom.name}")

    def registers(self) -> None:
        """Sums, and factors that are taken from registers."""
        spread = f"waves ({self.groups[0]}, {self.groups[1]})"
        name = self.atom.name
        self.line(f"%rc = alloc register {self.total} ({self.m}, {self.n}) as {name}.c {spread}")
        if self.from_registers:
            self.line(f"%ra = alloc register {self.kind} ({self.m}, {self.k}) as {name}.a {spread}")
        if self.lanes:
            self.line(f"%rb = alloc register {self.kind} ({self.k}, {self.n}) as {name}.b {spread}")

    def store(self) -> None:
        """The sums leave from registers."""
        self.line(f"%out = view %d (i {self.m}, j {self.n}) -> [t, i ?, j ?]")
        self.line("copy %rc -> %out")

    def alone(self) -> None:
        """All waves bring and multiply."""
        self.alloc("as", self.m, self.turned_a)
        self.alloc("bs", self.n, self.turned_b)
        self.line(f"tasks t in 0..{self.tasks}{self.rng.choice(('', ' schedule contiguous'))} {{")
        self.registers()
        self.line("fill %rc 0")
        self.line(f"for k in 0..{self.rounds} {{")
        self.line("barrier")
        self.bring("a", "as", self.m, self.turned_a, "")
        self.bring("b", "bs", self.n, self.turned_b, "")
        self.line("barrier")
        self.multiply("as", "bs")
        self.line("}")
        self.store()
        self.line("}")

    def with_roles(self) -> None:
        """One role brings, another multiplies."""
        stages = self.rng.randint(1, 3)
        self.alloc("as", self.m, self.turned_a, stages)
        self.alloc("bs", self.n, self.turned_b, stages)
        self.line(f"%ring = channel %as, %bs stages {stages} from producer to consumer")
        self.line("role producer waves 1 {")
        self.line(f"tasks t in 0..{self.tasks} {{")
        self.line(f"for k in 0..{self.rounds} {{")
        self.line("%sa, %sb = acquire %ring")
        self.bring("a", "sa", self.m, self.turned_a, " by tma.load")
        self.bring("b", "sb", self.n, self.turned_b, " by tma.load")
        self.line("commit %ring")
        for _ in range(3):
            self.line("}")
        self.line(f"role consumer waves {self.waves} {{")
        self.registers()
        self.line(f"tasks t in 0..{self.tasks} {{")
        self.line("fill %rc 0")
        self.line(f"for k in 0..{self.rounds} {{")
        self.line("%ta, %tb = wait %ring")
        self.multiply("ta", "tb")
        self.line("release %ring")
        self.line("}")
        self.store()
        self.line("}")
        self.line("}")

    def whole(self) -> tuple[str, dict[str, Array], dict[str, Array]]:
        """(text, arguments by name, what the output must be)."""
        (self.with_roles if self.ring else self.alone)()
        m, n, k = self.sizes
        shapes = {
            "a": (self.tasks, k, m) if self.turned_a else (self.tasks, m, k),
            "b": (self.tasks, k, n) if self.turned_b else (self.tasks, n, k),
        }
        given = [f"%{name}: in global {self.kind} ({', '.join(map(str, shape))})" for name, shape in shapes.items()]
        given.append(f"%d: out global {self.total} ({self.tasks}, {m}, {n})")
        head = f"block product_{self.seed}({', '.join(given)})\n  machine {self.machine}\n"
        head += "" if self.ring else f"  waves {self.waves}\n"
        draw = np.random.default_rng(self.seed)
        arrays = {name: draw.integers(-3, 4, shape) for name, shape in shapes.items()}
        a = arrays["a"].swapaxes(1, 2) if self.turned_a else arrays["a"]
        b = arrays["b"] if self.turned_b else arrays["b"].swapaxes(1, 2)
        wanted = (a @ b).astype(self.total.numpy)
        found = {name: array.astype(self.kind.numpy) for name, array in arrays.items()}
        found["d"] = np.full(wanted.shape, 77).astype(self.total.numpy)
        return head + "{\n" + "\n".join(self.lines) + "\n}\n", found, {"d": wanted}


def random_product_program(seed: int, name: str = "hopper") -> tuple[str, dict[str, Array], dict[str, Array]]:
    """(text, arguments by name, what the output must be)."""
    return Product(seed, name, list(machine(name).multiply.values())).whole()
