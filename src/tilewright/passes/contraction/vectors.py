"""A contraction by vectors: each number of the rows' factor times vectors of columns; the rows stay where they lie.

Loops over outer digits of the depth run only where the tensor is; single rows that fall outside are skipped, which is
settled where the first and the last block of a line are peeled off.
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Expr
from tilewright.passes.contraction.text import (
    argument,
    batch_at,
    batch_tasks,
    ending,
    flat_index,
    limits,
    named,
    places,
)
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.plans import VectorPlan


def vector_program(c: Contraction, plan: VectorPlan, machine: str, packed: tuple[int, ...]) -> str:
    """The block text of the main program; its packed factor has the shape `packed`."""
    (column,) = c.columns
    outer, line = c.rows[:-1], c.rows[-1]
    width = plan.lanes * plan.vectors
    column_blocks = -(-size(column) // width)
    full, tail = divmod(size(line), plan.rows)
    groups = max(1, -(-full // plan.blocks))
    arguments = [argument("in", c.a), f"%packed_: in global {c.b.dtype} ({', '.join(map(str, packed))})"]
    arguments += [argument("in", e) for e in c.extras if e.name != c.a.name]
    arguments.append(argument("out", c.out))
    tasks = [f"part in 0..{plan.split}", *batch_tasks(c), *(f"{d.name} in 0..{size(d)}" for d in outer)]
    if groups > 1:
        tasks.append(f"group in 0..{groups}")
    lines = [
        f"block {c.name}({', '.join(arguments)})",
        f"  machine {machine}",
        "{",
        f"  tasks {', '.join(tasks)} schedule contiguous {{",
    ]
    f_range = f"f in {column_blocks}*part//{plan.split}..{column_blocks}*(part + 1)//{plan.split}"

    def block(rows: int, start: Any, indent: str) -> list[str]:
        """One block of sums: rows from `start` on."""
        return _block(c, plan, rows, start, {*outer, *c.batch}, indent)

    if full:
        lines.append(f"    %sums_ = alloc register {c.sum_dtype} ({plan.rows}, {width}) as {plan.atom}.c")
        first = f"{plan.blocks}*group" if groups > 1 else "0"
        end = f"min({plan.blocks}*(group + 1), {full})" if groups > 1 else str(full)
        peel = " peel [1, 1]" if c.a.conditions() and groups == 1 else ""
        lines.append(f"    for {f_range}, block in {first}..{end}{peel} {{")
        lines += block(plan.rows, plan.rows * named("block", full), "      ")
        lines.append("    }")
    if tail:
        inner = "    "
        if groups > 1:
            lines.append(f"    if (group == {groups - 1}) {{")
            inner = "      "
        lines.append(f"{inner}%rest_ = alloc register {c.sum_dtype} ({tail}, {width}) as {plan.atom}.c")
        lines.append(f"{inner}for {f_range} {{")
        body = block(tail, full * plan.rows, inner + "  ")
        lines += [line_.replace("%sums_", "%rest_") for line_ in body]
        lines.append(f"{inner}}}")
        if groups > 1:
            lines.append("    }")
    return "\n".join([*lines, "  }", "}"]) + "\n"


def _block(c: Contraction, plan: VectorPlan, rows: int, start: Any, outer: set[Any], indent: str) -> list[str]:
    (column,) = c.columns
    line, last = c.rows[-1], c.depth[-1]
    width = plan.lanes * plan.vectors
    step = plan.steps * plan.group
    i, j, k = named("i", rows), named("j", width), named("k", step)
    f, e = named("f", -(-size(column) // width)), named("e", size(last) // step)
    depth = {d: named(d.name, size(d)) for d in c.depth[:-1]}
    base = {line: start + i, **depth, column: width * f + j}
    settled: frozenset[Expr] = frozenset()
    opened = 0
    lines = [f"{indent}fill %sums_ {_number(c.start)}"]
    inner = indent
    for digit in c.depth[:-1]:
        span = limits(c.a, digit, outer)
        if span is not None:
            lo, hi, seen = span
            settled |= seen
            lines.append(f"{inner}for {digit.name} in {lo}..{hi} {{")
        else:
            coupled = any(digit in x.symbols and line in x.symbols for _, x in c.a.conditions())
            lines.append(f"{inner}for {digit.name} in 0..{size(digit)}{' unroll' if coupled else ''} {{")
        inner += "  "
        opened += 1
    lines.append(f"{inner}for e in 0..{size(last) // step} {{")
    at = {**base, last: step * e + k}
    whole = flat_index(c.depth, {**depth, last: step * e + k})
    taps = places(c.a, at, settled)
    group = [f"{whole // plan.group}", "j", f"{(step * e + k) % plan.group}"]
    skip = " skip" if "?" in taps else ""
    lines += [
        f"{inner}  %taps_ = view %{c.a.name} (i {rows}, k {step}) -> {taps}",
        f"{inner}  %columns_ = view %packed_ (k {step}, j {width}) -> [{batch_at(c)}f, {', '.join(group)}]",
        f"{inner}  mma %sums_ += %taps_ * %columns_ using {plan.atom}{skip}",
        f"{inner}}}",
    ]
    for n in range(opened, 0, -1):
        lines.append(f"{indent}{'  ' * (n - 1)}}}")
    ends = {line: start + i, column: width * f + j}
    return [*lines, *ending(c, "%sums_", rows, width, ends, indent, bool(size(column) % width))]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
