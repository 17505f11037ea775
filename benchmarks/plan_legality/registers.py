"""Rules of waves and registers: whole groups of an atom, which hold their sums."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from plan_legality.reading import Broken, Reading, atoms_of, is_held
from tilewright.machine import OpaqueOperand, RegisterOperand
from tilewright.plan.text import parse_plan

REGISTER_UNIT, FEWEST_REGISTERS = 8, 24
"""Registers of a role's lane are given in such units, and at least so many (PTX ISA, setmaxnreg)."""


def waves(r: Reading) -> Iterator[Broken]:
    """Waves are whole groups of an atom, which share a block evenly, and no more than a workgroup has."""
    roles, lanes = r.plan.pipeline, r.machine.lanes
    if lanes is None:
        if r.plan.waves != 1 or roles is not None:
            yield Broken("waves", str(roles or f"waves {r.plan.waves}"), "a CPU's workers have one wave")
        return
    if roles is None:
        if not 1 <= r.plan.waves <= r.machine.waves:
            yield Broken("waves", f"waves {r.plan.waves}", f"a workgroup has 1 to {r.machine.waves}")
        if r.plan.waves > 1 and r.products:
            yield Broken("waves", f"waves {r.plan.waves}", "as many as the atoms of a block take do a task")
        return
    for line, _, mine in r.products:
        each, turns = mine.c.lanes // lanes, 2 if roles.pingpong else 1
        down, across = atoms_of(line, mine)
        if roles.consumer[0] % (each * turns) or roles.consumer[0] < each * turns:
            yield Broken("waves", str(roles), f"{mine.name} takes {each} waves{', twice' if turns > 1 else ''}")
        elif down * across % r.groups or (down % r.groups and across > 1 and r.groups % across):
            yield Broken("waves", str(roles), f"{r.groups} groups do not share the {down}x{across} atoms of `{line}`")
        elif not mine.asynchronous and r.groups == 1:
            yield Broken("waves", str(roles), "lanes that multiply by themselves need a second group beside them")
        gathering = each if _is_gathered(r) else 1
        if roles.producer[0] != gathering:
            yield Broken("waves", str(roles), f"{gathering} wave{'s' if gathering > 1 else ''} start copies")
    if roles.producer[0] + roles.consumer[0] > r.machine.waves:
        yield Broken("waves", str(roles), f"a workgroup has {r.machine.waves}")
    if not any(a.asynchronous for a in r.machine.copies.values()):
        yield Broken("waves", str(roles), f"no copy of {r.machine.name} is asynchronous")


def _is_gathered(r: Reading) -> bool:
    """Whether waves copy operands themselves, as the printed plan says: bulk copies cannot read them."""
    printed = parse_plan(r.shapes.printed)
    return printed.pipeline is not None and printed.pipeline.producer[0] > 1


def registers(r: Reading) -> Iterator[Broken]:
    """A lane of a role has a multiple of 8 registers, at least 24, no more than the row says, and holds its sums."""
    roles = r.plan.pipeline
    if roles is None:
        yield from _fragments(r)
        return
    for _, count in (roles.producer, roles.consumer):
        if count % REGISTER_UNIT or count < FEWEST_REGISTERS or count > r.machine.limits.registers:
            yield Broken("registers", str(roles), f"multiples of {REGISTER_UNIT} from {FEWEST_REGISTERS} on")
    needed = _alive(r)
    if needed >= roles.consumer[1]:
        yield Broken("registers", str(roles), f"a lane holds {needed} of sums and operands")


def _alive(r: Reading) -> int:
    """Registers of a lane for what is alive at once: all accumulators of a loop, operands that stay in registers."""
    sums, held = [], 0
    for line, product, mine in r.products:
        down, across = atoms_of(line, mine)
        sums.append(mine.c.values * down * across // max(1, r.groups))
        operand = product.b if line.transposed else product.a
        if isinstance(mine.a, RegisterOperand) and (operand.argument is not None or is_held(r, operand, product)):
            deep, _ = r.k_step(product.summed, mine.shape[2])
            held += mine.a.values * -(-deep // mine.shape[2]) * down // max(1, r.groups) * mine.a.dtype.bits // 32
    if any(d in r.shapes.stated_loops for _, product, _ in r.products for d in (*product.summed, *product.columns)):
        return sum(sums) + held
    return max(sums, default=0) + held


def _fragments(r: Reading) -> Iterator[Broken]:
    """Without roles a lane, or a thread, holds a block of sums and the operands of one step."""
    lines = [(str(line), line.rows, line.columns, mine) for line, _, mine in r.products]
    if r.plan.atom is not None and r.plan.atom in r.machine.multiply:
        rows, columns = (_blocks_of(r, name) for name in ("rows", "columns"))
        lines.append((f"atom {r.plan.atom}", rows, columns, r.machine.multiply[r.plan.atom]))
    for text, rows, columns, mine in lines:
        m, n, _ = mine.shape
        down, across = rows // m, columns // n
        if isinstance(mine.c, OpaqueOperand):
            used, most, what = down * across + down + across, r.machine.limits.tile_registers, "tile registers"
        elif mine.slab is not None:
            used, most, what = mine.c.values * down * across, r.machine.limits.registers - 1, "registers"
        elif m > 1:
            parts = [x.values for x in (mine.a, mine.b, mine.c) if isinstance(x, RegisterOperand)]
            used, most, what = (
                down * parts[0] + across * parts[1] + down * across * parts[2],
                r.machine.limits.registers,
                "registers",
            )
        else:
            more = across + 1 if mine.picks == 1 else 2 * across + rows
            used, most, what = rows * across + more, r.machine.limits.registers, "vector registers"
            if mine.picks_from and rows > mine.picks_from // 2:
                yield Broken("vector registers", text, f"{mine.name} picks rows from {mine.picks_from} registers")
        if used > most:
            yield Broken(what, text, f"{down}x{across} atoms of sums and their operands take {used} of {most}")
    if r.plan.atom is not None and r.plan.atom.startswith("lanes."):
        vector = (r.machine.limits.vector_bytes or 16) // 4
        rows, wide = _blocks_of(r, "rows"), _blocks_of(r, "lanes") // vector
        if (rows + 1) * wide + 1 > r.machine.limits.registers:
            yield Broken("vector registers", f"atom {r.plan.atom}", f"{rows} rows of {wide} vectors")


def _blocks_of(r: Reading, name: str) -> int:
    """The block of sums along an axis of a plan with one atom."""
    each = next((a for a in r.plan.axes if a.name == name), None)
    loops = [c.size for c in each.splits if c.level == "loop" and c.digit is None] if each is not None else []
    return loops[-1] if loops else 1


def register_file(r: Reading) -> Iterator[Broken]:
    """All lanes of a workgroup have no more registers together than they begin with, in equal units."""
    roles, lanes, file = r.plan.pipeline, r.machine.lanes, r.machine.spaces["register"].bytes
    if roles is None or lanes is None or file is None or not r.products:
        return
    each = r.products[0][2].c.lanes
    groups = roles.consumer[0] * lanes // each + ceil(roles.producer[0] * lanes / each)
    begins = file // 4 // (groups * each) // REGISTER_UNIT * REGISTER_UNIT
    used = (
        ceil(roles.producer[0] * lanes / each) * roles.producer[1]
        + roles.consumer[0] * lanes // each * roles.consumer[1]
    )
    if used > begins * groups:
        yield Broken(
            "register file", str(roles), f"{used} registers of {begins * groups} that {groups} groups begin with"
        )
