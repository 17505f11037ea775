"""Random tile programs, for round trips and for comparing executions."""

from __future__ import annotations

import random

from tilewright.algebra import symbol
from tilewright.ir import dtypes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, MemoryType, Program, TileType, Value
from tilewright.ir.tile import BINARY, COMPARISONS, REDUCTIONS, TILE

M, N, K = (symbol(name, 0) for name in "MNK")
ROW, COLUMN = symbol("it0", 0), symbol("it1", 0)
SIZES = {M: 5, N: 7, K: 4}


class TileFuzz:
    """Builds a random valid program over small integers in f32 or i32."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.builder = Builder(TILE)
        self.dtype = self.rng.choice([dtypes.f32, dtypes.i32, dtypes.f16])
        self.pool: list[Value] = []

    def program(self) -> Program:
        args = tuple(
            Value(MemoryType(self.dtype, dims), name)
            for name, dims in (("a", (M, N)), ("b", (N, K)), ("c", (M,)), ("out", (M, N)))
        )
        self.memory = args
        body = Block()
        self.builder.blocks.append(body)
        for _ in range(self.rng.randint(2, 10)):
            self.step(1)
        value = self.over((M, N), self.pick())
        self.builder.emit("write", (value, args[3]))
        self.builder.blocks.pop()
        tiling = {"dim": K, "tile": symbol("BLOCK_K", 0)}
        from tilewright.ir.core import Op

        records = [Op(TILE.records["tiling"], (), tiling), Op(TILE.records["hardware"], (), {"threads": 64})]
        return Program(TILE, f"fuzz{self.rng.randint(0, 9)}", args, body, records, {symbol("BLOCK_K", 0): K})

    def pick(self) -> Value:
        if not self.pool or self.rng.random() < 0.3:
            return self.read()
        return self.rng.choice(self.pool)

    def keep(self, value: Value) -> Value:
        self.pool.append(value)
        return value

    def read(self) -> Value:
        source = self.rng.choice(self.memory[:3])
        kind = source.type
        if len(kind.dims) == 2 and self.rng.random() < 0.4:
            first, second = kind.dims
            at = self.rng.choice(
                [(ROW, COLUMN), ((ROW + 1) % first, COLUMN), (ROW // 2, second - 1 - COLUMN), (ROW - 1, COLUMN + 1)]
            )
            attrs = {"over": (ROW, COLUMN), "at": at}
            if at == (ROW - 1, COLUMN + 1):
                attrs["otherwise"] = self.rng.choice([0, 3, -2])
            dims = kind.dims
            return self.keep(self.builder.emit("read", (source,), attrs, (TileType(self.dtype, dims),)).result)
        return self.keep(self.builder.emit("read", (source,), {}, (TileType(self.dtype, kind.dims),)).result)

    def over(self, dims, value: Value) -> Value:
        """The value brought to these dimensions: surplus ones summed away, missing ones broadcast."""
        for d in value.type.dims:
            if d not in dims:
                value = self.builder.emit("max", (value,), {"dim": d}).result
        if value.type.dims != dims:
            value = self.builder.emit("broadcast", (value,), {"to": dims}).result
        if value.type.dtype is not self.dtype:
            value = self.builder.emit("cast", (value,), {"dtype": self.dtype}).result
        return value

    def step(self, depth: int) -> None:
        kind = self.rng.choice(
            ["binary", "binary", "unary", "reduce", "compare", "scalar", "fill", "select", "loop", "index"]
        )
        emit = self.builder.emit
        if kind == "binary":
            name = self.rng.choice([n for n in BINARY if n in ("add", "sub", "maximum", "minimum")])
            a, b = self.pick(), self.pick()
            self.keep(emit(name, (a, b)).result)
        elif kind == "unary":
            self.keep(emit(self.rng.choice(["neg", "abs", "relu"]), (self.pick(),)).result)
        elif kind == "reduce":
            value = self.pick()
            if value.type.dims:
                name = self.rng.choice([r for r in REDUCTIONS if r != "prod"])
                self.keep(emit(name, (value,), {"dim": self.rng.choice(value.type.dims)}).result)
        elif kind == "compare":
            a, b = self.pick(), self.pick()
            found = emit(self.rng.choice(COMPARISONS), (a, b)).result
            self.keep(emit("cast", (found,), {"dtype": self.dtype}).result)
        elif kind == "scalar":
            attrs = {"value": self.rng.choice([1, 2, -1, M, N + 1]), "dtype": self.dtype}
            self.keep(emit("scalar", (), attrs).result)
        elif kind == "fill":
            number = self.rng.choice([0, 1, -3] if not self.dtype.is_float else [0.0, 1.5, -2.0])
            self.keep(emit("fill", (), {"value": number}, (TileType(self.dtype, (N, M)),)).result)
        elif kind == "select":
            a, b, c = self.pick(), self.pick(), self.pick()
            condition = emit("lt", (a, b)).result
            self.keep(emit("select", (condition, b, c)).result)
        elif kind == "index":
            found = emit("self_index", (), {"dim": self.rng.choice([M, N, K]), "dtype": dtypes.i32}).result
            self.keep(emit("cast", (found,), {"dtype": self.dtype}).result)
        elif kind == "loop" and depth > 0:
            start = emit("fill", (), {"value": 0}, (TileType(self.dtype, (N,)),)).result
            arg = Value(start.type)
            body = Block((arg,))
            self.builder.blocks.append(body)
            tile = emit("read", (self.memory[1],), {}, (TileType(self.dtype, (N, K)),)).result
            total = emit("sum", (tile, arg), {"dim": K, "acc": True}).result
            emit("yield", (total,))
            self.builder.blocks.pop()
            self.keep(emit("iterate", (start,), {"axis": K}, None, (body,)).result)
