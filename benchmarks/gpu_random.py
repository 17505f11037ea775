"""Random convolutions, matrix products and tile programs on a GPU, planned as they come: the results must be exact.

    python benchmarks/gpu_random.py [--convs 2000] [--products 300] [--programs 0] [--firsts 0] [--kernels 0] [--seed S]
                                    [--first I] [--jobs J] [--seconds T] [--interpret] [--loops] [--compile] [--show]

Convolutions go over one, two and three axes: images that are not square, ragged sizes, padding, dilation, strides,
groups, depthwise, odd channels and wide ones; firsts are those of one to seven channels; products have any transposes,
batches, a bias. Types are bf16, f16, s8, e4m3, f32, and f32 rounded to tf32. Programs are tile programs: a third each
from random_products.py (one to three products, what lies between them), from random_language.py (all operations, loops,
mappings, scatters, sizes that stay open), and from the generators of the tests (loops, conditions, workgroups); those
that are not exact must lie within a bound. Kernels are those of ragged_kernels.py, number by number.

Every one is compiled, and run twice, under its own plan and, some, under a random candidate. Before a launch every
output, every workspace and the guards around all arrays hold NaN (a marker, for integers): what is read from outside
shows in the result, what is written there in the guards. Convolutions with groups run once more, with NaN in one of
their groups.

Many processes compile, assemble and run side by side; one whose program hangs or faults is replaced, and that counts as
wrong. What is refused is counted by reason. Number I of a seed is the same problem in every run. `--interpret` runs
block programs on the interpreter instead, for places without a GPU, `--loops` the loop programs that they become;
`--compile` runs nothing, and says what is refused; `--show` prints each problem and its plan. The exit code is 1 if
something is wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

TYPES = {
    "bf16": ("bf16", "f32"),
    "f16": ("f16", "f32"),
    "s8": ("s32", "s8"),
    "f8e4m3fn": ("bf16", "f32"),
    "f32": ("f32",),
    "tf32": ("f32",),
}
SIZES = (1, 2, 3, 5, 8, 16, 17, 31, 32, 48, 63, 64, 65, 72, 100, 128, 136, 200, 256, 333, 512, 700, 1024, 2500, 4096)
MOST = 100_000_000
"""Products of one problem."""
GUARD, PATIENCE = 4096, 30.0
"""Bytes before and after each array; seconds that one problem may take, and that the last ones have at the end."""
REPORTED = 5.0
"""Seconds between two lines that say how far it is."""
OTHERS = 0.25
"""The share of problems that run under another candidate too."""
REFUSED = ("refused", "other plan refused")
"""A problem that is refused, and a candidate that was ranked and then cannot be done."""
Array = np.ndarray[Any, np.dtype[Any]]
Words = Callable[[str], None]


@dataclass
class Run:
    """The arguments of a kernel by name, and what it must write."""

    arrays: dict[str, Array]
    wanted: dict[str, Array]
    far: dict[str, Array] = field(default_factory=dict)
    """How far from that each element may lie, where it need not be equal."""


@dataclass
class Case:
    """A kernel for sizes, and what it is run on: of sizes that are `dynamic`, others too."""

    words: str
    kernel: Any
    sizes: dict[str, int]
    runs: list[Run]
    constant: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    """Arguments that are written, and hold something before: they are not poisoned."""
    dynamic: tuple[str, ...] = ()


@dataclass
class Traced:
    """A tile program as kernels are: something that can be traced."""

    program: Any

    def trace(self) -> Any:
        """The program."""
        return self.program


# -- problems ------------------------------------------------------------------------------------------------


def convolution(number: int, seed: int, first: bool = False) -> Case:
    """A convolution; half of them have channels that fill large tiles. With `first`, one of few channels."""
    from random_convolutions import random_problem

    from tilewright.cli.workload import Workload
    from tilewright.kernels.conv import conv

    rng = np.random.default_rng((seed, number))
    kind, types = _types(rng)
    problem = random_problem(rng, wide=bool(rng.random() < 0.5) and not first, first=first)
    work = Workload(problem, types)
    _, sizes = work.kernel
    arrays = work.arrays(np.random.default_rng((seed, number, 1)), exact=True)
    data, result = (_ours(name) for name in types[1:])
    ends = list(zip(problem.p, problem.p_right, strict=True))
    kernel = conv(
        problem.k, data, result, stride=problem.s, padding=ends, dilation=problem.dilation, groups=problem.groups,
        precision="tf32" if kind == "tf32" else None,
    )  # fmt: skip
    runs = [Run(arrays, {"y": work.reference(arrays).astype(arrays["y"].dtype)})]
    if problem.groups > 1 and arrays["x"].dtype.kind not in "iu":  # what one group reads is NaN: others do not see it
        each, group = problem.ic // problem.groups, int(rng.integers(problem.groups))
        poisoned = arrays | {"x": arrays["x"].copy()}
        poisoned["x"][..., each * group : each * (group + 1)] = np.nan
        runs.append(Run(poisoned, {"y": work.reference(poisoned).astype(arrays["y"].dtype)}))
    return Case(f"{problem} {kind}:{result}", kernel, sizes, runs, ("w",))


def product(number: int, seed: int) -> Case:
    """A matrix product, or several: any transposes, perhaps a bias."""
    from tilewright.kernels.gemm import TRANSPOSES, gemm
    from tilewright.problems import MatmulProblem, exact_data, matmul_reference

    rng = np.random.default_rng((seed, number, 2))
    kind, types = _types(rng)
    count = int(rng.choice([1, 1, 1, 2, 3]))
    m, n, k = (int(x) for x in rng.choice(SIZES, 3))
    while count * m * n * k > MOST:
        m, n, k = (-(-x // 2) for x in (m, n, k))
    batch = (count,) if count > 1 else ()
    transposes, bias = str(rng.choice(TRANSPOSES)), types[2] in ("f32", "s32") and rng.random() < 0.3
    data, result = (_ours(name) for name in types[1:])
    kernel = gemm(
        transposes, data, result, batched=count > 1, bias=bool(bias), precision="tf32" if kind == "tf32" else None
    )
    problem = MatmulProblem((*batch, m, k), (*batch, k, n))
    a, b = exact_data(problem, ":".join(types[:2]), rng, result=types[2])
    wanted = matmul_reference(problem, a, b)
    arrays = {"a": a if transposes[0] == "n" else a.swapaxes(-1, -2)}
    arrays["b"] = b if transposes[1] == "n" else b.swapaxes(-1, -2)
    if bias:
        sums = np.int32 if kind == "s8" else np.float32
        arrays["bias"] = rng.integers(-9, 10, n).astype(sums)
        wanted = wanted + arrays["bias"].astype(wanted.dtype)
    out = np.zeros(wanted.shape, _numpy(types[2]))
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()} | {"c": out}
    sizes = {"M": m, "N": n, "K": k} | ({"B": count} if count > 1 else {})
    words = f"{count} of {m}x{n}x{k} {transposes} {kind}:{result}{', bias' if bias else ''}"
    return Case(words, kernel, sizes, [Run(arrays, {"c": wanted.astype(out.dtype)})])


def program(number: int, seed: int) -> Case:
    """A tile program: with products, of everything else, or as the tests make them, in turn."""
    return (_with_products, _of_language, _of_tests)[number % 3](number // 3, seed)


def _with_products(number: int, seed: int) -> Case:
    """One to three products, and other work between them."""
    from random_products import made

    import tilewright

    case = made(number, seed)
    wanted = tilewright.compile(case.kernel, target="executor")(*case.inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    names = [a.name for a in case.kernel.trace().args]
    results = dict(zip(names[len(case.inputs) :], wanted, strict=True))
    arrays = dict(zip(names, [*case.inputs, *map(np.zeros_like, wanted)], strict=True))
    return Case(case.words, case.kernel, case.sizes, [Run(arrays, results)])


def _of_language(number: int, seed: int) -> Case:
    """A program of random_language.py."""
    from language_loops import drawn
    from language_ways import Case as Drawing

    case = Drawing(drawn(number, seed), number, seed)
    program, told = case.drawn.bound()
    runs = [case.wanted, *([case.run_of(case.drawn.others)] if case.drawn.dynamic else [])]
    begin = tuple(a.value.name or "" for a in case.drawn.arguments if a.form == "begin")
    words = f"{', '.join(case.drawn.rules)}, sizes {case.drawn.sizes}"
    return Case(words, Traced(program), told, runs, begin=begin, dynamic=case.drawn.dynamic)


def _of_tests(number: int, seed: int) -> Case:
    """A program as the tests make them: loops that carry anything, conditions; half of them in workgroups."""
    find_tests()
    from grid_fuzz import GridFuzz
    from wide_fuzz import WideFuzz

    import tilewright
    from tilewright.errors import ExecutionError

    rng = np.random.default_rng((seed, number, 4))
    kind, sizes_of = ((GridFuzz, SIZES[:7]), (WideFuzz, SIZES[:14]))[number % 2]
    while True:
        drawn = int(rng.integers(1 << 30))
        made = kind(drawn).program()
        sizes = {name: int(rng.choice(sizes_of)) for name in "MNK"}
        arrays = {}
        for arg in made.args:
            shape = [sizes[str(d)] for d in arg.type.dims]
            arrays[arg.name or ""] = rng.integers(-3, 4, shape).astype(arg.type.dtype.numpy)
        wanted = {name: array.copy() for name, array in arrays.items()}
        try:
            tilewright.compile(made, target="executor")(*wanted.values())
        except ExecutionError:  # such as the largest of nothing: drawn again
            continue
        words = f"{kind.__name__}({drawn}), sizes {sizes}"
        return Case(words, Traced(made), sizes, [Run(arrays, {"out": wanted["out"]})], begin=("out",))


def find_tests() -> None:
    """Makes what the tests are made with known to Python."""
    tests = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [path for path in (str(tests / "ir"), str(tests / "lower")) if path not in sys.path]


def kernel(number: int, seed: int) -> Case:
    """A kernel of the library at ragged sizes; the same for all seeds."""
    from ragged_kernels import CASES

    words, make = CASES[number % len(CASES)]
    made = make()
    return Case(words, made.kernel, made.sizes, [Run(made.arrays, made.wanted, made.far)], begin=made.begin)


KINDS: dict[str, Callable[[int, int], Case]] = {
    "convs": convolution,
    "products": product,
    "programs": program,
    "firsts": partial(convolution, first=True),
    "kernels": kernel,
}


def _types(rng: np.random.Generator) -> tuple[str, tuple[str, str, str]]:
    """(what is multiplied, the types of both factors and of the result)."""
    kind = str(rng.choice(list(TYPES), p=[0.3, 0.15, 0.2, 0.15, 0.1, 0.1]))
    data = "f32" if kind == "tf32" else kind
    return kind, (data, data, str(rng.choice(TYPES[kind])))


def _ours(name: str) -> str:
    return {"s8": "i8", "s32": "i32"}.get(name, name)


def _numpy(name: str) -> Any:
    from tilewright.problems import dtype

    return dtype(name).numpy


# -- memory --------------------------------------------------------------------------------------------------


def marker(kind: np.dtype[Any]) -> int:
    """The byte that fills what must be neither read nor written: all bits make NaN of every float."""
    return 0xA5 if kind.kind in "iub" else 0xFF


class OnHost:
    """An array of the host between guards; one that is `written` holds poison before each launch, or what it is given
    where it is to `begin` with that."""

    def __init__(self, given: Array, written: bool, begin: bool = False):
        self.byte, self.written = marker(given.dtype), written
        self.zone = np.full(given.nbytes + 2 * GUARD, self.byte, np.uint8)
        self.array: Any = self.zone[GUARD:-GUARD].view(given.dtype).reshape(given.shape)
        if begin or not written:
            self.array[...] = given
        self.before = self.zone.copy()

    def fill(self) -> None:
        """What is written holds what it does before a launch."""
        if self.written:
            self.zone[...] = self.before

    def read(self) -> Array:
        """All of it, guards too."""
        return self.zone.copy()


class OnDevice(OnHost):
    """An array of the GPU between guards; its image on the host is what it holds at first."""

    def __init__(self, given: Array, written: bool, begin: bool = False):
        from tilewright.runtime.device_arrays import DeviceArray, packed_steps
        from tilewright.targets.nvidia import driver

        super().__init__(given, written, begin)
        device = driver.device()
        assert not isinstance(device, str), device
        self.memory = driver.OwnedMemory(device, self.zone.nbytes, "a zone of memory")
        self.cu, self.check = device.cu, device.check
        self._bring()
        steps = packed_steps(given.shape)
        self.array = DeviceArray(self.memory.pointer + GUARD, given.shape, steps, given.dtype, self.memory)

    def _bring(self) -> None:
        self.check(self.cu.cuMemcpyHtoD(self.memory.pointer, self.before.ctypes.data, self.before.nbytes), "a copy")

    def fill(self) -> None:
        """What is written holds what it does before a launch."""
        if self.written:
            self._bring()

    def read(self) -> Array:
        """All of it, guards too, when the device is done."""
        self.check(self.cu.cuCtxSynchronize(), "the kernel")
        copy = np.empty_like(self.zone)
        self.check(self.cu.cuMemcpyDtoH(copy.ctypes.data, self.memory.pointer, copy.nbytes), "a copy")
        return copy


def poison_workspaces() -> None:
    """Memory that kernels ask for holds NaN at first, not what lay there."""
    from tilewright.targets.nvidia.memory import DeviceMemory

    plain = DeviceMemory.empty

    def poisoned(self: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        array = plain(self, shape, dtype)
        with self.device.entered():
            self.device.check(self.device.cu.cuMemsetD8(array.pointer, marker(dtype), array.nbytes), "a fill")
        return array

    DeviceMemory.empty = poisoned  # type: ignore[method-assign]


# -- one problem ---------------------------------------------------------------------------------------------


def tried(kind: str, number: int, seed: int, how: str, tell: Words) -> list[tuple[str, str]]:
    """What came of a problem: (exact, refused or wrong, words) for each plan that it ran under."""
    from tilewright.compiler.native import kernel_for
    from tilewright.errors import TilewrightError
    from tilewright.targets.registry import machine

    clock = Clock()
    case = KINDS[kind](number, seed)
    clock.lap("data")
    name = f"{kind} {number} of seed {seed}: {case.words}"
    interpreted = how in ("interpret", "loops")
    where: dict[str, Any] = {"machine": machine("hopper")} if interpreted else {"target": "gpu:hopper"}
    rng, plan, found = np.random.default_rng((seed, number, 3)), None, []
    for _ in range(2):
        try:
            kernel = kernel_for(
                case.kernel, case.sizes, plan=plan, dynamic=case.dynamic, constant=case.constant, **where
            )
            if not interpreted:
                kernel.text("asm")
        except TilewrightError as why:
            said = f"{type(why).__name__}: {str(why).partition(chr(10))[0]} [{name}]"
            found.append(("refused", said) if plan is None else ("other plan refused", said))
            break
        clock.lap("code")
        tell(f"{name}: {kernel.plan}")
        if how == "compile":
            found.append(("exact", path_of(kernel)))
            break
        wrong = next((said for run in case.runs if (said := ran(kernel, case, run, how))), "")
        found.append(("wrong", f"{name}: {wrong} under {kernel.plan}") if wrong else ("exact", path_of(kernel)))
        clock.lap("running")
        others = [x.plan for x in kernel.choice.candidates[1:]]
        if not others or rng.random() >= OTHERS:
            break
        plan = others[int(rng.integers(len(others)))]
    return found + [("seconds", f"{what} {seconds}") for what, seconds in clock.laps.items()]


def ran(kernel: Any, case: Case, run: Run, how: str) -> str:
    """Runs a kernel, on a GPU twice; what is wrong, or nothing."""
    guarded = OnDevice if how == "run" else OnHost
    arrays = {n: guarded(array, n in run.wanted, n in case.begin) for n, array in run.arrays.items()}
    given = {n: array.array for n, array in arrays.items()}
    launch = kernel.bind(given)
    if how == "loops":
        find_tests()
        from loop_level import on_the_loop_level

        launch = on_the_loop_level(kernel).bind([given[a.name] for a in kernel.module.host.args])
    wrong = ""
    for _ in range(2 if how == "run" else 1):
        for array in arrays.values():
            array.fill()
        launch()
        wrong = wrong or differs(run, arrays)
    return wrong


class Clock:
    """Seconds that went by, by what for."""

    def __init__(self) -> None:
        self.laps: Counter[str] = Counter()
        self.last = time.monotonic()

    def lap(self, what: str) -> None:
        """What was done since the last lap."""
        now = time.monotonic()
        self.laps[what] += now - self.last  # type: ignore[assignment]
        self.last = now


def path_of(kernel: Any) -> str:
    """The way in which a kernel is done, in a few words."""
    plan = kernel.plan
    atom = plan.products[0].atom.partition(".")[0] if plan.products and plan.products[0].atom else "no atom"
    if plan.pipeline is None:
        return f"all waves alike, {atom}"
    split = "" if plan.parts is None else ", split"
    rows = ", in rows" if any(p.at == "launch" for p in plan.values) else ""
    return f"roles, {atom}, {'copies itself' if plan.pipeline.producer[0] > 1 else 'TMA'}{split}{rows}"


def differs(run: Run, arrays: dict[str, Any]) -> str:
    """The fault of the arrays after a run, in words; empty: none."""
    for name, array in arrays.items():
        found = array.read()
        if (found[:GUARD] != array.byte).any() or (found[-GUARD:] != array.byte).any():
            return f"elements beside {name} are written"
        inside = found[GUARD:-GUARD].view(run.arrays[name].dtype).reshape(run.arrays[name].shape)
        wanted = run.wanted.get(name, run.arrays[name])
        if name in run.far:
            bad = ~(np.abs(inside.astype(np.float64) - wanted) <= run.far[name])
        else:
            bad = (inside != wanted) & ~((inside != inside) & (wanted != wanted))
        differ = np.flatnonzero(bad)
        if differ.size:
            at = tuple(int(n) for n in np.unravel_index(differ[0], wanted.shape))
            return f"{name}: {differ.size} of {wanted.size} differ, first {at}: {inside[at]}, not {wanted[at]}"
    return ""


# -- processes -----------------------------------------------------------------------------------------------


def _work(pipe: Any, seed: int, how: str) -> None:
    """Does the problems that come through a pipe."""
    from tilewright.errors import TargetError

    warnings.simplefilter("ignore")
    os.environ["TILEWRIGHT_CACHE_DIR"] = "off"
    if how == "run":
        poison_workspaces()
    while (order := pipe.recv()) is not None:
        said: list[str] = []
        faulthandler.dump_traceback_later(PATIENCE - 3)  # where one stands that does not return
        try:
            found = tried(*order, seed, how, said.append)
        except TargetError as fault:  # what the driver says; its context is of no use any more
            pipe.send((False, [("wrong", f"{said}: {fault}")]))
            return
        except Exception as fault:  # whatever it is, it was not refused
            where = traceback.extract_tb(fault.__traceback__)[-1]
            what = f"{type(fault).__name__} at {where.filename}:{where.lineno}: {str(fault)[:200]}"
            found = [("wrong", f"{order} of seed {seed} {said}: {what}")]
        faulthandler.cancel_dump_traceback_later()
        pipe.send((True, found))


class Worker:
    """A process that does problems; one that hangs or dies is replaced."""

    def __init__(self, seed: int, how: str):
        self.made_of = seed, how
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(theirs, *self.made_of), daemon=True)
        self.process.start()
        theirs.close()

    def outcome(self, kind: str, number: int) -> list[tuple[str, str]]:
        """What came of a problem."""
        what = f"{kind} {number} of seed {self.made_of[0]}"
        try:
            self.pipe.send((kind, number))
            if self.pipe.poll(PATIENCE):
                whole, found = self.pipe.recv()
                if not whole:
                    self._again()
                return list(found)
            what += f": no return in {PATIENCE:.0f} s"
            if self.made_of[1] in ("interpret", "loops"):  # large ones take long there
                self._again()
                return [("late", what)]
        except (EOFError, BrokenPipeError, ConnectionResetError):
            what += ": the process died"
        self._again()
        return [("wrong", what)]

    def _again(self) -> None:
        self.process.kill()
        self.process.join()
        self._start()

    def end(self) -> None:
        """Lets the process go."""
        self.pipe.send(None)
        self.process.join(5)
        self.process.kill()


def run(wanted: dict[str, range], seed: int, jobs: int, seconds: float, how: str) -> dict[str, Counter[str]]:
    """All problems, shared by processes; as many as begin within some seconds. Gives what came of them, by words."""
    verdicts = ("tried", "exact", *REFUSED, "late", "wrong", "seconds")
    total: dict[str, Counter[str]] = {verdict: Counter() for verdict in verdicts}
    orders: SimpleQueue[tuple[str, int]] = SimpleQueue()
    every = [(number - numbers.start, kind, number) for kind, numbers in wanted.items() for number in numbers]
    for _, kind, number in sorted(every):
        orders.put((kind, number))
    lock, start, under_way = threading.Lock(), time.monotonic(), set[tuple[str, int]]()

    def gather() -> None:
        worker = Worker(seed, how)
        while time.monotonic() - start < seconds:
            try:
                order = orders.get_nowait()
            except Empty:
                break
            with lock:
                under_way.add(order)
            found = worker.outcome(*order)
            with lock:
                under_way.discard(order)
                _count(total, order[0], found)
        worker.end()

    threads = [threading.Thread(target=gather, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    said = start
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        now = time.monotonic()
        if now - said > REPORTED:
            said = now
            done = f"{total['tried'].total()} of {len(every)}, {total['wrong'].total()} wrong"
            print(f"{now - start:.0f} s: {done}, {total['refused'].total()} refused", file=sys.stderr, flush=True)
        if now - start > seconds + PATIENCE / 3:
            break
    with lock:
        for kind, number in under_way:
            total["tried"][kind] += 1
            total["wrong"][f"{kind} {number} of seed {seed}: did not end"] += 1
    return total


def _count(total: dict[str, Counter[str]], kind: str, found: list[tuple[str, str]]) -> None:
    """Counts what came of a problem in."""
    total["tried"][kind] += 1
    total["exact"][f"{kind}, problems"] += not {"refused", "late", "wrong"}.intersection(how for how, _ in found)
    for verdict, words in found:
        if verdict == "seconds":
            what, _, amount = words.partition(" ")
            total[verdict][what] += float(amount)  # type: ignore[assignment]
        else:
            total[verdict][words] += 1


def report(total: dict[str, Counter[str]], seconds: float) -> bool:
    """Prints what came of the problems; whether nothing is wrong."""
    for kind, count in total["tried"].items():
        print(f"{kind}: {total['exact'].pop(f'{kind}, problems')} of {count} exact")
    for words, count in total["exact"].most_common():
        print(f"  {count} plans: {words}")
    for verdict in REFUSED:
        reasons: dict[str, list[str]] = {}
        for words in total[verdict]:
            what = words.rpartition(" [")[0]
            reasons.setdefault(re.sub(r"%\w+", "%x", re.sub(r"\d+", "N", what)), []).append(words)
        for same in sorted(reasons.values(), key=len, reverse=True):
            print(f"{verdict}, {len(same)}: {same[0][:600]}")
    for words in total["late"]:
        print(f"late: {words}")
    for words in total["wrong"]:
        print(f"WRONG {words[:900]}")
    took = ", ".join(f"{what} {amount:.0f}" for what, amount in total["seconds"].items())
    print(
        f"{total['wrong'].total()} wrong, {total['refused'].total()} refused, {seconds:.0f} s; of all processes: {took}"
    )
    return not total["wrong"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convs", type=int, default=2000)
    parser.add_argument("--products", type=int, default=300)
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--firsts", type=int, default=0)
    parser.add_argument("--kernels", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem after that")
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--loops", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--show", action="store_true", help="in this process, with what each is")
    options = parser.parse_args()
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "CUDA_CACHE_DISABLE": "1"}  # processes shall not wait for one another
    wanted = {kind: range(options.first, options.first + getattr(options, kind)) for kind in KINDS}
    how = next((name for name in ("interpret", "loops", "compile") if getattr(options, name)), "run")
    if options.show:
        warnings.simplefilter("ignore")
        for kind, numbers in wanted.items():
            for number in numbers:
                print(*tried(kind, number, options.seed, how, print), flush=True)
        return 0
    begin = time.monotonic()
    total = run(wanted, options.seed, options.jobs, options.seconds, how)
    wrong = not report(total, time.monotonic() - begin)
    sys.stdout.flush()
    os._exit(wrong)  # whatever still hangs


if __name__ == "__main__":
    sys.exit(main())
