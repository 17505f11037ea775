"""Edits of plans as one makes them by hand: one function a kind, each gives other lines, or None where it has none.

Some kinds change one number or one word and leave the rest as it is; others change all lines that belong together, as
someone does who knows what they mean: the tile of a task with its axes, atom and waves; a step of K with its stages;
the parts of K with their axes. Deletions and misspellings stand for what goes wrong while typing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

from plan_shapes import ProductShape, Shapes

from tilewright.machine import Machine, MultiplyAtom

AXIS = re.compile(r"axis (\w+) = \((.*)\): (.*)")
OPERAND = re.compile(r"(\w+) (?:in place|packed at bind|(?:strip|halo|panel) at \w+)|repack (\w+): ")
PRODUCT = re.compile(r"(\w+) by (\S+), tile (\d+)x(\d+)( transposed)?")
REGISTERS = {1: 240, 2: 232, 3: 160}
"""Registers of a lane that multiplies, of so many groups of waves."""


@dataclass(frozen=True)
class Context:
    """What an edit may look at: the lines of one kernel's plan, the shapes of its program, the machine's row."""

    lines: list[str]
    shapes: Shapes
    machine: Machine
    rng: random.Random

    def place(self, start: str) -> int | None:
        """The number of the first line that begins so."""
        return next((n for n, line in enumerate(self.lines) if line.startswith(start)), None)

    def product(self) -> tuple[int, re.Match[str], ProductShape] | None:
        """A line of a product by an atom, its parts, and the product's shape."""
        found = [
            (n, m, p)
            for n, line in enumerate(self.lines)
            for m in [PRODUCT.fullmatch(line)]
            for p in self.shapes.products
            if m is not None and p.name == m[1] and m[2] in self.machine.multiply
        ]
        return self.rng.choice(found) if found else None

    def axis_of(self, dims: tuple[str, ...]) -> int | None:
        """The last line of an axis that has one of these dimensions, of those wider than 1."""
        wide = [d for d in dims if self.shapes.sizes[d] > 1] or list(dims)
        found = [
            n
            for n, line in enumerate(self.lines)
            for m in [AXIS.fullmatch(line)]
            if m is not None
            for digit in m[2].split(", ")
            if wide[-1] in self.shapes.dims_of(digit.split()[0]) and not digit.split()[0].endswith("_split")
        ]
        return found[-1] if found else None

    def put(self, changes: dict[int, str]) -> list[str]:
        """The lines with some of them changed."""
        return [changes.get(n, line) for n, line in enumerate(self.lines)]


Edit = Callable[[Context], list[str] | None]


def _numbered(c: Context, n: int, pattern: str, new: Callable[[int], list[int]]) -> list[str] | None:
    """A line with another number in the place of one that a pattern finds."""
    places = list(re.finditer(pattern, c.lines[n]))
    if not places:
        return None
    m = c.rng.choice(places)
    sizes = [size for size in new(int(m[0])) if size > 0 and size != int(m[0])]
    if not sizes:
        return None
    line = c.lines[n]
    return c.put({n: line[: m.start()] + str(c.rng.choice(sizes)) + line[m.end() :]})


# -- single numbers -------------------------------------------------------------------------------------------


def split_size(c: Context) -> list[str] | None:
    """Another size of one split of an axis, and no other line."""
    axes = [n for n, line in enumerate(c.lines) if AXIS.fullmatch(line) and not line.endswith("whole")]
    if not axes:
        return None
    step = c.rng.choice((1, 8, 16, 32, 64))
    return _numbered(
        c,
        c.rng.choice(axes),
        r"(?<=task |loop |unit )\d+|(?<=task \w\w\w |loop \w\w\w |unit \w\w\w )\d+",
        lambda n: [n // 2, 2 * n, n + step, n - step, 3 * n],
    )


def batch_size(c: Context) -> list[str] | None:
    """Another size of tasks of an axis without a block: rows, batches, elements."""
    axes = [n for n, line in enumerate(c.lines) if re.search(r": task \d+$", line)]
    blocks = {size for line in c.lines for m in [PRODUCT.fullmatch(line)] if m for size in (m[3], m[4])}
    free = [n for n in axes if c.lines[n].rsplit(" ", 1)[1] not in blocks]
    return _numbered(c, c.rng.choice(free), r"\d+$", lambda n: [n // 2, 2 * n, n + 1, 4 * n, n - 1]) if free else None


def ring_stages(c: Context) -> list[str] | None:
    """Another number of stages: of the ring, of halo tiles, of results."""
    n = c.place("producer ")
    word = c.rng.choice((", stages", ", stages", "epilogue stages", "halo stages", "resident stages"))
    return None if n is None else _numbered(c, n, rf"(?<={word} )\d+", lambda n: [n - 2, n - 1, n + 1, 1, 2, 2 * n])


def role_registers(c: Context) -> list[str] | None:
    """Other registers of a role."""
    n = c.place("producer ")
    return (
        None
        if n is None
        else _numbered(c, n, r"\d+(?= registers)", lambda n: [n - 8, n - 16, n + 8, n - 40, n + 4, n + 32, 24, 128])
    )


def role_waves(c: Context) -> list[str] | None:
    """Other waves of a role, or of a kernel without roles."""
    n = c.place("producer ") if c.place("producer ") is not None else c.place("waves ")
    if n is None:
        return None
    return _numbered(c, n, r"\d+(?= waves?\b)|(?<=^waves )\d+", lambda n: [n // 2, 2 * n, n + 1, n + 4, 1])


def block_alone(c: Context) -> list[str] | None:
    """Another block of a product, its axes left as they are; without roles, that is its own choice."""
    found = c.product()
    if found is None:
        return None
    n, m, _ = found
    rows, columns, _ = c.machine.multiply[m[2]].shape
    rows, columns = (columns, rows) if m[5] else (rows, columns)
    tall, wide = int(m[3]), int(m[4])
    size = c.rng.choice(
        [
            (tall + rows, wide),
            (2 * tall, wide),
            (tall, wide + columns),
            (rows, columns),
            (tall - rows, wide),
            (tall, wide // 2),
        ]
    )
    if min(size) < 1 or size == (tall, wide):
        return None
    changes = {n: f"{m[1]} by {m[2]}, tile {size[0]}x{size[1]}{m[5] or ''}"}
    return c.put(changes)


def other_sizes(c: Context) -> list[str] | None:
    """Another extent: a plan for other sizes."""
    axes = [n for n, line in enumerate(c.lines) if AXIS.fullmatch(line)]
    return _numbered(c, c.rng.choice(axes), r"\d+(?=[,)])", lambda n: [n + 1, n - 1, 2 * n])


# -- lists and words ------------------------------------------------------------------------------------------


def task_order(c: Context) -> list[str] | None:
    """Another order of tasks or loops."""
    n = c.rng.choice([p for p in (c.place("grid "), c.place("loops ")) if p is not None] or [-1])
    if n < 0:
        return None
    m = re.fullmatch(r"(\w+) (\w+(?:, \w+)*)(.*)", c.lines[n])
    assert m is not None
    names = m[2].split(", ")
    c.rng.shuffle(names)
    return c.put({n: f"{m[1]} {', '.join(names)}{m[3]}"})


def raster(c: Context) -> list[str] | None:
    """Another raster group, or none."""
    return _rastered(c, group=c.rng.choice(("", "2", "4", "8", "3")))


def schedule(c: Context) -> list[str] | None:
    """Another way to share tasks."""
    return _rastered(c, order=c.rng.choice(("", "contiguous", "contiguous", "dynamic", "reversed")))


def _rastered(c: Context, group: str | None = None, order: str | None = None) -> list[str] | None:
    """Another line `raster`: of another group, or of another order."""
    grid, n = c.place("grid "), c.place("raster ")
    if grid is None:
        return None
    words = c.lines[n].removeprefix("raster ").split(", ") if n is not None else []
    was_group = next((w for w in words if w.isdigit()), "")
    was_order = next((w for w in words if not w.isdigit()), "")
    parts = [w for w in (was_group if group is None else group, was_order if order is None else order) if w]
    lines = [line for line in c.lines if not line.startswith("raster ")]
    return [*lines[: grid + 1], *([f"raster {', '.join(parts)}"] if parts else []), *lines[grid + 1 :]]


def launch(c: Context) -> list[str] | None:
    """Another launch, or no word about it."""
    n = c.place("launch ")
    if n is None:
        return [*c.lines, c.rng.choice(("launch early", "launch plain"))] if c.rng.random() < 0.2 else None
    return c.put({n: c.rng.choice(("launch plain", "launch early"))})


def overlap(c: Context) -> list[str] | None:
    """Another overlap, one more, or none."""
    n = c.place("overlap ")
    word = c.rng.choice(("none", "mma ahead", "ordered", "delayed store"))
    if n is not None:
        return c.put({n: f"overlap {word}"})
    at = c.place("launch ")
    at = len(c.lines) if at is None else at
    return [*c.lines[:at], f"overlap {word}", *c.lines[at:]] if word != "none" and c.rng.random() < 0.3 else None


def role_words(c: Context) -> list[str] | None:
    """A word of the pipeline more or less: pingpong, store per group, joint, resident stages."""
    n = c.place("producer ")
    if n is None:
        return None
    line = c.lines[n]
    word = c.rng.choice((", pingpong", ", store per group", ", joint", ", resident stages 2"))
    if ", resident" in word:
        word = (re.search(r", resident stages \d+", line) or [word])[0]
    return c.put({n: line.replace(word, "") if word in line else line + word})


def hint(c: Context) -> list[str] | None:
    """The other hint of an operand."""
    found = [n for n, line in enumerate(c.lines) if OPERAND.match(line)]
    if not found:
        return None
    n = c.rng.choice(found)
    line = c.lines[n]
    return c.put({n: line.removesuffix(", stream") if line.endswith(", stream") else f"{line}, stream"})


def placement(c: Context) -> list[str] | None:
    """Another place or form of an operand."""
    found = [n for n, line in enumerate(c.lines) if OPERAND.match(line)]
    if not found:
        return None
    n = c.rng.choice(found)
    m = OPERAND.match(c.lines[n])
    assert m is not None
    name, end = m[1] or m[2], ", stream" if c.lines[n].endswith(", stream") else ""
    order = c.place("loops ")
    axes = c.lines[order].removeprefix("loops ").split(", ") if order is not None else []
    lines = [f"{name} in place", f"{name} strip at task", f"{name} panel at task"]
    lines += [f"repack {name}: aligned rows", f"repack {name}: padded rows"]
    lines += [f"{name} panel at {axis}" for axis in (*axes, "start") if "depth" not in axes]
    return c.put({n: f"{c.rng.choice(lines)}{end}"})


def panel(c: Context) -> list[str] | None:
    """B loaded at another loop, with as many taps at a time as lie inside it."""
    n, order = (
        next((n for n, line in enumerate(c.lines) if " panel at " in line and "start" not in line), None),
        c.place("loops "),
    )
    if n is None or order is None or c.place("producer ") is None:
        return None
    names = c.lines[order].removeprefix("loops ").split(", ")
    at = c.rng.choice([*names[1:], "start"])
    changes = {n: re.sub(r"panel at \w+", f"panel at {at}", c.lines[n])}
    inside = names[names.index(at) + 1 :] if at in names else []
    for axis in names[1:]:
        line = c.place(f"axis {axis} ")
        if line is not None:
            extent = re.findall(r"\d+(?=\))", c.lines[line])[0]
            changes[line] = re.sub(r": .*", f": loop {extent if axis in inside else 1}", c.lines[line])
    return c.put(changes)


# -- atoms and tiles ------------------------------------------------------------------------------------------


def atom_alone(c: Context) -> list[str] | None:
    """Another atom, the block left as it is."""
    found = c.product()
    if found is not None:
        n, m, _ = found
        own = c.machine.multiply[m[2]]
        alike = [x for x in c.machine.multiply.values() if x.c.dtype is own.c.dtype and x is not own]
        same = [x for x in alike if x.a.dtype is own.a.dtype] or alike
        pick = c.rng.choice(same if c.rng.random() < 0.8 else alike) if same else None
        return None if pick is None else c.put({n: c.lines[n].replace(m[2], pick.name, 1)})
    line = c.place("atom ")
    others = [name for name in c.machine.multiply if line is not None and c.lines[line] != f"atom {name}"]
    return c.put({line: f"atom {c.rng.choice(others)}"}) if line is not None and others else None


def by_loops(c: Context) -> list[str] | None:
    """A product by loops instead of an atom."""
    found = c.product()
    return None if found is None else c.put({found[0]: f"{found[1][1]} by loops"})


def _family(machine: Machine, name: str) -> list[MultiplyAtom]:
    """The atoms that differ from one in their columns alone."""
    form = re.sub(r"n\d+k", "n#k", name)
    return [x for x in machine.multiply.values() if re.sub(r"n\d+k", "n#k", x.name) == form]


def tile(c: Context) -> list[str] | None:
    """Another tile of a task: its axes, atom, block, and the waves and stages that go with it."""
    found, roles = c.product(), c.place("producer ")
    if found is None or roles is None or sum(PRODUCT.fullmatch(x) is not None for x in c.lines) > 1:
        return None
    n, m, product = found
    rows, columns = c.axis_of(product.rows), c.axis_of(product.columns)
    if rows is None or columns is None or re.search(r"(task|loop) \w+ \d+", c.lines[rows]):
        return None
    atom = c.rng.choice(_family(c.machine, m[2]))
    groups, down = c.rng.choice((1, 1, 2, 3)), c.rng.choice((1, 1, 2))
    size = (atom.shape[0] * groups * down, atom.shape[1])
    turned = bool(m[5])
    if c.rng.random() < 0.2 and m[2].count(".") == 2:  # the atom's rows along the other side of C
        turned = not turned
    size = size[::-1] if turned else size
    changes = {n: f"{m[1]} by {atom.name}, tile {size[0]}x{size[1]}{' transposed' if turned else ''}"}
    for line, width in ((rows, size[0]), (columns, size[1])):
        if "task" in c.lines[line]:
            changes[line] = re.sub(r"task \d+", f"task {width}", c.lines[line])
    pingpong = ", pingpong" in c.lines[roles]
    count = groups * (2 if pingpong else 1)
    text = re.sub(r"consumer \d+ waves? \d+", f"consumer {4 * count} waves {REGISTERS.get(count, 112)}", c.lines[roles])
    text = re.sub(r"producer (\d+ waves?) \d+", rf"producer \1 {40 if count < 3 else 24}", text)
    step = 128 * (size[0] + size[1])
    changes[roles] = re.sub(
        r"(?<=, )stages \d+", f"stages {max(1, min(8, c.rng.choice((2, 3, 4)), (190 << 10) // step))}", text
    )
    return c.put(changes)


def waves_pingpong(c: Context) -> list[str] | None:
    """Halves that take turns, each with the waves that a block takes; or none that do."""
    n = c.place("producer ")
    if n is None:
        return None
    m = re.search(r"consumer (\d+) waves? (\d+)", c.lines[n])
    assert m is not None
    if ", pingpong" in c.lines[n]:
        line = re.sub(r"consumer \d+ waves? \d+", f"consumer {int(m[1]) // 2} waves 240", c.lines[n])
        return c.put({n: line.replace(", pingpong", "").replace("epilogue stages 1", "epilogue stages 2")})
    line = re.sub(r"consumer \d+ waves? \d+", f"consumer {2 * int(m[1])} waves 232", c.lines[n])
    line = re.sub(r"load (\d+ waves?) \d+", r"load \1 40", line)
    return c.put({n: re.sub(r"epilogue stages \d+.*", "epilogue stages 1, pingpong", line)})


def k_step(c: Context) -> list[str] | None:
    """Another step of K, with as many stages fewer as it is longer: `loop 64, stages 4` gives `loop 128, stages 2`."""
    found, roles = c.product(), c.place("producer ")
    if found is None:
        return None
    n = c.axis_of(found[2].summed)
    m = None if n is None else re.search(r"loop (\d+)$", c.lines[n])
    if n is None or m is None:
        return None
    times = c.rng.choice((2, 2, 3, 4))
    changes = {n: c.lines[n][: m.start()] + f"loop {times * int(m[1])}"}
    if roles is not None:
        ring = re.search(r"(?<=, )stages (\d+)", c.lines[roles])
        assert ring is not None
        changes[roles] = c.lines[roles].replace(ring[0], f"stages {max(1, int(ring[1]) // times)}")
    return c.put(changes)


def taps(c: Context) -> list[str] | None:
    """A step that has several taps of a filter, with fewer stages."""
    roles = c.place("producer ")
    axes = [n for n, line in enumerate(c.lines) if re.match(r"axis \w+_\d = .*: loop 1$", line)]
    if roles is None or not axes or c.place("loops ") is not None:
        return None
    n = c.rng.choice(axes)
    extent = int(re.findall(r"\d+(?=\))", c.lines[n])[0])
    ring = re.search(r"(?<=, )stages (\d+)", c.lines[roles])
    assert ring is not None
    changes = {n: re.sub(r"loop 1$", f"loop {extent}", c.lines[n])}
    changes[roles] = c.lines[roles].replace(ring[0], f"stages {max(1, int(ring[1]) // extent)}")
    return c.put(changes)


def box(c: Context) -> list[str] | None:
    """Another box of positions, with the block's rows and waves that go with it."""
    found, roles = c.product(), c.place("producer ")
    if found is None or roles is None:
        return None
    n, _m, product = found
    rows = c.axis_of(product.rows)
    if rows is None or not re.search(r"task \w+ \d+", c.lines[rows]):
        return None
    digits = re.findall(r"task (\w+) \d+", c.lines[rows])
    sizes = [1] * len(digits)
    sizes[-1], sizes[-2] = c.rng.choice(((8, 8), (8, 16), (8, 24), (8, 4), (64, 1), (16, 8), (64, 2)))
    if len(sizes) > 2:
        sizes[-3] = c.rng.choice((1, 1, 2, 4))
    line = f"{c.lines[rows].split('): ')[0]}): " + ", ".join(
        f"task {d} {s}" for d, s in zip(digits, sizes, strict=True)
    )
    total = prod(sizes)
    groups = c.rng.choice((1, 2)) if total % 128 == 0 else 1
    text = re.sub(r"consumer \d+ waves? \d+", f"consumer {4 * groups} waves {REGISTERS[groups]}", c.lines[roles])
    text = re.sub(r"load (\d+ waves?) \d+", r"load \1 40", text).replace(", pingpong", "")
    text = re.sub(
        r"stages \d+, halo stages \d+, epilogue stages \d+",
        f"stages {c.rng.choice((2, 3))}, halo stages {c.rng.choice((1, 2))}, epilogue stages 1",
        text,
    )
    block = re.sub(r"tile \d+", f"tile {total}", c.lines[n])
    return c.put({rows: line, roles: text, n: block})


def rows_of_chain(c: Context) -> list[str] | None:
    """Other rows of all products of a chain, with the waves that go with them."""
    roles = c.place("producer ")
    lines = [n for n, line in enumerate(c.lines) if PRODUCT.fullmatch(line)]
    if roles is None or len(lines) < 2:
        return None
    groups = c.rng.choice((1, 2, 3))
    product = c.shapes.products[0]
    rows = c.axis_of(product.rows)
    if rows is None:
        return None
    changes = {n: re.sub(r"tile \d+x", f"tile {64 * groups}x", c.lines[n]) for n in lines}
    changes[rows] = re.sub(r"task \d+", f"task {64 * groups}", c.lines[rows])
    text = re.sub(r"consumer \d+ waves? \d+", f"consumer {4 * groups} waves {REGISTERS[groups]}", c.lines[roles])
    text = re.sub(r"producer (\d+ waves?) \d+", rf"producer \1 {40 if groups < 3 else 24}", text)
    text = text.replace(", store per group", "") if groups == 1 else text
    changes[roles] = re.sub(r"(?<=, )stages \d+", "stages 2", text)
    return c.put(changes)


def blocks_of_sums(c: Context) -> list[str] | None:
    """Another block of sums without roles: the loops of both axes, tasks of whole blocks, and the block."""
    if c.place("producer ") is not None:
        return None
    found = c.product()
    if found is not None:
        n, m, product = found
        unit = c.machine.multiply[m[2]].shape[:2]
        size = [u * c.rng.choice((1, 2, 3, 4)) for u in unit]
        changes = {n: f"{m[1]} by {m[2]}, tile {size[0]}x{size[1]}"}
        for dims, width in ((product.rows, size[0]), (product.columns, size[1])):
            line = c.axis_of(dims)
            if line is not None and "loop" in c.lines[line] and dims[-1] not in c.shapes.reduced:
                task = width * c.rng.choice((1, 2))
                changes[line] = re.sub(r": .*", f": task {task}, loop {width}", c.lines[line])
        return c.put(changes)
    changes = {}
    for name in ("rows", "columns", "lanes"):
        n = c.place(f"axis {name} ")
        m = None if n is None else re.fullmatch(r"(axis \w+ = \()(.*)(\): )(.*)", c.lines[n])
        if n is None or m is None or "unit" not in m[4] or c.rng.random() < 0.3:
            continue
        unit = int(re.findall(r"unit (\d+)", m[4])[-1])
        block = unit * c.rng.choice((1, 2, 3, 4, 6))
        cuts = re.sub(r"loop \d+", f"loop {block}", m[4])
        cuts = re.sub(r"task \d+", f"task {block * c.rng.choice((1, 2, 4))}", cuts)
        digits = m[2]
        last = re.fullmatch(r"(\w+) (?:\d+ of )?(\d+)", digits)
        if last is not None and name == "columns":
            walked = -(-int(last[2]) // block) * block
            digits = f"{last[1]} {walked} of {last[2]}" if walked != int(last[2]) else f"{last[1]} {last[2]}"
        changes[n] = f"{m[1]}{digits}{m[3]}{cuts}"
    return c.put(changes) if changes else None


def depth_steps(c: Context) -> list[str] | None:
    """Other steps of the depth of a plan with one atom: another loop, or loops for units and units for loops."""
    n = c.place("axis depth ")
    if n is None:
        return None
    head, cuts = c.lines[n].split("): ")
    steps = cuts.split(", ")
    at = c.rng.randrange(len(steps))
    word, *rest = steps[at].split()
    if c.rng.random() < 0.5 and rest[-1] == "1" and at < len(steps) - 1:
        steps[at] = " ".join([{"loop": "unit", "unit": "loop"}[word], *rest])
    else:
        size = int(rest[-1])
        steps[at] = " ".join([word, *rest[:-1], str(c.rng.choice((2 * size, max(1, size // 2), 4 * size)))])
    return c.put({n: f"{head}): {', '.join(steps)}"})


def whole_axis(c: Context) -> list[str] | None:
    """A loop over an axis that is taken whole, or all at once of one that is looped over."""
    axes = [n for n, line in enumerate(c.lines) if re.search(r": (whole|loop \d+)$", line) and AXIS.fullmatch(line)]
    if not axes:
        return None
    n = c.rng.choice(axes)
    if not c.lines[n].endswith("whole"):
        return c.put({n: re.sub(r": .*", ": whole", c.lines[n])})
    extent = int(re.findall(r"\d+(?=\))", c.lines[n])[-1])
    word = c.rng.choice(("loop", "loop", "loop", "task"))
    size = c.rng.choice((max(1, extent // 2), 16, 32, 64))
    return c.put({n: c.lines[n].replace("whole", f"{word} {min(size, extent)}")})


def split_k(c: Context) -> list[str] | None:
    """Another number of parts of K with their axes; parts of a K that was whole; or a whole K of one in parts."""
    n, found = c.place("parts "), c.product()
    roles = c.place("producer ")
    if n is None:
        if found is None or roles is None or len(found[2].summed) != 1 or c.place("axis K = (K ") is None:
            return None
        at = c.place("axis K = (K ")
        assert at is not None
        extent, step = c.shapes.sizes["K"], int(c.lines[at].rsplit(" ", 1)[1])
        count = c.rng.choice((2, 3, 4))
        part = -(-extent // count // step) * step
        lines = c.put({at: f"axis K_part = (K_part {part}): loop {step}"})
        tasks = c.place("grid ")
        assert tasks is not None
        lines[tasks] = lines[tasks].replace("grid ", "grid K_split, ")
        lines.insert(roles + 1, f"parts K {count}")
        return [f"axis K_split = (K_split {count}): task 1", *lines]
    m = re.fullmatch(r"parts (\w+) (\d+)", c.lines[n])
    outer, inner = c.place(f"axis {m[1]}_split ") if m else None, c.place(f"axis {m[1]}_part ") if m else None
    if m is None or outer is None or inner is None:
        return None
    count = c.rng.choice((int(m[2]) // 2, 2 * int(m[2]), int(m[2]) + 1, 3))
    if count < 2:
        return None
    extent = c.shapes.sizes[m[1]]
    step = next((int(x) for x in re.findall(r"loop (\d+)", c.lines[inner])), 1)
    part = ceil(ceil(extent / count) / step) * step if step > 1 else extent // count
    return c.put(
        {
            n: f"parts {m[1]} {count}",
            outer: f"axis {m[1]}_split = ({m[1]}_split {count}): task 1",
            inner: re.sub(r"_part \d+", f"_part {part}", c.lines[inner]),
        }
    )


def split_alone(c: Context) -> list[str] | None:
    """Another number of parts, the axes left as they are."""
    n = c.place("parts ")
    return None if n is None else _numbered(c, n, r"\d+$", lambda n: [n + 1, n - 1, 2 * n])


# -- what goes wrong while typing -----------------------------------------------------------------------------


def delete_line(c: Context) -> list[str] | None:
    """A line is missing."""
    n = c.rng.randrange(len(c.lines))
    return [*c.lines[:n], *c.lines[n + 1 :]]


def delete_word(c: Context) -> list[str] | None:
    """A word is missing."""
    n = c.rng.randrange(len(c.lines))
    words = c.lines[n].split(" ")
    at = c.rng.randrange(len(words))
    return c.put({n: " ".join(words[:at] + words[at + 1 :])}) if len(words) > 1 else None


def misspell(c: Context) -> list[str] | None:
    """Two letters of a word are exchanged, or one is missing."""
    n = c.rng.randrange(len(c.lines))
    places = list(re.finditer(r"[A-Za-z_]{3,}", c.lines[n]))
    if not places:
        return None
    m = c.rng.choice(places)
    at = c.rng.randrange(len(m[0]) - 1)
    word = m[0]
    other = c.rng.choice((word[:at] + word[at + 1] + word[at] + word[at + 2 :], word[:at] + word[at + 1 :]))
    return c.put({n: c.lines[n][: m.start()] + other + c.lines[n][m.end() :]})


def swap_lines(c: Context) -> list[str] | None:
    """Two lines of axes stand the other way round."""
    axes = [n for n, line in enumerate(c.lines) if AXIS.fullmatch(line)]
    if len(axes) < 2:
        return None
    a, b = c.rng.sample(axes, 2)
    return c.put({a: c.lines[b], b: c.lines[a]})


def twice(c: Context) -> list[str] | None:
    """A line stands there twice."""
    n = c.rng.randrange(len(c.lines))
    return [*c.lines[: n + 1], *c.lines[n:]]


KINDS: dict[Edit, int] = {
    split_size: 10, batch_size: 6, ring_stages: 8, role_registers: 8, role_waves: 6, block_alone: 6, other_sizes: 2,
    task_order: 8, raster: 6, schedule: 6, launch: 4, overlap: 4, role_words: 4, hint: 3, placement: 4, panel: 6,
    atom_alone: 6, by_loops: 2, tile: 12, waves_pingpong: 4, k_step: 10, taps: 6, box: 8, rows_of_chain: 8,
    blocks_of_sums: 14, depth_steps: 5, whole_axis: 6, split_k: 6, split_alone: 2, delete_line: 4, delete_word: 4,
    misspell: 4, swap_lines: 2, twice: 1,
}  # fmt: skip
"""Every kind of edit, and how often it is tried."""


def edit(lines: list[str], shapes: Shapes, machine: Machine, rng: random.Random) -> tuple[str, list[str]]:
    """(the kind of an edit, the lines of a plan so edited): of one of its kernels, now and then in two ways."""
    for _ in range(1000):
        start, end = _kernel(lines, rng)
        kinds = list(KINDS)
        kind = rng.choices(kinds, [KINDS[k] for k in kinds])[0]
        found = kind(Context(lines[start:end], shapes, machine, rng))
        if found is None or found == lines[start:end]:
            continue
        names = kind.__name__
        if rng.random() < 0.15:
            more = rng.choices(kinds, [KINDS[k] for k in kinds])[0]
            again = more(Context(found, shapes, machine, rng))
            if again is not None and again != lines[start:end]:
                found, names = again, f"{names}, {more.__name__}"
        return names, [*lines[:start], *found, *lines[end:]]
    raise AssertionError("no edit of this plan was found")


def _kernel(lines: list[str], rng: random.Random) -> tuple[int, int]:
    """The first and last line of one kernel."""
    if "then" not in lines:
        return 0, len(lines)
    at = lines.index("then")
    return rng.choice(((0, at), (at + 1, len(lines))))
