"""Faults planted in the making of GPU code, one at a time: what catches each, without a GPU and on one.

`python benchmarks/planted_gpu_faults.py [WORD ...]` plants each fault (those whose names hold a word) in a copy of the
package, and prints the first test that fails. `python benchmarks/planted_gpu_faults.py make FILE [WORD ...]` compiles
random programs with each fault that still gives code; `python benchmarks/gpu_fuzz.py run FILE 3 5` on a GPU must find
some of each wrong, or hanging.
"""

from __future__ import annotations

import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NVIDIA, GPU, WAVES = ("src/tilewright/targets/nvidia", "src/tilewright/targets/gpu", "src/tilewright/lower/gpu")
QUICK = [
    f"tests/targets/nvidia/test_{x}.py"
    for x in ("emission", "addresses", "ptx", "driver", "products", "kept", "fma", "askew")
]
TESTS = [
    [
        *QUICK,
        "tests/machine/test_atoms.py::test_lane_maps_are_those_of_the_manuals",
        "tests/lower/gpu/test_waves_lanes.py",
        "tests/lower/gpu/test_waves_lane_copies.py",
    ],
    ["tests/targets/nvidia/test_programs.py", "-k", "both_levels and not _hopper"],
    ["tests/targets/nvidia/test_programs.py", "-k", "assembled and not _hopper and not wgmma"],
    ["tests/lower/gpu/test_waves_random.py"],
]
"""Tests in the order in which they are tried."""
ROLES, PRODUCTS, LANES = "roles", "products", "one role"


@dataclass(frozen=True)
class Fault:
    """A line of a file that is written otherwise; the kind of random programs that show it on a GPU."""

    name: str
    file: str
    right: str
    wrong: str
    kind: str


FAULTS = [
    Fault(
        "lane map: rows and columns of C's values change places",
        f"{NVIDIA}/multiply.py",
        'f32, Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))),\n        ("sm_80",),\n',
        'f32, Layout(((4, 8), (2, 2)), ((32, 1), (8, 16)))),\n        ("sm_80",),\n',
        PRODUCTS,
    ),
    Fault(
        "lane map: the halves of a word change places",
        f"{NVIDIA}/mma.py",
        "{e.get(value, first + i)}, i32 {i}",
        "{e.get(value, first + i)}, i32 {each - 1 - i}",
        PRODUCTS,
    ),
    Fault(
        "lane map: ldmatrix is given the rows of the neighbour",
        f"{NVIDIA}/eights.py",
        "lane: row // 2 if is_transposed else 4 * row,",
        "lane: row // 2 if is_transposed else 4 * (row ^ 1),",
        PRODUCTS,
    ),
    Fault(
        "descriptor: another swizzle", f"{NVIDIA}/wgmma.py", "SWIZZLE_128 = 1 << 62", "SWIZZLE_128 = 1 << 63", PRODUCTS
    ),
    Fault(
        "descriptor: groups of rows are twice as far apart",
        f"{NVIDIA}/wgmma.py",
        "(self.groups * self.size // 16) << 32",
        "(self.groups * self.size // 8) << 32",
        PRODUCTS,
    ),
    Fault(
        "descriptor: a step of k is half as far",
        f"{NVIDIA}/wgmma.py",
        "return self.moves[step] * self.size // 16",
        "return self.moves[step] * self.size // 32",
        PRODUCTS,
    ),
    Fault(
        "phase: a consumer waits for the fill before",
        f"{WAVES}/channels.py",
        "phase=place.turn)",
        "phase=place.turn - 1)",
        ROLES,
    ),
    Fault(
        "phase: a producer does not wait for an empty stage",
        f"{WAVES}/channels.py",
        "phase=place.turn - 1)",
        "phase=place.turn - 2)",
        ROLES,
    ),
    Fault(
        "phase: the other parity",
        f"{GPU}/emit.py",
        'self.w.number(op.attrs["phase"] % 2)',
        'self.w.number((op.attrs["phase"] + 1) % 2)',
        ROLES,
    ),
    Fault(
        "arrivals: one too few",
        f"{WAVES}/channels.py",
        "else low.group_of(role)",
        "else max(1, low.group_of(role) - 1)",
        ROLES,
    ),
    Fault(
        "bytes: half of a box is expected",
        f"{WAVES}/copies.py",
        "count = prod(near.extents) * near.dtype.numpy.itemsize",
        "count = prod(near.extents) * near.dtype.numpy.itemsize // 2",
        ROLES,
    ),
    Fault(
        "fence: none before what waves stored is read by itself",
        f"{WAVES}/wave_lowering.py",
        'self.emit("fence")',
        "pass",
        PRODUCTS,
    ),
    Fault(
        "fence: written, and no instruction",
        f"{NVIDIA}/dialect.py",
        'e.w.assembly("fence.proxy.async.shared::cta;")',
        "pass",
        PRODUCTS,
    ),
    Fault(
        "registers: what all rounds of a loop take is given away",
        f"{GPU}/emit.py",
        "self.dialect.keep_registers(self, unchanged)",
        "pass",
        PRODUCTS,
    ),
    Fault(
        "waves do not meet where one reads what another wrote",
        "src/tilewright/analysis/needless_barriers.py",
        "                if not unmet:\n",
        "                if True:\n",
        LANES,
    ),
    Fault(
        "lanes do not meet",
        f"{WAVES}/lane_sync.py",
        'self.low.emit("together")',
        "pass",
        LANES,
    ),
    Fault(
        "products are not waited for",
        f"{WAVES}/mmas_in_flight.py",
        'self.low.emit("settle", finished, pending=len(self.groups))',
        'self.low.emit("settle", finished, pending=len(self.groups) + 1)',
        PRODUCTS,
    ),
    Fault(
        "registers: given away by who needs them",
        f"{NVIDIA}/dialect.py",
        'word = "inc" if count > _registers_at_entry(threads) else "dec"',
        'word = "dec" if count > _registers_at_entry(threads) else "inc"',
        "",
    ),
    Fault(
        "registers: more than there are",
        f"{NVIDIA}/dialect.py",
        "if wanted > entry * all_threads:",
        "if wanted > 2 * entry * all_threads:",
        "",
    ),
    Fault(
        "boxes: the last two coordinates change places",
        f"{NVIDIA}/boxes.py",
        "return MapForm.of(TensorMap, 0, extents, strides, box, tile.span), its_boxes",
        "return MapForm.of(TensorMap, 0, extents[::-1], strides, box, tile.span), its_boxes",
        ROLES,
    ),
    Fault(
        "waves that multiply together begin anywhere",
        f"{GPU}/emit.py",
        "any(atom.c.lanes > self.lanes for atom in atoms)",
        "any(atom.c.lanes > 128 for atom in atoms)",
        PRODUCTS,
    ),
    Fault(
        "stores: conditions are left out",
        f"{GPU}/memory.py",
        "        with e.w.when(e.w.condition(run.when)):\n            store_run(run)\n\n\n_ATOMIC",
        "        store_run(run)\n\n\n_ATOMIC",
        PRODUCTS,
    ),
    Fault(
        "lanes' copies: the stage does not wait for them",
        f"{WAVES}/channels.py",
        'low.emit("land", (ring.full,), at=(ring.barrier(place),))',
        "pass",
        "",
    ),
    Fault(
        "lanes' copies: no fence where products read them",
        f"{WAVES}/channels.py",
        '        low.emit("fence")',
        "        pass",
        "",
    ),
    Fault(
        "lanes' copies: nothing arrives as zero",
        f"{NVIDIA}/cp_async.py",
        'if "inside" not in op.attrs:',
        "if True:",
        "",
    ),
    Fault(
        "lanes' copies: stages are not swizzled",
        f"{NVIDIA}/cp_async.py",
        'swizzled(shared.type.swizzle, e.at_value(op.attrs["at"][0], axes, 0))',
        'e.at_value(op.attrs["at"][0], axes, 0)',
        "",
    ),
    Fault(
        "lanes' copies: no instruction makes the barrier wait",
        f"{NVIDIA}/dialect.py",
        'e.w.assembly("cp.async.mbarrier.arrive.shared::cta.b64 [$0];", "r", (f"i32 {address}",))',
        "pass",
        "",
    ),
    Fault(
        "sums: what begins them is left out",
        f"{NVIDIA}/fma.py",
        "before = zero if begins else e.get(c, v)",
        "before = e.get(c, v)",
        "",
    ),
    Fault(
        "shared memory: stores are not swizzled",
        f"{GPU}/memory.py",
        "swizzled(kind.swizzle, offsets[i]), conditions[i]",
        'swizzled(kind.swizzle if op.name == "load" else None, offsets[i]), conditions[i]',
        PRODUCTS,
    ),
    Fault(
        "lanes' products: chunks are where no swizzle moves them",
        f"{NVIDIA}/fma.py",
        'f"xor i32 {self.turn}, {chunk}"',
        'f"add i32 0, {chunk}"',
        PRODUCTS,
    ),
    Fault(
        "lanes' products: all waves have the rows of the first",
        f"{NVIDIA}/fma.py",
        'f"and i32 {e.wave}, {atom.c.lanes // e.lanes - 1}"',
        'f"and i32 {e.wave}, 0"',
        PRODUCTS,
    ),
    Fault(
        "words that begin anywhere: a half too far",
        f"{GPU}/memory.py",
        "'and i32 {low_bits}, 2'",
        "'and i32 {low_bits}, 4'",
        LANES,
    ),
]


def planted(fault: Fault, folder: Path) -> Path:
    """A copy of the package with the fault; its folder of sources."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / fault.file
    text = file.read_text()
    if text.count(fault.right) != 1:
        raise SystemExit(f"{fault.name}: {fault.file} holds {fault.right!r} {text.count(fault.right)} times")
    file.write_text(text.replace(fault.right, fault.wrong))
    return folder / "src"


def caught(source: Path) -> str:
    """The first test that fails, and what it says."""
    environment = {**os.environ, "PYTHONPATH": str(source), "TILEWRIGHT_CACHE_DIR": "off"}
    for tests in TESTS:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf", *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 1:
            told = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
            return told[0].removeprefix("FAILED ")[:160]
    return ""


def compiled(source: Path, kind: str, seeds: list[int]) -> list[dict[str, Any]]:
    """Random programs as code with the fault; none where it is refused."""
    environment = {**os.environ, "PYTHONPATH": str(source), "TILEWRIGHT_CACHE_DIR": "off"}
    command = [sys.executable, str(Path(__file__).parent / "gpu_fuzz.py"), "compile", kind, *map(str, seeds)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return [] if done.returncode else pickle.loads(done.stdout)


SEEDS = {
    ROLES: [1002, 1003, 1004, 1005, 1006, 1008],
    PRODUCTS: [1000, 1001, 1002, 1003, 1005, 1008, 1011, 1014, 1017, 1020, 1023, 1026],
    LANES: [1000, 1001, 1003, 1006, 1009, 1012],
}


def main() -> int:
    """Plants all faults, or those that are named."""
    words = sys.argv[1:]
    making = words[:1] == ["make"]
    entries, missed, wanted = [], 0, words[2:] if making else words
    chosen = [f for f in FAULTS if not wanted or any(w in f.name for w in wanted)]
    for fault in chosen:
        with tempfile.TemporaryDirectory() as folder:
            source = planted(fault, Path(folder))
            if making:
                found = compiled(source, fault.kind, SEEDS[fault.kind]) if fault.kind else []
                entries += [{**entry, "fault": fault.name} for entry in found]
                print(f"{fault.name}: {len(found)} programs", flush=True)
                continue
            said = caught(source)
            missed += not said
            print(f"{fault.name}\n    {said or 'ONLY A GPU shows it'}", flush=True)
    if making:
        Path(words[1]).write_bytes(lzma.compress(pickle.dumps(entries)))
    else:
        print(f"{len(chosen) - missed} of {len(chosen)} are caught without a GPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
