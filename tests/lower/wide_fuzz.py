"""Random tile programs with more of the language: products, running sums, loops that carry anything, conditions."""

from __future__ import annotations

from tile_fuzz import COLUMN, ROW, K, M, N, TileFuzz

from tilewright.algebra import symbol
from tilewright.ir.core import Block, Op, Program, TileType, Value
from tilewright.ir.tile import TILE

TILES = {"BLOCK_M": 2, "BLOCK_N": 3, "BLOCK_K": 4}


class WideFuzz(TileFuzz):
    """Values stay small integers: what grows is clamped."""

    def program(self) -> Program:
        made = super().program()
        made.records = [Op(TILE.records["tiling"], (), {"dim": d, "tile": symbol(f"BLOCK_{d}", 0)}) for d in (M, N, K)]
        made.bindings = {symbol(name, 0): size for name, size in TILES.items()}
        return made

    def step(self, depth: int) -> None:
        kind = self.rng.choice(["plain", "plain", "mma", "scan", "permute", "carry", "when", "store", "gather"])
        if kind == "plain" or (kind in ("carry", "when") and depth < 1):
            super().step(0)
        else:
            getattr(self, kind)(depth)

    def clamped(self, value: Value) -> Value:
        low, high = (self.builder.emit("scalar", (), {"value": n, "dtype": self.dtype}).result for n in (-8, 8))
        found = self.builder.emit("minimum", (value, high)).result
        return self.builder.emit("maximum", (found, low)).result

    def mma(self, depth: int) -> None:
        a, b = self.clamped(self.over((M, N), self.pick())), self.clamped(self.over((K, N), self.pick()))
        start = self.over(self.rng.choice([(M, K), (K, M)]), self.pick())
        self.keep(self.clamped(self.builder.emit("mma", (a, b, self.clamped(start))).result))

    def scan(self, depth: int) -> None:
        value = self.clamped(self.pick())
        if value.type.dims:
            dim = self.rng.choice(value.type.dims)
            name = self.rng.choice(["cumsum", "cummax", "cummin"])
            self.keep(self.clamped(self.builder.emit(name, (value,), {"dim": dim}).result))

    def permute(self, depth: int) -> None:
        value = self.pick()
        dims = list(value.type.dims)
        self.rng.shuffle(dims)
        self.keep(self.builder.emit("permute", (value,), {"to": tuple(dims)}).result)

    def inner(self, args: tuple[Value, ...], steps: int, depth: int) -> Block:
        """A block of steps; what they make is not known outside."""
        body = Block(args)
        self.builder.blocks.append(body)
        known = list(self.pool)
        self.pool += args
        for _ in range(steps):
            self.step(depth - 1)
        self._results = [self.clamped(self.over(a.type.dims, self.pick())) for a in self.wanted]
        self.builder.emit("yield", tuple(self._results))
        self.builder.blocks.pop()
        self.pool = known
        return body

    def carry(self, depth: int) -> None:
        axis = self.rng.choice([M, N, K])
        rest = [d for d in (M, N, K) if d is not axis]
        dims = [self.rng.choice([(rest[0],), tuple(rest), (rest[1], rest[0])]) for _ in range(self.rng.randint(1, 3))]
        starts = [self.over(d, self.pick()) for d in dims]
        args = tuple(Value(s.type) for s in starts)
        self.wanted = args
        body = self.inner(args, self.rng.randint(1, 4), depth)
        found = self.builder.emit("iterate", tuple(starts), {"axis": axis}, None, (body,))
        for value in found.results:
            self.keep(value)

    def when(self, depth: int) -> None:
        a, b = self.over((M, N), self.pick()), self.over((M, N), self.pick())
        condition = self.builder.emit("lt", (a, b)).result
        otherwise = self.over((M, N), self.pick())
        self.wanted = (otherwise,)
        body = self.inner((), self.rng.randint(1, 3), 0)
        found = self.builder.emit("conditional", (condition, otherwise), {}, None, (body,))
        self.keep(found.results[0])

    def store(self, depth: int) -> None:
        """A write on the way, with or without a mapping; the last write of the program overwrites it."""
        value = self.over((M, N), self.pick())
        attrs = self.rng.choice(
            [{}, {"over": (ROW, COLUMN), "at": (ROW, N - 1 - COLUMN)}, {"over": (ROW, COLUMN), "at": (ROW + 1, COLUMN)}]
        )
        self.builder.emit("write", (value, self.memory[3]), dict(attrs))

    def gather(self, depth: int) -> None:
        """Rows of a chosen by a tile over M, brought into range."""
        from tilewright.ir import dtypes

        index = self.builder.emit("cast", (self.over((M,), self.pick()),), {"dtype": dtypes.i32}).result
        row = symbol("row_of_data")
        attrs = {"over": (ROW, COLUMN), "lookups": ((row, (ROW,)),), "at": (row, COLUMN), "otherwise": 5}
        kind = TileType(self.dtype, (M, N))
        self.keep(self.builder.emit("read", (self.memory[0], index), attrs, (kind,)).result)
