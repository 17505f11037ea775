"""Texts that are right, and mutants of them: a text is changed token by token, and what was changed is kept.

`mutant(kind, number, seed)` is the same for the same three in every run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

BLOCKS = Path(__file__).parent.parent / "examples" / "block"


# -- seeds: texts that are right ------------------------------------------------------------------------------


@cache
def _kernels() -> dict[str, Any]:
    """Kernels by name, with their symbols and small sizes for their dimensions."""
    from tilewright import kernels

    small = {"M": 5, "N": 6, "K": 7, "C": 3, "F": 4, "H": 6, "W": 5, "D": 4, "B": 2}
    made = {
        "gemm": kernels.gemm("nt", bias=True, activation="relu"),
        "batched": kernels.gemm("nn", batched=True),
        "conv": kernels.conv((3, 3), padding=1, stride=(2, 1)),
        "grouped": kernels.conv((3,), groups=2, bias=True),
        "im2col": kernels.im2col((3, 3), padding=(1, 1)),
        "attention": kernels.attention(4),
        "softmax": kernels.softmax(),
        "online": kernels.online_softmax(4),
        "norm": kernels.layer_norm(),
        "gelu": kernels.activation("gelu"),
        "gated": kernels.gated_silu(),
        "reduction": kernels.reduction("max"),
        "sums": kernels.running_sum(),
        "tiled": kernels.tiled_running_sum(4),
        "transpose": kernels.transpose(),
        "gather": kernels.gather_rows(),
        "scatter": kernels.scatter_rows(),
        "histogram": kernels.histogram(),
    }
    return {name: (*(m if isinstance(m, tuple) else (m, {})), small) for name, m in made.items()}


def _tile_seeds() -> list[str]:
    import tilewright

    return [tilewright.compile(kernel, symbols, target="executor").text() for kernel, symbols, _ in _kernels().values()]


@cache
def _level(name: str) -> list[str]:
    return [made.text(name, sizes) for made, sizes in map(planned, PLANNED)]


def _block_seeds() -> list[str]:
    small = [
        "block double(%x: in global f32 (M, N), %y: out global f32 (M, N))\n  param M = 4, N = 16\n{\n"
        "  tasks m in 0..M {\n    %row = view %x (j N) -> [m, j]\n    %to = view %y (j N) -> [m, j]\n"
        "    map %to = %row + %row\n  }\n}\n",
        "block sums(%x: in global f32 (M, N), %y: out global f32 (M))\n  param M in 1..64, N = 8\n"
        "  require (N % 4 == 0)\n{\n  %s = alloc shared f32 (8) swizzle <1,0,2>\n  fill %s 0\n"
        "  tasks m in 0..M step 1 schedule contiguous {\n"
        "    %row = view %x (j N) -> [m, j]\n    %r = alloc register f32 (N) by (4,2):(1,4)\n    copy %row -> %r\n"
        "    %t = alloc register f32 () by 1:0\n    reduce %r -> %t along 0 with sum\n"
        "    %to = view %y -> [m]\n    copy %t -> %to\n  }\n}\n".replace("view %y ->", "view %y () ->"),
        "block scanned(%x: in global i32 (4, 6), %y: out global i32 (4, 6))\n{\n  for i in 0..4 {\n"
        "    %row = view %x (j 6) -> [i, j]\n    %to = view %y (j 6) -> [i, j]\n"
        "    scan %row -> %to along 0 with sum exclusive\n  }\n}\n",
    ]
    return [path.read_text() for path in sorted(BLOCKS.glob("*.block"))] + small + _level("block")


def _loop_seeds() -> list[str]:
    small = [
        "loop double(%x: in global f32 (N), %y: out global f32 (N))\n  param N = 40\n{\n  %v = alloc vector f32 (16)\n"
        "  %u = alloc vector f32 (16)\n  %s = alloc vector f32 ()\n  for i in 0..N step 16 {\n"
        "    load %v (l 16) = %x[i + l] if (i + l < N) else 0\n    compute %v = %v + %v*2\n"
        "    shuffle %u (l 16) = %v[l ^ 1]\n    reduce %u -> %s with max\n    compute over (l 16) %v = %v + f32([l])\n"
        "    store %v (l 16) -> %y[i + l] if (i + l < N)\n  }\n}\n",
        "loop table(%x: in global i32 (9), %y: out global i32 (9))\n{\n  %t = constant i32 (u 9) = (u//2)\n"
        "  %s = alloc vector i32 ()\n  for i in 0..9 {\n    fetch k in 0..5 = %t[i]\n    load %s () = %x[k]\n"
        "    read n = %s\n    if (n > 3) {\n      fill %s 7\n    } else {\n      fill %s -1\n    }\n"
        "    store %s () -> %y[i]\n  }\n}\n",
    ]
    return small * 3 + [text for text in _level("loop") if len(text) < 20_000]


def _host_seeds() -> list[str]:
    double = "block double(%x: in global f32 (N), %y: out global f32 (N))\n  param N = 4\n{\n  map %y = %x + %x\n}\n"
    small = [
        "host twice(%x: in global f32 (M), %y: out global f32 (M))\n  size M\n{\n  if (M == 0) {\n    return\n  }\n"
        "  bind {\n    %t = workspace global i32 (M, 4)\n    table %t (i M, j 4) = (i//2*4 + j%3)\n  }\n"
        "  %w = workspace global f32 (M)\n  let n = ceildiv(M, 2)\n  launch double(%x, %w) workers 2 with N = M\n"
        "  launch double(%w, %y) workers n with N = M\n}\n" + double,
    ]
    return small * 3 + [text for text in _level("host") if len(text) < 10_000]


PLANNED = ("gemm", "batched", "conv", "softmax", "gelu", "sums", "transpose", "reduction")


def planned(name: str, plan: str | None = None) -> Any:
    """A kernel of `PLANNED` for the CPU at hand, with its sizes; a plan given is to be followed."""
    import tilewright

    kernel, symbols, small = _kernels()[name]
    made = tilewright.compile(kernel, symbols, target="cpu", plan=plan)
    open_sizes = {s.name for a in made.program.args for d in a.type.sizes for s in d.symbols} - {
        str(s) for s in symbols
    }
    return made, {name: small.get(name, 4) for name in open_sizes}


def _plan_seeds() -> list[str]:
    return [made.text("plan", sizes) for made, sizes in map(planned, PLANNED)]


LAYOUTS = [
    "((2,2),(2,4)):((1,4),(2,8))", "(4,8)", "8:2", "(8,(2,4)):(16,(1,4))", "S<3,4,3> o 0 o (8,64):(64,1)",
    "134 + (2,4):(1,16)", "(8,4) + (4,4):(1@0,1@1)", "((4,8),(2,2)):((32,1),(16,8))", "(3,5,7):(35,7,1)",
]  # fmt: skip
EXPRESSIONS = [
    "28*(k//12) + 28*(m//5) + 4*(m%5) + k%12 - 28", "16*(k//16) + k%16 < 100", "min(m, n, 3*k) + max(1, m - n)",
    "ceildiv(M, 128)*BN ^ (m*2 + 1)", "(m + 2 < M and k >= 1) or not n == 3", "M*N // (K + 1) % 7", "64*M / 8 - (-k)",
    "0 <= m + r - 1 < M",
]  # fmt: skip
PROBLEMS = [
    "mb1ic64ih56oc64oh56kh3ph1n\"res:conv\"", "g4mb2ic20ih5iw7oc40kh3kw2sh2", "ic3ih24oc8kh7sh2ph3dh1",
    "mb1ic4id5ih6iw7oc3kd2kh2kw2", "ic8iw20oc8kw3", "64x48:48x80", "2x3x4:2x4x5", "1024x64:64x1024n\"gemm\"",
    "--dt=bf16 mb1ic16ih8oc16kh1", "--reset --dt=f32:f32:f32 --dir=FWD_B ic8ih6oc8kh3ph1\nic8ih6oc8kh1",
]  # fmt: skip


_SEEDS: dict[str, Callable[[], list[str]]] = {
    "block": _block_seeds,
    "loop": _loop_seeds,
    "host": _host_seeds,
    "tile": _tile_seeds,
    "plan": _plan_seeds,
    "layout": lambda: LAYOUTS,
    "expression": lambda: EXPRESSIONS,
    "problem": lambda: PROBLEMS,
}
_seeds: dict[str, tuple[str, ...]] = {}


def seeds(kind: str) -> tuple[str, ...]:
    """Texts of a kind that are right; made once."""
    if kind not in _seeds:
        _seeds[kind] = tuple(_SEEDS[kind]())
    return _seeds[kind]


def take_seeds(made: dict[str, tuple[str, ...]]) -> None:
    """Takes over the texts that another process made."""
    _seeds.update(made)


# -- mutations ----------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|%\w+|[A-Za-z_]\w*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|->|\.\.|//|[<>=!]=|\s+|.', re.DOTALL
)
_PROBLEM_TOKEN = re.compile(r"[A-Za-z_]+|\d+|\s+|.", re.DOTALL)  # keys and numbers stand without a space between them
NUMBERS = (
    *("0", "1", "2", "3", "5", "7", "16", "31", "64", "1000", "-1", "-2", "0.5", "1e30", "nan", "inf", "007"),
    *(str(2**31), str(2**32), str(2**63), str(2**64 + 1), "10" * 9, "9" * 40, "9" * 5000),
)
COMMON = (0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9)  # places in NUMBERS that are drawn more often
SIGNS = (*"+-*/%^<=,:()[]{}", "//", "<=", "==", "!=", "->", "..")
Changed = tuple[str, ...]
"""What a mutation put in or took away: of these, a message holds one."""


def _like(token: str) -> str:
    """What kind of token it is: those of a kind are exchanged."""
    if token.isspace():
        return "space"
    if token[0] in "%" and len(token) > 1:
        return "value"
    if token[0].isdigit():
        return "number"
    if token[0].isalpha() or token[0] == "_":
        return "word"
    return "text" if token[0] == '"' else "sign"


def _around(tokens: list[str], at: int) -> Changed:
    """The tokens at a place and beside it."""
    return tuple(t for t in tokens[max(0, at - 2) : at + 3] if not t.isspace())


def _made_there(tokens: list[str], at: int) -> Changed:
    """The value that the line of a place makes: made of something else, it is wrong wherever it is used."""
    first = next((i + 1 for i in range(at - 1, -1, -1) if "\n" in tokens[i]), 0)
    makes = _like(tokens[first]) == "value" and "".join(tokens[first + 1 : first + 4]) == " = "
    return (tokens[first],) if makes else ()


def _a_number(rng: random.Random) -> str:
    return NUMBERS[rng.choice(COMMON)] if rng.random() < 0.6 else rng.choice(NUMBERS)


def _replace_number(tokens: list[str], rng: random.Random, at: int) -> Changed:
    tokens[at] = _a_number(rng)
    return (tokens[at], tokens[at].lstrip("0") or "0")


def _replace_everywhere(tokens: list[str], rng: random.Random, at: int) -> Changed:
    """A number becomes another wherever it stands: such texts pass the parser more often."""
    old, new = tokens[at], _a_number(rng)
    tokens[:] = [new if t == old else t for t in tokens]
    return (new, new.lstrip("0") or "0")


def _replace_alike(tokens: list[str], rng: random.Random, at: int) -> Changed:
    kind, old = _like(tokens[at]), tokens[at]
    others = [t for t in tokens if _like(t) == kind]
    tokens[at] = rng.choice(SIGNS) if kind == "sign" else rng.choice(others)
    return (tokens[at], old, *(_made_there(tokens, at) if kind == "value" else ()))


def _delete(tokens: list[str], rng: random.Random, at: int) -> Changed:
    changed = _around(tokens, at)
    del tokens[at]
    return (*changed, "".join(tokens[max(0, at - 1) : at + 1]))


def _double(tokens: list[str], rng: random.Random, at: int) -> Changed:
    tokens.insert(at, tokens[at])
    return (2 * tokens[at], *_around(tokens, at))


def _swap(tokens: list[str], rng: random.Random, at: int) -> Changed:
    alike = [i for i, t in enumerate(tokens) if _like(t) == _like(tokens[at])]
    other = rng.choice(alike)
    tokens[at], tokens[other] = tokens[other], tokens[at]
    return tokens[at], tokens[other]


def _lines(tokens: list[str], rng: random.Random, at: int) -> Changed:
    """A line is left out, said twice, or moved."""
    rows = "".join(tokens).splitlines(keepends=True)
    if len(rows) < 3:
        return _double(tokens, rng, at)
    i, j = rng.randrange(1, len(rows)), rng.randrange(1, len(rows))
    changed = _TOKEN.findall(rows[i])
    how = rng.randrange(3)
    if how == 0:
        del rows[i]
    elif how == 1:
        rows.insert(j, rows[i])
    else:
        changed += _TOKEN.findall(rows[j])
        rows[i], rows[j] = rows[j], rows[i]
    tokens[:] = _TOKEN.findall("".join(rows))
    return tuple(t for t in changed if not t.isspace())


def _nest(tokens: list[str], rng: random.Random, at: int) -> Changed:
    """A token inside many brackets, or repeated many times."""
    token = tokens[at]
    many = rng.choice((2, 20, 120, 700, 3000))
    name = rng.choice(("exp", "min", "ceildiv", "f32", "neg"))
    tokens[at] = (
        "(" * many + token + ")" * many,
        "+".join([token] * many),
        "-" * many + token,
        ",".join([token] * many),
        f"{name}(" * many + token + ")" * many,
    )[rng.randrange(5)]
    return (tokens[at], token, name)


def _wrap_function(tokens: list[str], rng: random.Random, at: int) -> Changed:
    name = rng.choice(("exp", "min", "ceildiv", "f32", "i8", "max", "select", "fma", "foo"))
    token = tokens[at]
    tokens[at] = f"{name}({token}{rng.choice(('', ', 0', ', M, 2'))})"
    return (name, token)


OPERATORS: tuple[tuple[Callable[[list[str], random.Random, int], Changed], str, float], ...] = (
    (_replace_number, "number", 7),
    (_replace_everywhere, "number", 5),
    (_replace_alike, "value", 3),
    (_replace_alike, "word", 1.5),
    (_replace_alike, "sign", 0.8),
    (_swap, "number value", 2),
    (_delete, "", 0.5),
    (_double, "", 0.5),
    (_lines, "", 2),
    (_nest, "number word value", 0.4),
    (_wrap_function, "number word value", 0.4),
)
_WEIGHTS = [weight for _, _, weight in OPERATORS]


@dataclass(frozen=True)
class Mutant:
    """A changed text, and what was changed in it."""

    text: str
    changed: Changed
    removed: bool
    """Whether something was taken away or moved."""
    origin: int
    """Which of the kind's texts it was."""


def mutant(kind: str, number: int, seed: int) -> Mutant:
    """Mutant number so and so of a kind."""
    rng = random.Random(f"{seed}:{kind}:{number}")
    origin = rng.randrange(len(seeds(kind)))
    tokens = (_PROBLEM_TOKEN if kind == "problem" else _TOKEN).findall(seeds(kind)[origin])
    changed: Changed = ()
    removed = False
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        change, kinds, _ = rng.choices(OPERATORS, _WEIGHTS)[0]
        places = [i for i, t in enumerate(tokens) if _like(t) in (kinds.split() or ("number", "word", "value", "sign"))]
        if places:
            changed += change(tokens, rng, rng.choice(places))
            removed |= change in (_delete, _lines, _swap) or (change is _replace_alike and kinds == "sign")
    return Mutant("".join(tokens), changed, removed, origin)
