"""Random valid programs of several roles: producers, consumers and storers, joined by channels of different rates.

A producer brings tiles of x and, several times as often, tiles of w; some weights stay for good. Consumers sum products
of their elements; the sums leave from registers, through a channel of the consumer's own, or through a third role.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from random_programs import Modes

Array = np.ndarray[Any, np.dtype[Any]]


def spread_over(rng: random.Random, shape: tuple[int, ...], threads: int) -> str:
    """A distribution over exactly so many threads; what is too many are copies."""
    modes = []
    for dim, size in enumerate(shape):
        stride = 1
        while size % 2 == 0:
            modes.append((dim, 2, stride))
            size, stride = size // 2, stride * 2
        if size > 1:
            modes.append((dim, size, stride))
    rng.shuffle(modes)
    mine: list[tuple[int, int, int]] = []
    left = threads
    values = []
    for mode in modes:
        if left % mode[1] == 0:
            mine.append(mode)
            left //= mode[1]
        else:
            values.append(mode)
    if left > 1:
        mine.append((-1, left, 0))
    return str(Modes(shape, mine, values))


def random_role_program(seed: int) -> tuple[str, dict[str, Array], dict[str, Array]]:
    """(text, arguments by name, what the outputs must be)."""
    rng = random.Random(seed)
    draw = np.random.default_rng(seed)
    hopper = rng.random() < 0.6
    # TMA writes boxes from multiples of 128 bytes on, also the halves of a split copy
    rows, columns = (
        rng.choice(((8, 8), (4, 16), (8, 16), (2, 32), (6, 32), (8, 32)))
        if hopper
        else (rng.choice((2, 4, 6, 8)), rng.choice((8, 16, 32)))
    )
    tasks, depth, rate = rng.randint(1, 5), rng.randint(1, 4), rng.choice((1, 1, 2, 3))
    stages_x, stages_w, stages_out = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3)
    producers = rng.choice((1, 1, 2))
    pingpong = rng.random() < 0.3
    consumers = rng.choice((2, 4)) if pingpong else rng.choice((1, 2, 4))
    together = consumers // 2 if pingpong else consumers
    joined = rate == 1 and rng.random() < 0.4  # x and w share one ring
    resident = rng.random() < 0.5
    exits = ["registers", "own channel"] + ["storer"] * (not pingpong)
    leaves = rng.choice(exits)
    lag = 0 if joined or pingpong else rng.randint(0, min(stages_x, depth) - 1)  # stages that a consumer holds on to
    split_copy = rng.random() < 0.3
    schedule = rng.choice(("", " schedule contiguous", " schedule dynamic", " schedule table of %deal"))
    swizzle = " swizzle <2,2,2>" if columns >= 16 and rng.random() < 0.5 else ""
    if hopper and swizzle:  # TMA's own: rows of 64 or 128 bytes
        swizzle = " swizzle <2,2,3>" if columns == 16 else " swizzle <3,2,3>"
    load, store = (" by tma.load", " by tma.store") if hopper else ("", "")
    ragged = rng.randint(0, columns - 1) if rng.random() < 0.5 else 0
    if hopper:  # tensor maps have strides of 16 bytes
        ragged -= ragged % 4
    width = columns - ragged
    shape = (rows, columns)
    threads = (32 if hopper else rng.choice((1, 2, 4, 8))) * together
    spread = spread_over(rng, shape, threads)
    lines: list[str] = []
    at = 1

    def line(text: str) -> None:
        nonlocal at
        at -= text.startswith("}")
        lines.append("  " * at + text)
        at += text.endswith("{")

    def box(name: str, base: str, *first: str) -> None:
        mark = " ?" if ragged else ""
        line(f"%{name} = view %{base} (i {rows}, j {columns}) -> [{', '.join((*first, 'i', f'j{mark}'))}]")

    def bring(source: str, target: str) -> None:
        if split_copy and not ragged:
            for half in range(2):
                for name, base in ((f"{source}_{half}", source), (f"{target}_{half}", target)):
                    line(f"%{name} = view %{base} (i {rows // 2}, j {columns}) -> [i + {half * (rows // 2)}, j]")
                line(f"copy %{source}_{half} -> %{target}_{half}{load}")
        else:
            line(f"copy %{source} -> %{target}{' else 0' if ragged else ''}{load}")

    line(f"%xs = alloc shared f32 ({stages_x}, {rows}, {columns}){swizzle}")
    line(f"%ws = alloc shared f32 ({stages_x if joined else stages_w}, {rows}, {columns})")
    if resident:
        line(f"%cs = alloc shared f32 (1, {rows}, {columns})")
        line("%stay = channel %cs stages 1 from producer to consumer")
    if joined:
        line(f"%ring = channel %xs, %ws stages {stages_x} from producer to consumer")
    else:
        line(f"%xring = channel %xs stages {stages_x} from producer to consumer")
        line(f"%wring = channel %ws stages {stages_w} from producer to consumer")
    if leaves == "storer":
        line(f"%os = alloc shared f32 ({stages_out}, {rows}, {columns})")
        line(f"%oring = channel %os stages {stages_out} from consumer to storer")
    roles = []

    # what each role does is written down on its own, and the roles in any order
    def start() -> None:
        nonlocal lines
        roles.append(lines)
        lines = []

    start()
    line(f"role producer waves {producers} {{")
    if resident:
        line("%room = acquire %stay")
        box("gc", "c")
        bring("gc", "room")
        line("commit %stay")
    line(f"tasks t in 0..{tasks}{schedule} {{")
    line(f"for k in 0..{depth} {{")
    if joined:
        line("%sx, %sw = acquire %ring")
        box("gx", "x", "t", "k")
        bring("gx", "sx")
        box("gw", "w", "t", "k", "0")
        bring("gw", "sw")
        line("commit %ring")
    else:
        line("%sx = acquire %xring")
        box("gx", "x", "t", "k")
        bring("gx", "sx")
        line("commit %xring")
        line(f"for r in 0..{rate} {{")
        line("%sw = acquire %wring")
        box("gw", "w", "t", "k", "r")
        bring("gw", "sw")
        line("commit %wring")
        line("}")
    line("}")
    line("}")
    line("}")

    start()
    line(f"role consumer waves {consumers} {{")
    if resident:
        line("%still = wait %stay")
    line(f"tasks t in 0..{tasks}{schedule}{' overlap pingpong' if pingpong else ''} {{")
    line(f"%acc = alloc register f32 ({rows}, {columns}) by {spread}")
    line("fill %acc 0")
    line(f"for k in 0..{depth} {{")
    line("%tx, %tw = wait %ring" if joined else "%tx = wait %xring")
    if not joined:
        line(f"for r in 0..{rate} {{")
        line("%tw = wait %wring")
    term = rng.choice(("%acc + %tx*%tw", "%tw*%tx + %acc", "%acc - (-%tx)*%tw"))
    line(f"map %acc = {term}{' + %still' if resident else ''}")
    if joined:
        line("release %ring")
    else:
        line("release %wring")
        line("}")
        if lag:
            line(f"if (k >= {lag}) {{")
            line("release %xring")
            line("}")
        else:
            line("release %xring")
    line("}")
    for _ in range(lag):
        line("release %xring")
    finish = rng.random() < 0.5 or pingpong
    if finish:
        line("} finally {")
    mark = " ?" if ragged else ""
    out = f"%out = view %y (i {rows}, j {columns}) -> [t, i, j{mark}]"
    if leaves == "registers":
        line(out)
        line("copy %acc -> %out")
    elif leaves == "own channel":
        line(f"%mine = alloc shared f32 ({stages_out}, {rows}, {columns})")
        line(f"%own = channel %mine stages {stages_out} from consumer to consumer")
        line("%room = acquire %own")
        line("map %room = %acc")
        line("commit %own")
        line("%ready = wait %own")
        line(out)
        line(f"copy %ready -> %out{store}")
        line("release %own")
    else:
        line("%room = acquire %oring")
        line("copy %acc -> %room")
        line("commit %oring")
    line("}")
    line("}")

    if leaves == "storer":
        start()
        line(f"role storer waves {rng.choice((1, 2))} {{")
        line(f"tasks t in 0..{tasks}{schedule} {{")
        line("%ready = wait %oring")
        line(out)
        line(f"copy %ready -> %out{store}")
        line("release %oring")
        line("}")
        line("}")
    roles.append(lines)
    first, *rest = roles
    rng.shuffle(rest)
    x = draw.integers(-4, 5, (tasks, depth, rows, width))
    w = draw.integers(-4, 5, (tasks, depth, rate, rows, width))
    c = draw.integers(-4, 5, (rows, width))
    arguments = [
        f"%x: in global f32 ({tasks}, {depth}, {rows}, {width})",
        f"%w: in global f32 ({tasks}, {depth}, {rate}, {rows}, {width})",
        f"%c: in global f32 ({rows}, {width})",
        f"%y: out global f32 ({tasks}, {rows}, {width})",
    ]
    deal = np.full((draw.integers(1, 4), tasks + 1), -1, np.int32)
    for task in draw.permutation(tasks):
        row = draw.integers(len(deal))
        deal[row, (deal[row] >= 0).sum()] = task
    if "table" in schedule:
        arguments.insert(0, f"%deal: in global i32 {deal.shape}")
    text = f"block roles_{seed}({', '.join(arguments)})\n" + ("  machine hopper\n" if hopper else "") + "{\n"
    text += "\n".join(row for part in (first, *rest) for row in part) + "\n}\n"
    wanted = (x[:, :, None] * w).sum((1, 2)) + (c * depth * rate if resident else 0)
    arrays = {"x": x, "w": w, "c": c, "y": np.full(wanted.shape, 77)}
    arrays = {k: a.astype(np.float32) for k, a in arrays.items()} | ({"deal": deal} if "table" in schedule else {})
    return text, arrays, {"y": wanted.astype(np.float32)}
