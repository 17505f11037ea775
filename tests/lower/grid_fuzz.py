"""Random grid programs: workgroups with starts, counts and orders of their own, their ids in code, shared memory."""

from __future__ import annotations

from tile_fuzz import COLUMN, ROW, K, M, N
from wide_fuzz import WideFuzz

from tilewright.algebra.expr import as_expr
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.ir.tile import TILE
from tilewright.lang.symbols import WORKGROUPS


class GridFuzz(WideFuzz):
    """A program of the wider fuzz under random constraints; it reads its output too."""

    def program(self) -> Program:
        made = super().program()
        places = self.rng.sample(range(3), 3)
        for d in self.rng.sample([M, N, K], self.rng.randint(1, 3)):
            grid = places.pop()
            attrs = {"dim": d, "tile": self.rng.choice([1, 2, 3, 4, 8]), "grid": grid}
            how = self.rng.random()
            if len(places) == 2:  # one start is said, so that it is a grid program
                attrs["start"] = attrs["tile"] * WORKGROUPS[grid]
            elif how < 0.2:
                attrs["start"] = self.rng.choice([2 * WORKGROUPS[grid], (3 * WORKGROUPS[grid]) % 4])
            if how < 0.3:
                attrs["iters"] = self.rng.randint(1, 4)
            attrs = {k: v if k == "grid" else as_expr(v) for k, v in attrs.items()}
            made.records.append(Op(TILE.records["workgroup"], (), attrs))
        return made

    def step(self, depth: int) -> None:
        kind = self.rng.choice(["wide", "wide", "wide", "wide", "id", "shared", "again"])
        if kind == "wide":
            super().step(depth)
        elif kind == "id":
            value = self.rng.choice([WORKGROUPS[0], WORKGROUPS[1] * 2 - WORKGROUPS[2], WORKGROUPS[0] % 2 + N])
            self.keep(self.builder.emit("scalar", (), {"value": value, "dtype": self.dtype}).result)
        elif kind == "shared":
            memory = self.builder.emit("allocate", (), {}, (MemoryType(self.dtype, (M, N), "shared"),)).result
            value = self.over((M, N), self.pick())
            self.builder.emit("write", (value, memory))
            turned = {"over": (ROW, COLUMN), "at": (ROW, N - 1 - COLUMN)}
            kind_of = TileType(self.dtype, (M, N))
            self.keep(self.builder.emit("read", (memory,), self.rng.choice([{}, {}, turned]), (kind_of,)).result)
        else:
            kind_of = TileType(self.dtype, (M, N))
            self.keep(self.clamped(self.builder.emit("read", (self.memory[3],), {}, (kind_of,)).result))
