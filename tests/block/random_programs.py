"""Random valid block programs of one role, with what must come out of them.

A program is built together with its model: every statement is text, and a function on numpy arrays of whole numbers
that does the same. All numbers stay so small that every element type that occurs holds them, so results are exact
whatever the types are, and `random_block_program` can try any implementation of the block level.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.ir import dtypes

Array = np.ndarray[Any, np.dtype[Any]]
Env = dict[str, Any]  # arrays by tensor name, numbers by loop variable
Run = Callable[[Env], None]

CAPS = {"f32": 1 << 20, "i32": 1 << 20, "f64": 1 << 20, "i64": 1 << 20, "bf16": 200, "f16": 1000, "i8": 100}
COMMON = ("f32", "i32", "f32", "i32", "bf16", "f16", "i8", "i64", "f64")
LETTERS = "ijhg"


@dataclass(eq=False)
class Tensor:
    """A tensor of the program; no element of it is ever larger than `limit`."""

    name: str
    space: str
    dtype: str
    shape: tuple[int, ...]
    limit: int
    spread: str = ""

    @property
    def registers(self) -> bool:
        return self.space == "register"


@dataclass
class Part:
    """A source or target of an operation: the name in the text, and how to read or write it in the model."""

    name: str
    base: Tensor
    shape: tuple[int, ...]
    read: Callable[[Env, int], Array]
    write: Callable[[Env, Array], None]
    loose: bool = False


@dataclass
class Term:
    """A formula: its text, its value, and the largest it can be."""

    text: str
    value: Callable[[Env, dict[str, Any]], Any]
    most: int


class Modes:
    """A distribution by its modes: (dimension, size, stride within it), of threads and of values."""

    def __init__(self, shape: tuple[int, ...], threads: list[tuple[int, int, int]], values: list[tuple[int, int, int]]):
        self.shape, self.threads, self.values = shape, threads, values

    def __str__(self) -> str:
        steps = [prod(self.shape[:d]) for d in range(len(self.shape))]

        def side(modes: list[tuple[int, int, int]]) -> tuple[str, str]:
            sizes = [str(n) for _, n, _ in modes] or ["1"]
            strides = [str(0 if d < 0 else s * steps[d]) for d, _, s in modes] or ["0"]
            if len(sizes) == 1:
                return sizes[0], strides[0]
            return f"({','.join(sizes)})", f"({','.join(strides)})"

        (thread, by), (value, to) = side(self.threads), side(self.values)
        return f"({thread},{value}):({by},{to})"

    def without(self, along: int) -> Modes:
        """The distribution of a tensor without a dimension, each lane holding what it needs to repeat it."""
        shape = self.shape[:along] + self.shape[along + 1 :]

        def moved(mode: tuple[int, int, int]) -> tuple[int, int, int]:
            dim, size, stride = mode
            return (-1, size, 0) if dim in (along, -1) else (dim - (dim > along), size, stride)

        return Modes(shape, [moved(m) for m in self.threads], [moved(m) for m in self.values if m[0] != along])


def random_modes(rng: random.Random, shape: tuple[int, ...], waves: int = 1) -> Modes:
    """A random distribution: every prime factor of every dimension is a mode of threads or of values."""
    modes = []
    for dim, size in enumerate(shape):
        stride = 1
        for p in (2, 3, 5, 7, 11, 13):
            while size % p == 0:
                modes.append((dim, p, stride))
                size, stride = size // p, stride * p
        if size > 1:
            modes.append((dim, size, stride))
    rng.shuffle(modes)
    cut = rng.randint(0, len(modes))
    threads, values = modes[:cut], modes[cut:]
    if rng.random() < 0.3:
        threads.insert(rng.randint(0, len(threads)), (-1, 2, 0))
    if prod(m[1] for m in threads) % waves:
        threads.append((-1, waves, 0))
    return Modes(shape, threads, values)


class Writer:
    """Builds one program."""

    def __init__(self, seed: int, waves: int = 1):
        self.rng = random.Random(seed)
        self.waves = waves
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.scope: list[Tensor] = []
        self.modes: dict[str, Modes] = {}
        self.numbers: dict[str, tuple[int, int]] = {}  # loop variables in scope: the least and the largest value
        self.steps: list[Run] = []
        self.loops = 0

    # -- text ---------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def new(self, letter: str = "v") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def barrier(self) -> None:
        if self.waves > 1:
            self.line("barrier")

    # -- tensors ------------------------------------------------------------------------------------

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((1, 2, 2, 2, 3)) if rank is None else rank
        return tuple(self.rng.choice((1, 2, 3, 4, 4, 5, 6, 8)) for _ in range(rank))

    def alloc(self, shape: tuple[int, ...], dtype: str, space: str | None = None, modes: Modes | None = None) -> Tensor:
        space = space or self.rng.choice(("shared", "shared", "register"))
        limit = min(CAPS[dtype], self.rng.choice((60, 100, 1000, 5000)))
        name = self.new("r" if space == "register" else "s")
        spread = ""
        text = f"{space} {dtype} ({', '.join(map(str, shape))})"
        if space == "register":
            if modes is None:
                known = [m for m in self.modes.values() if m.shape == shape]
                modes = (
                    self.rng.choice(known) if known and self.chance(0.6) else random_modes(self.rng, shape, self.waves)
                )
            spread = str(modes)
            self.modes[spread] = modes
            text += f" by {spread}"
        else:
            text += self.strides(shape)
        self.line(f"%{name} = alloc {text}")
        made = Tensor(name, space, dtype, shape, limit, spread)
        self.steps.append(lambda env: env.__setitem__(name, np.zeros(shape, np.int64)))
        return made

    def strides(self, shape: tuple[int, ...]) -> str:
        """Nothing, strides in another order or with gaps, perhaps a swizzle."""
        text = ""
        if self.chance(0.4):
            order = list(range(len(shape)))
            self.rng.shuffle(order)
            steps, running = [0] * len(shape), 1
            for dim in order:
                steps[dim] = running
                running *= shape[dim] + self.rng.choice((0, 0, 1, 3))
            text = f":({', '.join(map(str, steps))})"
        if self.chance(0.25):
            bits = self.rng.randint(1, 2)
            text += f" swizzle <{bits},{self.rng.randint(0, 2)},{bits + self.rng.randint(0, 1)}>"
        return text

    def pick(self, wanted: Callable[[Tensor], bool]) -> Tensor | None:
        found = [t for t in self.scope if wanted(t)]
        return self.rng.choice(found) if found else None

    # -- parts --------------------------------------------------------------------------------------

    def whole(self, t: Tensor) -> Part:
        return Part(f"%{t.name}", t, t.shape, lambda env, _: env[t.name], lambda env, v: env[t.name].__setitem__((), v))

    def view(self, base: Tensor, shape: tuple[int, ...], at: list[tuple[str, bool]]) -> Part:
        """The view with these coordinates, in the text and in the model."""
        name, letters = self.new("w"), LETTERS[: len(shape)]
        over = ", ".join(f"{c} {n}" for c, n in zip(letters, shape, strict=True))
        self.line(f"%{name} = view %{base.name} ({over}) -> [{', '.join(e + ' ?' * loose for e, loose in at)}]")
        codes = [compile(e, e, "eval") for e, _ in at]

        def places(env: Env) -> tuple[tuple[Array, ...], Array]:
            values = {**env, **dict(zip(letters, np.indices(shape), strict=True))}
            found = [np.broadcast_to(np.asarray(eval(code, {"min": min, "max": max}, values)), shape) for code in codes]
            inside = np.ones(shape, bool)
            for c, n in zip(found, base.shape, strict=True):
                inside &= (c >= 0) & (c < n)
            return tuple(np.where(inside, c, 0) for c in found), inside

        def read(env: Env, otherwise: int) -> Array:
            found, inside = places(env)
            return np.where(inside, env[base.name][found], otherwise)

        def write(env: Env, values: Array) -> None:
            found, inside = places(env)
            if inside.any():
                env[base.name][tuple(c[inside] for c in found)] = np.broadcast_to(values, shape)[inside]

        return Part(f"%{name}", base, shape, read, write, any(loose for _, loose in at))

    def number_in(self, size: int) -> str:
        """A coordinate that lies in 0..size: a constant, or a loop variable."""
        names = [n for n, (lo, hi) in self.numbers.items() if lo >= 0 and hi < size]
        if names and self.chance(0.5):
            return self.rng.choice(names)
        return str(self.rng.randrange(size))

    def source(self, base: Tensor, shape: tuple[int, ...], loose: bool) -> Part:
        """A view of that shape for reading: coordinates may be repeated, left out, reversed, shifted."""
        at = []
        for n in base.shape:
            fits = [(c, s) for c, s in zip(LETTERS, shape, strict=False) if s <= n]
            every = list(zip(LETTERS, shape, strict=False))
            kind = self.rng.random()
            if loose and every and kind < 0.5:
                c, s = self.rng.choice(every)
                form = self.rng.choice(
                    (f"{c} + {self.rng.randint(-2, 3)}", f"2*{c} - {self.rng.randint(0, 3)}", f"{n} - {c}")
                )
                if self.numbers and self.chance(0.4):
                    form += f" + {self.rng.choice(list(self.numbers))}"
                at.append((form, True))
            elif fits and kind < 0.9:
                c, s = self.rng.choice(fits)
                offset = self.rng.randint(0, n - s)
                forms = [f"{c} + {offset}", f"{c}", f"{n - 1} - {c}", f"{c}//2", f"({c} + {offset})%{n}"]
                if 2 * (s - 1) < n:
                    forms.append(f"2*{c}")
                if self.numbers:
                    forms.append(f"({c} + {self.rng.choice(list(self.numbers))})%{n}")
                at.append((self.rng.choice(forms), False))
            else:
                at.append((self.number_in(n), False))
        return self.view(base, shape, at)

    def target(self, base: Tensor, loose: bool = True) -> Part:
        """A part of a tensor for writing: every element once."""
        at, shape = [], []
        dims = list(range(len(base.shape)))
        used = dims if self.chance(0.6) else self.rng.sample(dims, self.rng.randint(1, len(dims)))
        order = list(used)
        self.rng.shuffle(order)
        letter = {dim: LETTERS[place] for place, dim in enumerate(order)}
        sizes = {}
        for dim, n in enumerate(base.shape):
            if dim not in letter:
                at.append((self.number_in(n), False))
                continue
            size = sizes[dim] = self.rng.randint(1, n)
            offset, c = self.rng.randint(0, n - size), letter[dim]
            forms = [
                (f"{c} + {offset}", False),
                (f"{offset + size - 1} - {c}", False),
                (f"({c} + {offset})%{n}", False),
            ]
            if 2 * (size - 1) < n:
                forms.append((f"2*{c}", False))
            if loose:
                forms += [(f"{c} + {self.rng.randint(-2, 2)}", True), (f"{self.rng.randint(0, n)} - {c}", True)]
            at.append(self.rng.choice(forms))
        shape = tuple(sizes[dim] for dim in order)
        return self.view(base, shape, at)

    def readable(self, shape: tuple[int, ...], dtype: str, loose: bool, not_in: Tensor | None = None) -> Part | None:
        """Something of that shape and type to read: memory, whole or through a view."""
        exact = [t for t in self.scope if not t.registers and t.shape == shape and t.dtype == dtype and t is not not_in]
        if exact and self.chance(0.5):
            return self.whole(self.rng.choice(exact))
        base = self.pick(lambda t: not t.registers and t.dtype == dtype and t is not not_in)
        return None if base is None else self.source(base, shape, loose)

    # -- formulas -----------------------------------------------------------------------------------

    def clamped(self, term: Term, limit: int) -> Term:
        if term.most <= limit:
            return term
        value = term.value
        return Term(
            f"maximum(minimum({term.text}, {limit}), -{limit})",
            lambda env, own: np.clip(value(env, own), -limit, limit),
            limit,
        )

    def term(self, dtype: str, parts: list[Part], shape: tuple[int, ...], depth: int) -> Term:
        cap = CAPS[dtype]
        if depth == 0 or self.chance(0.2):
            return self.leaf(dtype, parts, shape)
        a = self.term(dtype, parts, shape, depth - 1)
        b = self.term(dtype, parts, shape, depth - 1)
        av, bv = a.value, b.value
        kind = self.rng.choice(
            ("add", "sub", "mul", "max", "min", "abs", "neg", "relu", "select", "bits", "divide", "call")
        )
        found: Term
        match kind:
            case "add":
                found = Term(f"({a.text} + {b.text})", lambda e, o: av(e, o) + bv(e, o), a.most + b.most)
            case "sub":
                found = Term(f"({a.text} - {b.text})", lambda e, o: av(e, o) - bv(e, o), a.most + b.most)
            case "mul" if a.most * b.most <= cap:
                found = Term(f"({a.text}*{b.text})", lambda e, o: av(e, o) * bv(e, o), a.most * b.most)
            case "max":
                found = Term(
                    f"maximum({a.text}, {b.text})", lambda e, o: np.maximum(av(e, o), bv(e, o)), max(a.most, b.most)
                )
            case "min":
                found = Term(
                    f"minimum({a.text}, {b.text})", lambda e, o: np.minimum(av(e, o), bv(e, o)), max(a.most, b.most)
                )
            case "abs" if parts:
                c = self.leaf(dtype, parts, shape, only_parts=True)
                found = Term(f"abs({c.text})", lambda e, o: np.abs(c.value(e, o)), c.most)
            case "neg":
                found = Term(f"(-{a.text})", lambda e, o: -av(e, o), a.most)
            case "relu" if parts:
                c = self.leaf(dtype, parts, shape, only_parts=True)
                found = Term(f"relu({c.text})", lambda e, o: np.maximum(c.value(e, o), 0), c.most)
            case "select":
                test, true = self.condition(dtype, parts, shape)
                found = Term(
                    f"select({test}, {a.text}, {b.text})",
                    lambda e, o: np.where(true(e, o), av(e, o), bv(e, o)),
                    max(a.most, b.most),
                )
            case "bits" if dtype in ("i32", "i64"):
                name, function = self.rng.choice(
                    (("and_", np.bitwise_and), ("or_", np.bitwise_or), ("xor", np.bitwise_xor))
                )
                most = 1 << max(a.most, b.most).bit_length()
                found = Term(
                    f"{name}({a.text}, {b.text})",
                    lambda e, o: function(np.asarray(av(e, o)), np.asarray(bv(e, o))),
                    most,
                )
            case "divide" if dtype in ("i32", "i64"):
                by = self.rng.randint(1, 7)
                if self.chance(0.5):
                    found = Term(f"floordiv({a.text}, {by})", lambda e, o: np.floor_divide(av(e, o), by), a.most + 1)
                else:
                    found = Term(f"mod({a.text}, {by})", lambda e, o: np.mod(av(e, o), by), by)
            case _:
                return a
        return self.clamped(found, cap)

    def condition(self, dtype: str, parts: list[Part], shape: tuple[int, ...]) -> tuple[str, Callable[..., Any]]:
        sign = self.rng.choice(("<", "<=", ">", ">=", "==", "!="))
        if shape and self.chance(0.4):
            text, _, _ = self.index(shape)
            other = self.rng.randint(0, 6)
            test = compile(f"({text}) {sign} {other}", text, "eval")
            return f"[{text} {sign} {other}]", lambda e, o: eval(test, {}, {**e, **o})
        a, b = self.leaf(dtype, parts, shape), self.leaf(dtype, parts, shape)
        functions = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
        compare = functions.get(sign) or (np.equal if sign == "==" else np.not_equal)
        return f"{a.text} {sign} {b.text}", lambda e, o: compare(a.value(e, o), b.value(e, o))

    def index(self, shape: tuple[int, ...]) -> tuple[str, Any, int]:
        """An integer expression of the coordinates and loop variables, and the largest it can be."""
        c = self.rng.randrange(len(shape))
        text, most = LETTERS[c], shape[c] - 1
        if self.chance(0.5):
            factor = self.rng.randint(-3, 3)
            text, most = f"{factor}*{text}", abs(factor) * most
        if self.numbers and self.chance(0.5):
            name = self.rng.choice(list(self.numbers))
            text, most = f"{text} + {name}", most + max(map(abs, self.numbers[name]))
        if self.chance(0.4):
            text = f"({text})%{self.rng.randint(1, 5)}"
            most += 5
        return text, compile(text, text, "eval"), most

    def leaf(self, dtype: str, parts: list[Part], shape: tuple[int, ...], only_parts: bool = False) -> Term:
        usable = [(k, p) for k, p in enumerate(parts) if p.base.dtype == dtype or p.base.limit <= CAPS[dtype]]
        kind = self.rng.random()
        if usable and (kind < 0.7 or only_parts):
            place, part = self.rng.choice(usable)
            text = part.name if part.base.dtype == dtype else f"{dtype}({part.name})"
            return Term(text, lambda e, o: o[f"%{place}"], part.base.limit)
        if shape and kind < 0.85 and not only_parts:
            text, code, most = self.index(shape)
            if most <= CAPS[dtype]:
                return Term(f"{dtype}([{text}])", lambda e, o: eval(code, {}, {**e, **o}), most)
        number = self.rng.randint(-5, 9)
        return Term(str(number) if number >= 0 else f"({number})", lambda e, o: number, abs(number))

    # -- statements -----------------------------------------------------------------------------------

    def statement(self) -> None:
        kinds = [self.fill, self.copy, self.copy, self.map, self.map, self.map, self.reduce, self.scan, self.broadcast]
        kinds += [self.convert, self.gather, self.scatter, self.atomic, self.argmax]
        if self.loops < 2:
            kinds += [self.for_, self.if_, self.while_]
        if self.waves == 1:
            kinds += [self.bitcast, self.mma, self.defer, self.log]
        self.rng.choice(kinds)()
        self.barrier()

    def fresh(self, shape: tuple[int, ...] | None = None, dtype: str | None = None, space: str | None = None) -> Tensor:
        """A new tensor that is completely written by what follows."""
        t = self.alloc(self.shape() if shape is None else shape, dtype or self.rng.choice(COMMON), space)
        self.barrier()
        return t

    def old_or_new(
        self, shape: tuple[int, ...], dtype: str, limit: int = 0, space: str | None = None
    ) -> tuple[Tensor, bool]:
        """A tensor to write to as a whole, and whether it is new."""

        def wanted(t: Tensor) -> bool:
            return (
                (t.shape, t.dtype) == (shape, dtype)
                and t.space != "global"
                and t.limit >= limit
                and space in (None, t.space)
            )

        found = self.pick(wanted)
        if found is not None and self.chance(0.5):
            return found, False
        made = self.fresh(shape, dtype, space)
        made.limit = max(made.limit, min(limit, CAPS[dtype]))
        return made, True

    def keep(self, t: Tensor) -> None:
        if t not in self.scope:
            self.scope.append(t)

    def fill(self) -> None:
        t = self.pick(lambda t: t.space != "global")
        if t is None or self.chance(0.3):
            t = self.fresh()
            self.keep(t)
            part = self.whole(t)
        else:
            part = self.whole(t) if t.registers or not t.shape or self.chance(0.5) else self.target(t)
        value = self.rng.randint(-min(9, t.limit), min(9, t.limit))
        self.line(f"fill {part.name} {value}")
        self.steps.append(lambda env: part.write(env, np.asarray(value)))

    def copy(self) -> None:
        """Into memory (whole or part of it) or registers, from memory or registers."""
        old = self.pick(lambda t: t.space == "shared" and len(t.shape) > 0)
        if old is not None and self.chance(0.4):
            into = self.target(old)
        else:
            base = self.pick(lambda t: not t.registers)
            assert base is not None
            made = self.fresh(self.shape(), base.dtype)
            made.limit = CAPS[made.dtype]
            into = self.whole(made)
        dtype = into.base.dtype
        held = self.pick(
            lambda t: t.registers and (t.shape, t.dtype) == (into.shape, dtype) and t.limit <= into.base.limit
        )
        if held is not None and not (into.base.registers and into.base.spread != held.spread) and self.chance(0.7):
            source: Part | None = self.whole(held)
        else:
            source = self.readable(into.shape, dtype, loose=True, not_in=into.base)
        if source is None or source.base.limit > into.base.limit:
            self.line(f"fill {into.name} 1")
            self.steps.append(lambda env: into.write(env, np.asarray(1)))
        else:
            read, otherwise = source.read, self.rng.randint(-7, 7)
            tail = f" else {otherwise}" if source.loose else ""
            self.line(f"copy {source.name} -> {into.name}{tail}{self.rng.choice(('', '', ' stream 1'))}")
            self.steps.append(lambda env: into.write(env, read(env, otherwise)))
        self.keep(into.base)

    def map(self) -> None:
        shape = self.rng.choice([t.shape for t in self.scope]) if self.chance(0.8) else self.shape()
        dtype = self.rng.choice(COMMON)
        into, new = self.old_or_new(shape, dtype)
        parts: list[Part] = []
        spread = into.spread
        for _ in range(self.rng.randint(0, 3)):
            held = [t for t in self.scope if t.registers and t.shape == shape and spread in ("", t.spread)]
            if new:
                held = [t for t in held if t is not into]
            if held and self.chance(0.6):
                t = self.rng.choice(held)
                spread = t.spread
                parts.append(self.whole(t))
                continue
            found = self.readable(shape, self.rng.choice(COMMON), loose=False, not_in=into)
            if found is not None:
                parts.append(found)
        if not new and self.chance(0.5):
            parts.append(self.whole(into))
        term = self.clamped(self.term(dtype, parts, shape, self.rng.randint(0, 3)), into.limit)
        over = ""
        if shape and any(f"[{c}" in term.text or f"*{c}" in term.text or f"({c}" in term.text for c in LETTERS):
            over = " over (" + ", ".join(f"{c} {n}" for c, n in zip(LETTERS, shape, strict=False)) + ")"
        self.line(f"map{over} %{into.name} = {term.text}")
        part, value = self.whole(into), term.value

        def run(env: Env) -> None:
            own: dict[str, Any] = {f"%{k}": p.read(env, 0) for k, p in enumerate(parts)}
            own |= dict(zip(LETTERS, np.indices(shape), strict=False))
            part.write(env, np.broadcast_to(value(env, own), shape))

        self.steps.append(run)
        self.keep(into)

    def along(self, rank: int = 1) -> tuple[Part, int] | None:
        t = self.pick(lambda t: len(t.shape) >= rank)
        if t is None:
            return None
        dim = self.rng.randrange(len(t.shape))
        if not t.registers and self.chance(0.3):
            shape = tuple(self.rng.randint(1, n) for n in t.shape)
            return self.source(t, shape, loose=False), dim
        return self.whole(t), dim

    def reduce(self) -> None:
        found = self.along()
        if found is None:
            return
        part, dim = found
        how = self.rng.choice(("sum", "max", "min", "prod"))
        n = part.shape[dim]
        most = part.base.limit * n if how == "sum" else part.base.limit**n if how == "prod" else part.base.limit
        if most > CAPS[part.base.dtype]:
            how, most = "max", part.base.limit
        shape = part.shape[:dim] + part.shape[dim + 1 :]
        into, new = self.old_or_new(shape, part.base.dtype, most)
        if into is part.base or into.limit < most:
            return
        accumulate = not new and how in ("max", "min") and self.chance(0.6)
        tail = " accumulate" if accumulate else ""
        self.line(f"reduce {part.name} -> %{into.name} along {dim} with {how}{tail}")
        function = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[how]
        target = self.whole(into)

        def run(env: Env) -> None:
            total = function.reduce(part.read(env, 0), axis=dim)
            target.write(env, function(env[into.name], total) if accumulate else total)

        self.steps.append(run)
        self.keep(into)

    def argmax(self) -> None:
        """The largest element and its place, as a reduction of pairs."""
        values = self.pick(lambda t: len(t.shape) >= 1)
        if values is None:
            return
        dim = self.rng.randrange(len(values.shape))
        places = self.fresh(values.shape, "i32", "register" if values.registers else "shared")
        places.limit = max(places.limit, 100)
        letters = LETTERS[: len(values.shape)]
        over = ", ".join(f"{c} {n}" for c, n in zip(letters, values.shape, strict=True))
        self.line(f"map over ({over}) %{places.name} = i32([{letters[dim]}])")
        at = self.whole(places)
        self.steps.append(lambda env: at.write(env, np.indices(values.shape)[dim]))
        self.barrier()
        self.keep(places)
        shape = values.shape[:dim] + values.shape[dim + 1 :]
        scan = self.chance(0.3)
        top = self.fresh(values.shape if scan else shape, values.dtype)
        place = self.fresh(values.shape if scan else shape, "i32")
        top.limit, place.limit = values.limit, 100
        last = self.chance(0.5)
        test = "a0 > b0" if last else "a0 >= b0"
        self.line(
            f"{'scan' if scan else 'reduce'} %{values.name}, %{places.name} -> %{top.name}, %{place.name} along {dim} "
            f"with (select({test}, a0, b0), select({test}, a1, b1))"
        )

        def run(env: Env) -> None:
            data = np.moveaxis(env[values.name], dim, 0)
            best, where = data[0].copy(), np.zeros(data[0].shape, np.int64)
            tops, wheres = [best.copy()], [where.copy()]
            for k in range(1, data.shape[0]):
                better = data[k] >= best if last else data[k] > best
                best, where = np.where(better, data[k], best), np.where(better, k, where)
                tops.append(best)
                wheres.append(where)
            if scan:
                best, where = (np.moveaxis(np.stack(found), 0, dim) for found in (tops, wheres))
            env[top.name][...], env[place.name][...] = best, where

        self.steps.append(run)
        self.keep(top)
        self.keep(place)

    def scan(self) -> None:
        found = self.along()
        if found is None:
            return
        part, dim = found
        how = self.rng.choice(("sum", "max", "min"))
        most = part.base.limit * (part.shape[dim] if how == "sum" else 1)
        if most > CAPS[part.base.dtype]:
            how, most = "min", part.base.limit
        into, _ = self.old_or_new(part.shape, part.base.dtype, most)
        if into is part.base or into.limit < most:
            return
        exclusive = how == "sum" and self.chance(0.4)
        self.line(f"scan {part.name} -> %{into.name} along {dim} with {how}{' exclusive' * exclusive}")
        function: Any = {"sum": np.add, "max": np.maximum, "min": np.minimum}[how]
        target = self.whole(into)

        def run(env: Env) -> None:
            data = part.read(env, 0)
            running = function.accumulate(data, axis=dim)
            target.write(env, running - data if exclusive else running)

        self.steps.append(run)
        self.keep(into)

    def broadcast(self) -> None:
        """Along a new dimension; from registers, each lane repeats what it holds."""
        if self.chance(0.5):
            shape = self.shape(self.rng.choice((2, 3)))
            dim = self.rng.randrange(len(shape))
            modes = random_modes(self.rng, shape, self.waves)
            small = self.alloc(shape[:dim] + shape[dim + 1 :], "i32", "register", modes.without(dim))
            value = self.rng.randint(0, 9)
            index = " + ".join(LETTERS[: len(small.shape)])
            over = ", ".join(f"{c} {n}" for c, n in zip(LETTERS, small.shape, strict=False))
            self.line(f"map over ({over}) %{small.name} = i32([{index}]) + {value}")
            part = self.whole(small)
            self.steps.append(lambda env: part.write(env, sum(np.indices(small.shape)) + value))
            into = self.alloc(shape, "i32", "register", modes)
            self.keep(small)
        else:
            t = self.pick(lambda t: not t.registers and len(t.shape) < 3)
            if t is None:
                return
            dim = self.rng.randint(0, len(t.shape))
            part = self.whole(t)
            into = self.fresh((*t.shape[:dim], self.rng.randint(1, 6), *t.shape[dim:]), t.dtype)
        into.limit = max(into.limit, part.base.limit)
        self.line(f"broadcast {part.name} -> %{into.name} along {dim}")
        target = self.whole(into)
        self.steps.append(
            lambda env: target.write(env, np.broadcast_to(np.expand_dims(part.read(env, 0), dim), into.shape))
        )
        self.keep(into)

    def convert(self) -> None:
        t = self.pick(lambda t: t.registers)
        if t is None:
            return
        into = self.alloc(t.shape, t.dtype, "register", random_modes(self.rng, t.shape, self.waves))
        into.limit = max(t.limit, into.limit)
        self.line(f"convert_layout %{t.name} -> %{into.name}")
        self.steps.append(lambda env: env[into.name].__setitem__((), env[t.name]))
        self.keep(into)

    # -- places that are data ---------------------------------------------------------------------------

    def gather(self) -> None:
        memory = self.pick(lambda t: not t.registers and len(t.shape) >= 1)
        index = self.pick(lambda t: not t.registers and t.dtype in ("i32", "i8", "i64") and len(t.shape) >= 1)
        if memory is None or index is None:
            return
        tile = self.fresh(index.shape, memory.dtype)
        tile.limit = max(tile.limit, memory.limit)
        letters = LETTERS[: len(index.shape)]
        q, otherwise = self.new("q"), self.rng.randint(-3, 3)
        dim = self.rng.randrange(len(memory.shape))
        at = [self.number_in(n) for n in memory.shape]
        at[dim] = f"{q} + {self.rng.randint(-1, 2)}"
        over = ", ".join(f"{c} {n}" for c, n in zip(letters, index.shape, strict=True))
        places = ", ".join(e + " ?" * (k == dim) for k, e in enumerate(at))
        self.line(
            f"gather %{tile.name} ({over}), %{memory.name} where {q} = %{index.name}[{', '.join(letters)}] "
            f"-> [{places}] else {otherwise}"
        )

        def run(env: Env) -> None:
            found = [np.broadcast_to(eval(e, {}, {**env, q: env[index.name]}), index.shape) for e in at]
            inside = (found[dim] >= 0) & (found[dim] < memory.shape[dim])
            found[dim] = np.where(inside, found[dim], 0)
            env[tile.name][...] = np.where(inside, env[memory.name][tuple(found)], otherwise)

        self.steps.append(run)
        self.keep(tile)

    def scatter(self) -> None:
        """To places that a permutation gives: an argument."""
        size = 12
        tile = self.pick(lambda t: len(t.shape) == 1 and t.shape[0] <= size)
        if tile is None:
            return
        rows, waved = self.rng.randint(1, 3), self.waves > 1
        memory = self.fresh((rows, size), tile.dtype, "shared")
        memory.limit = CAPS[tile.dtype]
        self.line(f"fill %{memory.name} 0")
        if waved:
            self.barrier()
        row, q, shift = self.number_in(rows), self.new("q"), self.rng.choice((0, 0, 1, -3))
        self.line(
            f"scatter %{tile.name} (i {tile.shape[0]}), %{memory.name} where {q} = %perm[i] -> [{row}, {q} + {shift} ?]"
        )

        def run(env: Env) -> None:
            env[memory.name][...] = 0
            place = env["perm"][: tile.shape[0]] + shift
            inside = (place >= 0) & (place < size)
            env[memory.name][eval(row, {}, env), place[inside]] = env[tile.name][inside]

        self.steps.append(run)
        self.keep(memory)

    def atomic(self) -> None:
        tile = self.pick(lambda t: t.dtype == "i32" and len(t.shape) >= 1)
        if tile is None:
            return
        how = self.rng.choice(("add", "min", "max"))
        total = self.fresh((5,), "i32", "shared")
        total.limit = CAPS["i32"]
        self.line(f"fill %{total.name} 0")
        self.barrier()
        if tile.limit * prod(tile.shape) > CAPS["i32"]:
            how = "max"
        letters = LETTERS[: len(tile.shape)]
        over = ", ".join(f"{c} {n}" for c, n in zip(letters, tile.shape, strict=True))
        place = f"({' + '.join(letters)})%5"
        self.line(f"atomic {how} %{tile.name} ({over}), %{total.name} -> [{place}]")
        function = {"add": np.add, "min": np.minimum, "max": np.maximum}[how]

        def run(env: Env) -> None:
            env[total.name][...] = 0
            function.at(env[total.name], sum(np.indices(tile.shape)) % 5, env[tile.name])

        self.steps.append(run)
        self.keep(total)

    # -- the rest -----------------------------------------------------------------------------------------

    def block(self, count: int) -> list[Run]:
        """Statements of an inner block, and what they do."""
        outer, self.steps = self.steps, []
        scope = list(self.scope)
        self.depth += 1
        self.loops += 1
        self.barrier()
        for _ in range(count):
            self.statement()
        self.depth -= 1
        self.loops -= 1
        inner, self.steps = self.steps, outer
        self.scope = scope
        return inner

    def for_(self) -> None:
        name = self.new("k")
        lo, count, step = self.rng.randint(0, 2), self.rng.randint(1, 4), self.rng.choice((1, 1, 2))
        hi = lo + count
        upper = str(hi)
        if self.numbers and self.chance(0.3):
            other = self.rng.choice(list(self.numbers))
            upper = f"min({hi}, {other} + {lo + 1})"
        extra = self.rng.choice(("", "", " unroll")) if step == 1 else ""
        self.line(f"for {name} in {lo}..{upper}{f' step {step}' if step > 1 else ''}{extra} {{")
        self.numbers[name] = (lo, hi - 1)
        inner = self.block(self.rng.randint(1, 3))
        del self.numbers[name]
        self.line("}")
        code = compile(upper, upper, "eval")

        def run(env: Env) -> None:
            for k in range(lo, eval(code, {"min": min}, env), step):
                env[name] = k
                for action in inner:
                    action(env)
            env.pop(name, None)

        self.steps.append(run)

    def if_(self) -> None:
        name = self.rng.choice(list(self.numbers))
        test = self.rng.choice((f"{name} > 0", f"{name}%2 == 0", f"{name} < 2"))
        self.line(f"if ({test}) {{")
        yes, no = self.block(self.rng.randint(1, 2)), []
        if self.chance(0.5):
            self.line("} else {")
            no = self.block(self.rng.randint(1, 2))
        self.line("}")
        code = compile(test, test, "eval")

        def run(env: Env) -> None:
            for action in yes if eval(code, {}, env) else no:
                action(env)

        self.steps.append(run)

    def while_(self) -> None:
        rounds = self.rng.randint(0, 3)
        threads = self.waves
        name = self.new("n")
        self.line(f"%{name} = alloc register i32 () by ({threads},1):(0,0)")
        self.line(f"fill %{name} {rounds}")
        self.line(f"while %{name} {{")
        inner = self.block(self.rng.randint(1, 2))
        self.line(f"  map %{name} = %{name} - 1")
        self.line("}")

        def run(env: Env) -> None:
            for _ in range(rounds):
                for action in inner:
                    action(env)

        self.steps.append(run)

    def bitcast(self) -> None:
        """There and back: the bits stay."""
        t = self.pick(lambda t: t.dtype in ("f32", "i32", "f64", "i64") and t.space != "global")
        if t is None:
            return
        other = {"f32": "i32", "i32": "f32", "f64": "i64", "i64": "f64"}[t.dtype]
        if other.startswith("f"):  # bits of an integer may be a NaN: only the other way round
            return
        bits, again = self.new("b"), self.new("b")
        same = self.alloc(t.shape, other, t.space, self.modes[t.spread] if t.registers else None)
        self.line(f"%{bits} = bitcast %{t.name} {other}")
        self.line(f"copy %{bits} -> %{same.name}")
        self.line(f"%{again} = bitcast %{same.name} {t.dtype}")
        into = self.alloc(t.shape, t.dtype, "shared")
        into.limit = max(into.limit, t.limit)
        self.line(f"copy %{again} -> %{into.name}")
        self.steps.append(lambda env: env[into.name].__setitem__((), env[t.name]))
        self.keep(into)

    ATOMS = (
        ("avx512.f32", "f32", "f32", "f32", 1, 16, 1),
        ("avx512.f64", "f64", "f64", "f64", 1, 8, 1),
        ("avx512.bf16", "bf16", "bf16", "f32", 1, 16, 2),
        ("amx.bf16", "bf16", "bf16", "f32", 16, 16, 32),
        ("amx.s8", "i8", "i8", "i32", 16, 16, 64),
    )

    def mma(self) -> None:
        """A product by one of the machine's atoms, over one or two steps of k."""
        name, kind_a, kind_b, kind_c, m, n, k = self.rng.choice(self.ATOMS)
        m, n = m * self.rng.randint(1, 2 if m > 1 else 3), n * self.rng.randint(1, 2)
        deep, rounds = k * self.rng.randint(1, 2), self.rng.randint(1, 2)
        base_a, base_b = self.factor(kind_a), self.factor(kind_b)
        if base_a.limit * base_b.limit * deep * rounds > CAPS[kind_c]:
            return
        acc = self.new("c")
        self.line(f"%{acc} = alloc register {kind_c} ({m}, {n}) as {name}.c")
        self.line(f"fill %{acc} 0")
        loop = self.new("k")
        self.line(f"for {loop} in 0..{rounds} {{")
        self.depth += 1
        self.numbers[loop] = (0, rounds - 1)
        skip = self.chance(0.3)
        a, b = self.source(base_a, (m, deep), skip), self.source(base_b, (deep, n), skip)
        names = [a.name, b.name]
        opaque = name.startswith("amx")
        for place, (letter, part) in enumerate((("a", a), ("b", b))):
            if not (a.loose or b.loose) and (opaque or self.chance(0.4)):
                held = self.new("f")
                kind = (kind_a, kind_b)[place]
                self.line(f"%{held} = alloc register {kind} ({', '.join(map(str, part.shape))}) as {name}.{letter}")
                self.line(f"copy {part.name} -> %{held}{f' stream {self.rng.randint(0, 1)}'}")
                names[place] = f"%{held}"
        self.line(f"mma %{acc} += {names[0]} * {names[1]} using {name}{' skip' if skip else ''}")
        self.depth -= 1
        del self.numbers[loop]
        self.line("}")
        into = self.alloc((m, n), kind_c, "shared")
        into.limit = base_a.limit * base_b.limit * deep * rounds
        self.line(f"copy %{acc} -> %{into.name}")

        def run(env: Env) -> None:
            total = np.zeros((m, n), np.int64)
            for env[loop] in range(rounds):
                total += a.read(env, 0) @ b.read(env, 0)
            del env[loop]
            env[into.name][...] = total

        self.steps.append(run)
        self.keep(into)

    def factor(self, dtype: str) -> Tensor:
        """A tensor to multiply: one that is there, or a new one."""
        found = self.pick(lambda t: not t.registers and t.dtype == dtype and t.limit <= 100)
        if found is not None:
            return found
        made = self.fresh(self.shape(2), dtype, "shared")
        made.limit = 9
        factor, most = self.rng.randint(-3, 3), self.rng.randint(1, 9)
        over = ", ".join(f"{c} {n}" for c, n in zip(LETTERS, made.shape, strict=False))
        self.line(f"map over ({over}) %{made.name} = {dtype}([({factor}*i + j)%{most}])")
        part = self.whole(made)
        i, j = np.indices(made.shape)
        self.steps.append(lambda env: part.write(env, (factor * i + j) % most))
        self.keep(made)
        return made

    def defer(self) -> None:
        """Rounds whose end runs beside the next round: the end works on a copy of the registers."""
        if self.loops:
            return
        rounds, shape = self.rng.randint(1, 4), self.shape(2)
        dtype = self.rng.choice(("f32", "i32"))
        modes = random_modes(self.rng, shape)
        held = self.alloc(shape, dtype, "register", modes)
        scratch = self.alloc(shape, dtype, "shared")
        into = self.alloc((rounds, *shape), dtype, "shared")
        held.limit = scratch.limit = into.limit = 1000
        loop = self.new("m")
        self.line(f"for {loop} in 0..{rounds} overlap defer {{")
        self.depth += 1
        self.numbers[loop] = (0, rounds - 1)
        scope, steps = list(self.scope), self.steps
        self.steps = []
        parts = [p for _ in range(2) if (p := self.readable(shape, dtype, loose=False)) is not None]
        term = self.clamped(self.term(dtype, parts, shape, 2), held.limit)
        self.line(f"map over (i {shape[0]}, j {shape[1]}) %{held.name} = {term.text}")
        self.depth -= 1
        self.line("} finally {")
        self.depth += 1
        self.line(f"copy %{held.name} -> %{scratch.name}")
        part = self.view(into, shape, [(loop, False), ("i", False), ("j", False)])
        self.line(f"map {part.name} = %{scratch.name} + 1")
        into.limit += 1
        self.depth -= 1
        self.line("}")
        del self.numbers[loop]
        self.scope, self.steps = scope, steps
        value = term.value

        def run(env: Env) -> None:
            for env[loop] in range(rounds):
                own: dict[str, Any] = {f"%{k}": p.read(env, 0) for k, p in enumerate(parts)}
                own |= dict(zip(LETTERS, np.indices(shape), strict=False))
                part.write(env, np.broadcast_to(value(env, own), shape) + 1)
            del env[loop]

        self.steps.append(run)
        self.keep(into)

    def log(self) -> None:
        t = self.pick(lambda t: True)
        assert t is not None
        self.line(f'debug_log "{t.name}" %{t.name}')


def random_block_program(seed: int, waves: int = 1) -> tuple[str, dict[str, Array], dict[str, Array]]:
    """(text, arguments by name, what the outputs must be): a valid program of one role, without parameters to bind."""
    w = Writer(seed, waves)
    rng = w.rng
    tasks = rng.randint(1, 3)
    inputs: list[Tensor] = []
    arrays: dict[str, Array] = {}
    draw = np.random.default_rng(seed)
    for number in range(rng.randint(2, 4)):
        dtype = rng.choice(COMMON)
        inputs.append(Tensor(f"x{number}", "global", dtype, w.shape(), rng.choice((3, 9, 40))))
    inputs.append(Tensor("perm", "global", "i32", (12,), 11))
    for t in inputs:
        values = draw.permutation(12) if t.name == "perm" else draw.integers(-t.limit, t.limit + 1, t.shape)
        arrays[t.name] = values.astype(dtypes.dtype(t.dtype).numpy)
    w.scope += inputs
    schedule = rng.choice(("", " schedule contiguous", " schedule dynamic"))
    w.line(f"tasks t in 0..{tasks}{schedule} {{")
    w.depth += 1
    w.numbers["t"] = (0, tasks - 1)
    if rng.random() < 0.5:
        factor = rng.randint(1, 3)
        w.line(f"let u = {factor}*t + 1")
        w.numbers["u"] = (1, factor * (tasks - 1) + 1)
        w.steps.append(lambda env: env.__setitem__("u", factor * env["t"] + 1))
    for _ in range(rng.randint(2, 9)):
        w.statement()
    outputs: list[Tensor] = []
    local = [t for t in w.scope if t.space != "global"] or [rng.choice(inputs)]
    for t in rng.sample(local, min(len(local), rng.randint(1, 4))):
        out = Tensor(f"y{len(outputs)}", "global", t.dtype, (tasks, *t.shape), t.limit)
        letters = LETTERS[: len(t.shape)]
        over = ", ".join(f"{c} {n}" for c, n in zip(letters, t.shape, strict=True))
        w.line(f"%o{len(outputs)} = view %{out.name} ({over}) -> [{', '.join(('t', *letters))}]")
        w.line(f"copy %{t.name} -> %o{len(outputs)}")
        w.steps.append(lambda env, t=t, out=out: env[out.name].__setitem__(env["t"], env[t.name]))
        outputs.append(out)
    histogram = [
        t for t in w.scope if t.dtype in ("i32", "i8") and len(t.shape) == 1 and not (waves > 1 and t.registers)
    ]
    if histogram and rng.random() < 0.5:
        t = rng.choice(histogram)
        counted = Tensor("counts", "global", "i32", (7,), CAPS["i32"])
        ones = w.alloc(t.shape, "i32", "shared")
        w.barrier()
        w.line(f"fill %{ones.name} 1")
        w.barrier()
        w.line(f"atomic add %{ones.name} (i {t.shape[0]}), %counts where q = %{t.name}[i] -> [(q + t)%7]")
        w.steps.append(lambda env, t=t: np.add.at(env["counts"], (env[t.name] + env["t"]) % 7, 1))
        arrays["counts"] = np.arange(7, dtype=np.int32)
        outputs.append(counted)
    w.depth -= 1
    w.line("}")

    def argument(t: Tensor) -> str:
        role = "inout" if t.name == "counts" else "in" if t in inputs else "out"
        return f"%{t.name}: {role} global {t.dtype} ({', '.join(map(str, t.shape))})"

    header = f"block random_{seed}({', '.join(map(argument, [*inputs, *outputs]))})\n"
    header += f"  waves {waves}\n" if waves > 1 else "  machine x86.amx\n"
    env: Env = {t.name: np.zeros(t.shape, np.int64) for t in outputs}
    env |= {name: a.astype(np.int64) for name, a in arrays.items()}
    for t_value in range(tasks):
        env["t"] = t_value
        for action in w.steps:
            action(env)
    expected = {t.name: env[t.name].astype(dtypes.dtype(t.dtype).numpy) for t in outputs}
    for t in outputs:
        if t.name != "counts":
            arrays[t.name] = np.full(t.shape, 77, dtypes.dtype(t.dtype).numpy)
    return header + "{\n" + "\n".join(w.lines) + "\n}\n", arrays, expected
