"""Malformed texts and calls of every kind: each must give a typed error, or work, within 2 s and 500 MB.

    python benchmarks/mutations.py [COUNT] [--kind block] [--seed S] [--first I] [--jobs J]

COUNT mutants of each kind: programs of the block, loop, host and tile levels, plans, layouts, expressions, problems;
and `calls`, wrong calls of the public functions. A text is changed token by token and then goes as far as it can:
parsed, printed and parsed again, verified, bound, checked, lowered, and interpreted on small arrays. What comes of it
must be an error of `tilewright.errors`, whose message holds the value that is wrong, or no error at all. Anything else
is a finding, printed with a reproducer; the exit code is 1 if there is one, or if less than 30 % of a kind's mutants
pass its parser.
Number I of seed S of a kind is the same mutant in every run: `--kind block --first I 1` runs one again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

SECONDS = 2.0
"""The most that one mutant may take, of the processor's time."""
MEMORY = 500 << 20
"""The most memory that a process may take for it."""
PATIENCE = 60.0
"""Seconds without a sign of life after which a worker is ended."""
LEAST_PARSED = 0.3
"""The share of mutants that must pass the parser, or the mutations say little of what comes after it."""
STEPS = 3000
"""The steps that an interpreter may do for one mutant."""
NATIVE_SHARE = 20
"""One in so many programs that are right so far becomes machine code too; 0: none."""
ELEMENTS = 1 << 16
"""The most elements that all arguments of a program that is run have together."""

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
def _native() -> list[Any]:
    """Kernels as machine code for this CPU, called once: their plans and the levels below are seeds."""
    import numpy as np

    import tilewright

    found = []
    rng = np.random.default_rng(0)
    for name in ("gemm", "batched", "softmax", "gelu", "sums", "transpose", "reduction"):
        kernel, symbols, small = _kernels()[name]
        made = tilewright.compile(kernel, symbols, target="cpu")
        args = [a for a in made.program.args if a not in made.outputs]
        arrays = [
            rng.integers(0, 2, [small.get(str(d), 4) for d in a.type.dims]).astype(a.type.dtype.numpy) for a in args
        ]
        made(*arrays)
        found.append(made)
    return found


def _level(name: str) -> list[str]:
    return [made.text(name) for made in _native()]


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


def _plan_seeds() -> list[str]:
    from tilewright.cli.workload import Workload
    from tilewright.problems import parse_conv, parse_matmul

    made = [
        Workload(parse_conv("mb1ic16ih8oc32kh3ph1"), ("f32", "f32", "f32")),
        Workload(parse_matmul("64x48:48x80"), ("f32", "f32", "f32")),
    ]
    return _level("plan") + [w.compiled().text("plan") for w in made]


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


_seeds: dict[str, tuple[str, ...]] = {}


def seeds(kind: str) -> tuple[str, ...]:
    """Texts of a kind that are right; made once, and handed to the workers."""
    if kind not in _seeds:
        _seeds[kind] = _made_seeds(kind)
    return _seeds[kind]


def _made_seeds(kind: str) -> tuple[str, ...]:
    made: dict[str, Callable[[], list[str]]] = {
        "tile": _tile_seeds,
        "block": _block_seeds,
        "loop": _loop_seeds,
        "host": _host_seeds,
        "plan": _plan_seeds,
        "layout": lambda: LAYOUTS,
        "expression": lambda: EXPRESSIONS,
        "problem": lambda: PROBLEMS,
    }
    return tuple(made[kind]())


# -- mutations ----------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|%\w+|[A-Za-z_]\w*|\d+\.\d+|\d+|->|\.\.|//|[<>=!]=|\s+|.', re.DOTALL)
NUMBERS = (
    *("0", "1", "2", "3", "5", "7", "16", "31", "64", "1000", "-1", "-2", "0.5", "1e30", "nan", "inf", "007"),
    *(str(2**31), str(2**32), str(2**63), str(2**64 + 1), "10" * 9, "9" * 40, "9" * 5000),
)
COMMON = (0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9)  # places in NUMBERS that are drawn more often
SIGNS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "^",
    "<",
    "<=",
    "==",
    "!=",
    "=",
    ",",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "->",
    "..",
)


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


def _a_number(rng: random.Random) -> str:
    return NUMBERS[rng.choice(COMMON)] if rng.random() < 0.6 else rng.choice(NUMBERS)


def _replace_number(tokens: list[str], rng: random.Random, at: int) -> None:
    tokens[at] = _a_number(rng)


def _replace_alike(tokens: list[str], rng: random.Random, at: int) -> None:
    kind = _like(tokens[at])
    others = [t for t in tokens if _like(t) == kind]
    tokens[at] = rng.choice(SIGNS) if kind == "sign" else rng.choice(others)


def _delete(tokens: list[str], rng: random.Random, at: int) -> None:
    del tokens[at]


def _double(tokens: list[str], rng: random.Random, at: int) -> None:
    tokens.insert(at, tokens[at])


def _swap(tokens: list[str], rng: random.Random, at: int) -> None:
    alike = [i for i, t in enumerate(tokens) if _like(t) == _like(tokens[at])]
    other = rng.choice(alike)
    tokens[at], tokens[other] = tokens[other], tokens[at]


def _lines(tokens: list[str], rng: random.Random, at: int) -> None:
    """A line is left out, said twice, or moved."""
    rows = "".join(tokens).splitlines(keepends=True)
    if len(rows) < 3:
        _double(tokens, rng, at)
        return
    i, j = rng.randrange(1, len(rows)), rng.randrange(1, len(rows))
    how = rng.randrange(3)
    if how == 0:
        del rows[i]
    elif how == 1:
        rows.insert(j, rows[i])
    else:
        rows[i], rows[j] = rows[j], rows[i]
    tokens[:] = _TOKEN.findall("".join(rows))


def _nest(tokens: list[str], rng: random.Random, at: int) -> None:
    """A token inside many brackets, or repeated many times."""
    token = tokens[at]
    many = rng.choice((2, 20, 120, 700, 3000))
    how = rng.randrange(5)
    if how == 0:
        tokens[at] = "(" * many + token + ")" * many
    elif how == 1:
        tokens[at] = "+".join([token] * many)
    elif how == 2:
        tokens[at] = "-" * many + token
    elif how == 3:
        tokens[at] = ",".join([token] * many)
    else:
        name = rng.choice(("exp", "min", "ceildiv", "f32", "neg"))
        tokens[at] = f"{name}(" * many + token + ")" * many


def _wrap_function(tokens: list[str], rng: random.Random, at: int) -> None:
    name = rng.choice(("exp", "min", "ceildiv", "f32", "i8", "max", "select", "fma", "foo"))
    tokens[at] = f"{name}({tokens[at]}{rng.choice(('', ', 0', ', M, 2'))})"


OPERATORS: tuple[tuple[Callable[[list[str], random.Random, int], None], str, float], ...] = (
    (_replace_number, "number", 9),
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


def mutant(kind: str, number: int, seed: int) -> str:
    """Mutant number so and so of a kind."""
    rng = random.Random(f"{seed}:{kind}:{number}")
    tokens = _TOKEN.findall(rng.choice(seeds(kind)))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        change, kinds, _ = rng.choices(OPERATORS, [weight for _, _, weight in OPERATORS])[0]
        places = [i for i, t in enumerate(tokens) if _like(t) in (kinds.split() or ("number", "word", "value", "sign"))]
        if places:
            change(tokens, rng, rng.choice(places))
    return "".join(tokens)


# -- what is done with a text -----------------------------------------------------------------------------------------


class Parsed:
    """Set once a text has passed its parser."""

    def __init__(self) -> None:
        self.so = False


def _same_again(program: Any, parse: Callable[[str], Any]) -> None:
    text = str(program)
    assert str(parse(text)) == text, "the printed text parses to something else"


def _small_arrays(program: Any) -> list[Any] | None:
    """Arrays of zeros and ones for a program's arguments; None where they would be large."""
    import numpy as np

    from tilewright.algebra.expr import Const
    from tilewright.ir.binding import open_parameters

    sizes = {s.name: max(int(s.lo), 2) for s in open_parameters(program)}
    sizes |= {s.name: 3 for r in program.records if r.name == "size" for s in r.attrs["sizes"]}
    arrays, total = [], 0
    for arg in program.args:
        shape = [e.value if isinstance(e, Const) else sizes.get(str(e)) for e in arg.type.shape]
        if any(n is None for n in shape):
            return None
        total += int(np.prod([float(max(n, 0)) for n in shape if n is not None]))
        if total > ELEMENTS:
            return None
        arrays.append(np.ones([n for n in shape if n is not None], arg.type.dtype.numpy))
    return arrays


def _text_program(text: str, parsed: Parsed) -> None:
    """A block, loop or host text: checked, lowered, interpreted."""
    from tilewright.compiler.device import machine_of
    from tilewright.compiler.text import LEVELS, compile_text
    from tilewright.ir.parser import parse_programs
    from tilewright.passes.lower import lower
    from tilewright.targets.registry import native

    for program in parse_programs(text, LEVELS):
        parsed.so = True
        _same_again(program, lambda t: parse_programs(t, LEVELS)[0])
    made = compile_text(text, "interpreter", workers=2)
    main = made.main
    if NATIVE_SHARE and zlib.crc32(text.encode()) % NATIVE_SHARE == 0 and main.level.name != "host":
        compile_text(text, "cpu")
    if main.level.name == "block" and len(text) < 6000:
        here = native("cpu")
        machine = machine_of(main)
        if machine is None or machine.lanes is None:
            lower(main, machine or here.machine, here.machine)
    arrays = _small_arrays(main)
    if arrays is not None:
        made.steps = STEPS
        made(*arrays)


def _tile_program(text: str, parsed: Parsed) -> None:
    import numpy as np

    import tilewright
    from tilewright.algebra.expr import Symbol
    from tilewright.ir.core import MemoryType
    from tilewright.ir.tile import parse_tile

    program = parse_tile(text)
    parsed.so = True
    _same_again(program, parse_tile)
    made = tilewright.compile(program, target="executor")
    arrays: list[Any] = []
    for arg in program.args:
        if not isinstance(arg.type, MemoryType):
            arrays.append(1)
            continue
        shape = [2 if isinstance(e, Symbol) else e for e in arg.type.sizes]
        known = [made.known.get(e, 3) if isinstance(e, Symbol) else e for e in arg.type.sizes]
        shape = [int(e) if str(e).isdigit() and int(e) < 50 else 4 for e in known]
        arrays.append(np.ones(shape, arg.type.dtype.numpy))
    made(*arrays)


@cache
def _contraction() -> Any:
    from tilewright.plan.contraction import recognise

    kernel, _, _ = _kernels()["gemm"]
    program = kernel.trace()
    named = {s.name: s for a in program.args for d in a.type.dims for s in d.symbols}
    return recognise(program, {named["M"]: 5, named["N"]: 6, named["K"]: 7})


def _plan(text: str, parsed: Parsed) -> None:
    from tilewright.passes.job import Job
    from tilewright.passes.pipeline import run
    from tilewright.plan.plan import parse_plan
    from tilewright.targets.registry import native

    plan = parse_plan(text)
    parsed.so = True
    assert parse_plan(str(plan)) == plan, "the printed plan parses to something else"
    here = native("cpu")
    run(Job(here.machine, given=plan, contraction=_contraction()))


def _layout(text: str, parsed: Parsed) -> None:
    from tilewright import algebra
    from tilewright.algebra.picture import layout_svg, layout_table

    layout = algebra.parse_layout(text)
    parsed.so = True
    assert algebra.parse_layout(str(layout)) == layout, "the printed layout parses to something else"
    for use in (layout_svg, layout_table, algebra.coalesce, algebra.cosize, algebra.complement, algebra.right_inverse):
        _allowed(use, layout)
    _allowed(algebra.composition, layout, algebra.Layout(2, 3))
    _allowed(algebra.logical_divide, layout, algebra.Layout(2, 1))
    _allowed(layout, 1)


def _expression(text: str, parsed: Parsed) -> None:
    from tilewright.algebra import evaluate, extent, index, parse_expr, substitute

    symbols = [*(extent(n) for n in ("M", "N", "K", "BN")), *(index(n, 100) for n in "mnkr")]
    e = parse_expr(text, symbols)
    parsed.so = True
    assert parse_expr(str(e), symbols) is e, "the printed expression parses to something else"
    _allowed(evaluate, e, dict.fromkeys(symbols, 3))
    _allowed(substitute, e, {symbols[0]: 5})


def _problem(text: str, parsed: Parsed) -> None:
    from tilewright.problems import parse_conv, parse_matmul, read_batch

    def tried(parse: Callable[[str], Any]) -> Any:
        found = _allowed(parse, text)
        parsed.so = parsed.so or found is not None
        return found

    for parse in (parse_conv, parse_matmul):
        problem = tried(parse)
        if problem is not None:
            assert parse(str(problem)) == problem
            assert problem.macs >= 0
    tried(lambda t: list(read_batch(t)))


def _allowed(use: Callable[..., Any], *args: Any) -> Any:
    """What comes of a use that may be refused by a typed error; its message is looked at too."""
    from tilewright.errors import TilewrightError

    try:
        return use(*args)
    except TilewrightError as fault:
        fault.__traceback__ = None
        return None


def _last_call() -> str:
    from wrong_calls import wrong_call

    return str(getattr(wrong_call, "last", ""))[:200]


def _call(number: int, seed: int) -> str:
    from wrong_calls import wrong_call

    return str(wrong_call(random.Random(f"{seed}:calls:{number}")))


KINDS: dict[str, Callable[[str, Parsed], None]] = {
    "block": _text_program,
    "loop": _text_program,
    "host": _text_program,
    "tile": _tile_program,
    "plan": _plan,
    "layout": _layout,
    "expression": _expression,
    "problem": _problem,
}


# -- workers -------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """Raised in a worker whose mutant takes longer than it may."""


@dataclass
class Outcome:
    """What came of some mutants of a kind."""

    kind: str
    count: int = 0
    parsed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    """(number, what, where)"""
    messages: list[tuple[str, str]] = field(default_factory=list)
    """(text, message) of a sample."""

    def add(self, other: Outcome) -> None:
        """Counts another's in."""
        self.count += other.count
        self.parsed += other.parsed
        self.errors += other.errors
        self.findings += other.findings
        self.messages += other.messages


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def judge(kind: str, number: int, seed: int) -> Outcome:
    """One mutant, in this process."""
    from tilewright.errors import CodeGenerationError, TilewrightError

    outcome = Outcome(kind, 1)
    parsed = Parsed()
    text = ""
    signal.signal(signal.SIGPROF, _stop)
    try:
        text = mutant(kind, number, seed) if kind != "calls" else ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            if kind == "calls":
                _call(number, seed)
            else:
                KINDS[kind](text, parsed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.errors["none"] += 1
    except TilewrightError as fault:
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.errors[type(fault).__name__] += 1
        outcome.messages.append((text, str(fault)))
        if isinstance(fault, CodeGenerationError):  # LLVM was given what it does not take
            outcome.findings.append((number, f"CodeGenerationError: {str(fault)[:200]}", "codegen"))
    except (Exception, TooLong) as fault:
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames = traceback.extract_tb(fault.__traceback__)
        ours = [f for f in frames if "tilewright" in f.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"
        call = _last_call() if kind == "calls" else ""
        outcome.findings.append((number, f"{type(fault).__name__}: {str(fault)[:200]} {call}", where))
    outcome.parsed += parsed.so
    return outcome


def _work(kind: str, first: int, last: int, step: int, seed: int, at: Any, results: Any, texts: Any) -> None:
    """Mutants first, first + step, ... below last, in a process of its own."""
    os.environ["TILEWRIGHT_CACHE_DIR"] = "off"
    _seeds[kind] = texts
    from tilewright.runtime.codegen import HELPER

    HELPER._start()  # it has memory of its own
    judge(kind, first, seed)  # what it imports and keeps is no part of what one mutant takes
    held = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    used = int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    most = held + max(MEMORY - used, MEMORY // 2)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    total = Outcome(kind)
    for number in range(first, last, step):
        at.value = number
        total.add(judge(kind, number, seed))
        if number // step % 64 == 0:
            results.put(total)
            total = Outcome(kind)
    results.put(total)
    at.value = last


def _share(kind: str, first: int, last: int, step: int, seed: int) -> Iterator[Outcome]:
    """The outcomes of a share of mutants; a worker that hangs or dies is replaced, and that is a finding."""
    spawn = multiprocessing.get_context("spawn")
    texts = seeds(kind) if kind != "calls" else ()
    while first < last:
        at, results = spawn.Value("q", first), spawn.SimpleQueue()
        worker = spawn.Process(target=_work, args=(kind, first, last, step, seed, at, results, texts), daemon=True)
        worker.start()
        seen, since = -1, time.monotonic()
        while worker.is_alive() or not results.empty():
            while not results.empty():
                yield results.get()
            if at.value != seen:
                seen, since = at.value, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                worker.kill()
                worker.join()
                break
            worker.join(0.05)
        if at.value >= last:
            return
        outcome = Outcome(kind, 1)
        outcome.findings.append((at.value, "no return, or the process died", ""))
        yield outcome
        first = at.value + step


def run(kind: str, first: int, count: int, seed: int, jobs: int) -> Outcome:
    """Mutants of a kind, shared by some processes."""
    total = Outcome(kind)

    def gather(job: int) -> None:
        for outcome in _share(kind, first + job, first + count, jobs, seed):
            total.add(outcome)

    threads = [Thread(target=gather, args=(job,)) for job in range(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return total


# -- messages --------------------------------------------------------------------------------------------------------


def names_the_value(text: str, message: str) -> bool:
    """Whether a message holds something of the text that is wrong; of what is long, its beginning."""
    shown = set(_TOKEN.findall(message))
    given = {t for t in _TOKEN.findall(text) if _like(t) != "space"}
    return bool(shown & given) or any(t[:20] in message for t in given if len(t) > 20)


def report(outcome: Outcome, seed: int) -> bool:
    """Prints what came of a kind; whether it is as it should be."""
    share = outcome.parsed / max(outcome.count, 1)
    parsed = "" if outcome.kind == "calls" else f", {share:.0%} parsed"
    most = ", ".join(f"{name} {n}" for name, n in outcome.errors.most_common(6))
    print(f"{outcome.kind}: {outcome.count} mutants{parsed}; {len(outcome.findings)} findings; {most}", flush=True)
    groups: dict[tuple[str, str], list[int]] = {}
    for number, what, where in outcome.findings:
        groups.setdefault((what.split(":")[0], where), []).append(number)
    whats = {(what.split(":")[0], where): what for _, what, where in outcome.findings}
    for key, numbers in sorted(groups.items(), key=lambda group: -len(group[1])):
        print(
            f"  {len(numbers)}x {whats[key]}  at {key[1]}  --kind {outcome.kind} --seed {seed} --first {numbers[0]} 1"
        )
    silent = [(t, m) for t, m in outcome.messages if outcome.kind != "calls" and not names_the_value(t, m)]
    for _, message in silent[:3]:
        print(f"  a message without the value: {message[:200]!r}")
    enough = outcome.kind == "calls" or share >= LEAST_PARSED or outcome.count < 100
    return not outcome.findings and not silent and enough


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=1000)
    parser.add_argument("--kind", choices=(*KINDS, "calls"), action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", action="store_true", help="print the mutants themselves and how they end")
    options = parser.parse_args(arguments)
    good = True
    for kind in options.kind or (*KINDS, "calls"):
        if options.show:
            for number in range(options.first, options.first + options.count):
                print(mutant(kind, number, options.seed)[:4000] if kind != "calls" else "")
                if kind != "calls":
                    KINDS[kind](mutant(kind, number, options.seed), Parsed())
                else:
                    print(_call(number, options.seed))
            continue
        good &= report(run(kind, options.first, options.count, options.seed, options.jobs), options.seed)
    return not good


if __name__ == "__main__":
    sys.exit(main())
