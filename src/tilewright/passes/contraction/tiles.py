"""A contraction by tile products: blocks of 2 x 2 tiles, whose store is deferred into the next block's products.

The rows' factor is read where it lies, or staged once a task, in planes of one tile's depth:

- `direct`: rows lie at a constant stride, and the depth's last digit side by side; no copy.
- `halo`: the lines that a strip of rows needs are copied once, with their padding; each tap reads the same planes a
  little further on. Lines overlap: the zeros that end one also begin the next. Rows run over whole lines; those that
  fall on the overlap are computed and dropped.
- `panel`: every tap's elements are copied for each row. It fits any access.
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Symbol
from tilewright.passes.contraction.packing import Packing
from tilewright.passes.contraction.text import (
    argument,
    batch_at,
    batch_shape,
    batch_tasks,
    ending,
    may_leave,
    named,
    places,
)
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.plans import COLUMNS, ROWS, Halo, TilePlan, halo_of


def packed_for_tiles(c: Contraction, depth: int, group: int) -> Packing:
    """[columns / 32][outer digits of the depth][last / depth][2][depth / group][16][group]."""
    (column,) = c.columns
    last = c.depth[-1]
    blocks, chunks = -(-size(column) // COLUMNS), -(-size(last) // depth)
    outer = c.depth[:-1]
    shape = (*batch_shape(c), blocks, *(size(d) for d in outer), chunks, 2, depth // group, 16, group)
    f, b = named("f", blocks), named("b", chunks)
    h, r, j, g = named("h", 2), named("r", depth // group), named("j", 16), named("g", group)
    taps = {d: named(d.name, size(d)) for d in outer}
    meanings = {column: COLUMNS * f + 16 * h + j, last: depth * b + group * r + g, **taps}
    axes = [*taps.values(), b, h, r, j, g]
    over = "(" + ", ".join(f"{a.name} {size(a)}" for a in axes) + ")"
    to = ", ".join(a.name for a in axes)
    lines = [
        f"block pack({argument('in', c.b)}, %packed_: out global {c.b.dtype} ({', '.join(map(str, shape))}))",
        "{",
        f"  tasks {', '.join([*batch_tasks(c), f'f in 0..{blocks}'])} {{",
        f"    %from_ = view %{c.b.name} {over} -> {places(c.b, meanings)}",
        f"    %to_ = view %packed_ {over} -> [{batch_at(c)}f, {to}]",
        "    copy %from_ -> %to_ else 0",
        "  }",
        "}",
    ]
    return Packing("\n".join(lines) + "\n", shape)


class _Writer:
    def __init__(self, c: Contraction, plan: TilePlan, machine: str, packed: tuple[int, ...]):
        self.c, self.plan, self.machine, self.packed = c, plan, machine, packed
        (self.column,) = c.columns
        self.last = c.depth[-1]
        self.blocks = -(-size(self.column) // COLUMNS)
        self.chunks = -(-size(self.last) // plan.depth)
        self.lines: list[str] = []

    def header(self, tasks: list[str]) -> None:
        c = self.c
        arguments = [argument("in", c.a), f"%packed_: in global {c.b.dtype} ({', '.join(map(str, self.packed))})"]
        arguments += [argument("in", e) for e in c.extras if e.name != c.a.name]
        arguments.append(argument("out", c.out))
        self.lines += [
            f"block {c.name}({', '.join(arguments)})",
            f"  machine {self.machine}",
            "{",
            f"  tasks {', '.join([*batch_tasks(c), *tasks])} {{",
        ]

    def registers(self) -> None:
        c, plan = self.c, self.plan
        self.lines += [
            f"    %scratch_ = alloc shared {c.sum_dtype} ({ROWS}, {COLUMNS})",
            f"    %sums_ = alloc register {c.sum_dtype} ({ROWS}, {COLUMNS}) as {plan.atom}.c",
            f"    %left_ = alloc register {c.a.dtype} ({ROWS}, {plan.depth}) as {plan.atom}.a",
            f"    %right_ = alloc register {c.b.dtype} ({plan.depth}, {COLUMNS}) as {plan.atom}.b",
        ]

    def f_range(self) -> str:
        blocks, split = self.blocks, self.plan.split
        return f"f in 0..{blocks}" if split == 1 else f"f in {blocks}*part//{split}..{blocks}*(part + 1)//{split}"

    def step(self, view: str, indent: str, chunk: str) -> list[str]:
        """One step of the depth: both factors into tile registers, and their product."""
        c, plan = self.c, self.plan
        outer = ", ".join(d.name for d in c.depth[:-1])
        at = f"{batch_at(c)}f, {outer + ', ' if outer else ''}{chunk}, j//16, c//{plan.group}, j%16, c%{plan.group}"
        return [
            f"{indent}%rows_ = view {view}",
            f"{indent}copy %rows_ -> %left_ stream {int(plan.stream_rows)}",
            f"{indent}%filters_ = view %packed_ (c {plan.depth}, j {COLUMNS}) -> [{at}]",
            f"{indent}copy %filters_ -> %right_ stream {int(not plan.stream_rows)}",
            f"{indent}mma %sums_ += %left_ * %right_ using {plan.atom}",
        ]

    def products(self, view: Any, indent: str) -> list[str]:
        """All steps of the depth: written out, or the first few written out and a loop over the rest."""
        outer = self.c.depth[:-1]
        taps = self.c.extent(outer)
        if taps * self.chunks <= self.plan.steps or self.chunks == 1:
            unroll = " unroll" if taps * self.chunks <= self.plan.steps else ""
            ranges = [*(f"{d.name} in 0..{size(d)}" for d in outer), f"b in 0..{self.chunks}"]
            return [
                f"{indent}for {', '.join(ranges)}{unroll} {{",
                *self.step(view("b"), indent + "  ", "b"),
                f"{indent}}}",
            ]
        per = max(1, self.plan.steps // taps)
        while self.chunks % per:
            per -= 1
        ranges = [*(f"{d.name} in 0..{size(d)}" for d in outer), f"b in 0..{per}"]
        rest = f"{per}*a + b"
        first = [f"{indent}for {', '.join(ranges)} unroll {{", *self.step(view("b"), indent + "  ", "b"), f"{indent}}}"]
        more = [
            f"{indent}for a in 1..{self.chunks // per} {{",
            f"{indent}  for {', '.join(ranges)} unroll {{",
            *self.step(view(rest), indent + "    ", rest),
            f"{indent}  }}",
            f"{indent}}}",
        ]
        return first + (more if self.chunks > per else [])

    def rounds(self, rows: str, view: Any, ends: dict[Any, Any], target: Contraction) -> None:
        """The loop over blocks of columns and rows, the end of each deferred."""
        self.lines += [
            f"    for {self.f_range()}, m in {rows} overlap defer {{",
            f"      fill %sums_ {int(self.c.start)}",
            *self.products(view, "      "),
            "    } finally {",
            "      copy %sums_ -> %scratch_",
            *ending(target, "%scratch_", ROWS, COLUMNS, ends, "      ", bool(size(self.column) % COLUMNS)),
            "    }",
        ]

    def text(self) -> str:
        return "\n".join([*self.lines, "  }", "}"]) + "\n"


def tile_program(c: Contraction, plan: TilePlan, machine: str, packed: tuple[int, ...]) -> str:
    """The block text of the main program; its packed factor has the shape `packed`."""
    w = _Writer(c, plan, machine, packed)
    if plan.stage == "direct":
        return _direct(w)
    if plan.stage == "halo":
        found = halo_of(c)
        assert found is not None
        return _halo(w, found)
    return _panel(w)


def _parts(w: _Writer) -> list[str]:
    return [f"part in 0..{w.plan.split}"] if w.plan.split > 1 else []


def _direct(w: _Writer) -> str:
    c, plan = w.c, w.plan
    (row,) = c.rows
    full, tail = divmod(size(row), ROWS)
    groups = max(1, -(-full // plan.strip))
    w.header([f"group in 0..{groups}", *_parts(w)])
    w.registers()
    i, j = named("i", ROWS), named("j", COLUMNS)
    m = named("m", max(1, full))
    cc = named("c", plan.depth)
    f = named("f", w.blocks)

    def view(chunk: str, start: Any = ROWS * m) -> str:
        """The rows of a tile: coordinates are those of the factor."""
        b = named("b", w.chunks)
        at = {row: start + i, w.last: plan.depth * b + cc}
        return f"%{c.a.name} (i {ROWS}, c {plan.depth}) -> {places(c.a, at)}".replace(
            f"{plan.depth}*b", f"{plan.depth}*({chunk})"
        )

    if full:
        first = f"{plan.strip}*group..min({plan.strip}*(group + 1), {full})" if groups > 1 else f"0..{full}"
        w.rounds(first, view, {row: ROWS * m + i, w.column: COLUMNS * f + j}, c)
    if tail:
        start = full * ROWS
        ragged = bool(size(w.column) % COLUMNS)
        inner = [
            f"for {w.f_range()} {{",
            f"  fill %sums_ {int(c.start)}",
            *(line[4:] for line in _tail_products(w, row, start)),
            "  copy %sums_ -> %scratch_",
            *ending(c, "%scratch_", ROWS, COLUMNS, {row: start + i, w.column: COLUMNS * f + j}, "  ", ragged),
            "}",
        ]
        if groups > 1:
            inner = [f"if (group == {groups - 1}) {{", *("  " + line for line in inner), "}"]
        w.lines += ["    " + line for line in inner]
    return w.text()


def _tail_products(w: _Writer, row: Symbol, start: int) -> list[str]:
    """The last rows, fewer than a block: staged, with zeros for those that are not there."""
    c, plan = w.c, w.plan
    i, cc, b = named("i", ROWS), named("c", plan.depth), named("b", w.chunks)
    at = {row: start + i, w.last: plan.depth * b + cc, **{d: named(d.name, size(d)) for d in c.depth[:-1]}}
    outer = c.depth[:-1]
    ranges = [*(f"{d.name} in 0..{size(d)}" for d in outer), f"b in 0..{w.chunks}"]
    axes = ", ".join([f"i {ROWS}", f"c {plan.depth}"])
    step = w.step(f"%tail_ (i {ROWS}, c {plan.depth}) -> [i, c]", "        ", "b")
    return [
        f"      %tail_ = alloc shared {c.a.dtype} ({ROWS}, {plan.depth})",
        f"      for {', '.join(ranges)} {{",
        f"        %part_ = view %{c.a.name} ({axes}) -> {places(c.a, at)}",
        "        copy %part_ -> %tail_ else 0",
        *step,
        "      }",
    ]


def _halo(w: _Writer, halo: Halo) -> str:
    c, plan = w.c, w.plan
    outer = c.rows[:-2]
    lines_out, columns_out = size(halo.lines), size(halo.columns)
    strips = -(-lines_out // plan.strip)
    width, line = halo.width(), halo.line(c.a.shape[halo.column_dim])
    taps = 1 if halo.line_taps is None else (size(halo.line_taps) - 1) * halo.line_step + 1
    lines = plan.strip + taps - 1
    used = plan.strip * line - (line - columns_out)
    pixels = lines * line + (width - line) + ROWS
    w.header([*(f"{d.name} in 0..{size(d)}" for d in outer), f"strip in 0..{strips}", *_parts(w)])
    loose = {d: named(d.name, size(d)) for d in c.rows[:-2]}
    staged: dict[Any, Any] = {
        **loose,
        halo.lines: plan.strip * named("strip", strips) + named("l", lines),
        halo.columns: named("q", line),
    }
    for t in (halo.line_taps, halo.column_taps):
        if t is not None:
            staged[t] = 0
    axes = f"(l {lines}, q {line}, b {w.chunks}, c {plan.depth})"
    w.lines += [
        f"    %planes_ = alloc shared {c.a.dtype} ({w.chunks}, {pixels}, {plan.depth})",
        f"    %past_ = view %planes_ (b {w.chunks}, i {pixels - lines * line}, c {plan.depth})"
        f" -> [b, {lines * line} + i, c]",
        "    fill %past_ 0",
        *_lines(w, staged, f"l {lines}, q {line}", "l, q", axes),
        f"    %padded_ = view %planes_ {axes} -> [b, {line}*l + q, c]",
        "    copy %lines_ -> %padded_ else 0",
        f"    %strip_ = view %{c.out.name} (l {plan.strip}, q {columns_out}, j {size(w.column)}) -> "
        + places(
            c.out,
            {
                **loose,
                halo.lines: plan.strip * named("strip", strips) + named("l", plan.strip),
                halo.columns: named("q", columns_out),
                w.column: named("j", size(w.column)),
            },
        ),
    ]
    w.registers()
    shift = []
    if halo.line_taps is not None:
        shift.append(f"{line * halo.line_step}*{halo.line_taps.name}")
    if halo.column_taps is not None:
        shift.append(f"{halo.column_step}*{halo.column_taps.name}")
    moved = "".join(f" + {s}" for s in shift)

    def view(chunk: str) -> str:
        return f"%planes_ (i {ROWS}, c {plan.depth}) -> [{chunk}, {ROWS}*m + i{moved}, c]"

    blocks = -(-used // ROWS)
    _staged_rounds(w, blocks, view, line)
    return w.text()


def _lines(w: _Writer, staged: dict[Any, Any], over: str, names: str, axes: str) -> list[str]:
    """The view of what is staged: chunks of the depth's last digit, and nothing past its end.

    Where that digit shares its dimension with others (a group, a tap), what lies past its end is others' elements:
    a view of the digit alone comes first, which they are outside of.
    """
    c, plan = w.c, w.plan
    chunk = plan.depth * named("b", w.chunks) + named("c", plan.depth)
    if any(e is w.last for e in c.a.coordinates):
        return [f"    %lines_ = view %{c.a.name} {axes} -> {places(c.a, {**staged, w.last: chunk})}"]
    whole = places(c.a, {**staged, w.last: named("t", size(w.last))})
    past = " ?" if size(w.last) % plan.depth else ""
    return [
        f"    %taps_ = view %{c.a.name} ({over}, t {size(w.last)}) -> {whole}",
        f"    %lines_ = view %taps_ {axes} -> [{names}, {chunk}{past}]",
    ]


def _staged_rounds(w: _Writer, blocks: int, view: Any, line: int) -> None:
    """Blocks of a strip whose rows run over lines: row r of the strip is (r // line, r % line)."""
    c = w.c
    out = f"[({ROWS}*m + i)//{line} ?, ({ROWS}*m + i)%{line} ?, {COLUMNS}*f + j ?]"
    names = ["", "%scratch_"]
    lines = [f"      %goal_ = view %strip_ (i {ROWS}, j {COLUMNS}) -> {out}"]
    f, j = named("f", w.blocks), named("j", COLUMNS)
    for n, extra in enumerate(c.extras):
        at = {w.column: COLUMNS * f + j}
        if any(e.symbols & set(c.rows) for e in extra.coordinates):
            raise NotImplementedError("an epilogue that reads by rows")
        lines.append(f"      %extra{n}_ = view %{extra.name} (i {ROWS}, j {COLUMNS}) -> {places(extra, at)}")
        if may_leave(extra, at):
            lines.append(f"      %held{n}_ = alloc shared {extra.dtype} ({ROWS}, {COLUMNS})")
            lines.append(f"      copy %extra{n}_ -> %held{n}_ else 0")
            names.append(f"%held{n}_")
        else:
            names.append(f"%extra{n}_")
    done = "copy %scratch_ -> %goal_" if c.epilogue.name == "operand" else f"map %goal_ = {c.epilogue.text(names)}"
    w.lines += [
        f"    for {w.f_range()}, m in 0..{blocks} overlap defer {{",
        f"      fill %sums_ {int(c.start)}",
        *w.products(view, "      "),
        "    } finally {",
        "      copy %sums_ -> %scratch_",
        *lines,
        f"      {done}",
        "    }",
    ]


def _panel(w: _Writer) -> str:
    c, plan = w.c, w.plan
    outer, columns = c.rows[:-2] if len(c.rows) > 1 else (), c.rows[-1]
    lines_digit = c.rows[-2] if len(c.rows) > 1 else None
    line = size(columns) if lines_digit is not None else plan.strip
    strip = plan.strip if lines_digit is not None else 1
    total = size(lines_digit) if lines_digit is not None else -(-size(columns) // plan.strip)
    strips = -(-total // strip)
    rows = -(-(strip * line) // ROWS) * ROWS
    taps = c.depth[:-1]
    w.header([*(f"{d.name} in 0..{size(d)}" for d in outer), f"strip in 0..{strips}", *_parts(w)])
    known = {d: named(d.name, size(d)) for d in outer}
    strip_at = strip * named("strip", strips) + named("l", strip)

    def at_rows(width: int) -> dict[Any, Any]:
        if lines_digit is not None:
            return {**known, lines_digit: strip_at, columns: named("q", width)}
        return {columns: plan.strip * named("strip", strips) + named("q", width)}

    staged = at_rows(line)
    staged |= {d: named(d.name, size(d)) for d in taps}
    tap_axes = "".join(f"{d.name} {size(d)}, " for d in taps)
    tap_names = "".join(f"{d.name}, " for d in taps)
    shape = ", ".join([*(str(size(d)) for d in taps), str(w.chunks), str(rows), str(plan.depth)])
    axes = f"(l {strip}, q {line}, {tap_axes}b {w.chunks}, c {plan.depth})"
    w.lines.append(f"    %panel_ = alloc shared {c.a.dtype} ({shape})")
    if rows > strip * line:
        over = f"({tap_axes}b {w.chunks}, i {rows - strip * line}, c {plan.depth})"
        w.lines += [
            f"    %past_ = view %panel_ {over} -> [{tap_names}b, {strip * line} + i, c]",
            "    fill %past_ 0",
        ]
    goal = at_rows(line) | {w.column: named("j", size(w.column))}
    w.lines += _lines(
        w,
        staged,
        f"l {strip}, q {line}{', ' + tap_axes[:-2] if taps else ''}",
        f"l, q{', ' + tap_names[:-2] if taps else ''}",
        axes,
    )
    w.lines += [
        f"    %staged_ = view %panel_ {axes} -> [{tap_names}b, {line}*l + q, c]",
        "    copy %lines_ -> %staged_ else 0",
        f"    %strip_ = view %{c.out.name} (l {strip}, q {line}, j {size(w.column)}) -> {places(c.out, goal)}",
    ]
    w.registers()

    def view(chunk: str) -> str:
        return f"%panel_ (i {ROWS}, c {plan.depth}) -> [{tap_names}{chunk}, {ROWS}*m + i, c]"

    _staged_rounds(w, rows // ROWS, view, line)
    return w.text()
