"""Counts of the planner, from its source and from compiles that are watched.

    python benchmarks/planner_counts.py [--names] [--source]

Each count has a rule; names are printed with `--names`, so that a reader can judge them. P is `plan/` and `driver/`.
The GPU probes are compiles for Hopper of a product, a split sum, a halo convolution, a 7x7 stem, grouped and depthwise
convolutions, attention, two products, two kernels, a softmax, a sum in parts.

planners of GPU kernels
    Modules of P with a function that returns a ranking of plans (a dataclass with candidates and what was rejected) and
    that ran in a GPU probe.
places that bind a kernel to its plan
    Modules of P with a function that constructs what the lowering of tiles takes of a plan (`BoundKernel`). All modules
    of binding, `bind*` and `driver/bind_halo_tiles`, are one place: each binds one kind of plans.
ways to match a pinned plan
    Functions of P with a parameter for a pinned plan (called `given`, or `said` of a type of plans) that compare it
    with a plan that was chosen (an attribute `plan`, `best` or `candidates`). Functions that word a refusal
    (plan/pinned.py) and bind*.py count as no way.
functions that return a GPU kernel's time
    Functions of P that ran in a GPU probe, return a float (or floats, or a dataclass with `cycles` and no plan) and
    count the launch (they read `launch_cycles` or `following_cycles` of the row, or call a function that does). Those
    whose name says that they give the time of a launch alone, a bound (least, bound, roofline), or that sum
    `kernel_time`, are none.
rooflines
    Functions of P called roofline or lower_bound that divide bytes of arguments by the bandwidth of memory (`far_rate`,
    or a function that reads it). One that asks another of them is none.
tile enumerations, cost evaluations
    Calls, in one compile, of the functions that list tiles (those that build candidates in a loop: ENUMERATIONS), and
    of the functions that return a time (COSTS); caches are emptied before. A name that is gone is said.
flags and except clauses that steer planning
    `except` clauses of driver/{pipeline,choose_plan,realise,pinned_plans,kernels}.py that go on (those that raise a
    better message steer nothing), and fields of the request (driver/request.py) that a function there gives another
    value by `replace`. The program and the pinned plan are no flags, and functions that word a refusal (they return an
    ArgumentError) steer nothing. A refusal of binding or of the lowering becomes a value in
    `plan/refusals.result_or_refusal`; the next plan of the ranking is then taken.
fields of the compile state
    The fields of the request, which passes hand on; a field whose type is a dataclass of driver/*.py counts as the
    fields of that one. What passes find besides is returned by one and taken by the next.
fields of what a compile gives
    The fields of `Realised` (driver/bound_plan.py).
values that passes change
    Dataclasses of driver/request.py and driver/bound_plan.py that are not frozen.
lowering parameters beside the schedule, types of choices, tests for one product, files of the largest import circle,
lowerings of products, lists of tiles, lines that decide plans
    The functions of `structure_counts.py` have their rules. The search's own list of tiles and that of blocks of one
    product on a CPU are two lists today. Tests for one product are counted in plan/ and all folders of the lowering.
constants that describe one machine
    Numbers at module level of plan, passes, check and machine whose docstring or comment speaks of bytes, registers,
    lanes, cycles, lines, rows of shared memory or what a copy brings; and numeric defaults of dataclasses in machine/
    other than 0 and 1. Bounds of what a search tries (its docstring says tried, candidate, at most ... for `explain`)
    are none, nor are those of tests/project/planner_constants.py, each with the reason why it is no machine's.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import structure_counts
from edit_cases import CASES

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "project")]
from planner_constants import ALLOWED  # noqa: E402

ROOT = Path(tilewright.__file__).parent
STEERING = ("pipeline.py", "choose_plan.py", "realise.py", "pinned_plans.py", "kernels.py")
"""The files of driver/ in which a GPU kernel is planned, bound and lowered."""
NOTHING = ast.Constant(None)
ENUMERATIONS = ("candidates.all_tilings",)
"""Functions that list the tiles of one state of the program."""
COSTS = ("cost.kernel_time",)
"""Functions that evaluate the cost of one candidate."""
FOLDERS = ("plan", "plan/facts", "plan/search", "driver")
LOWERING = ("rewrite", "lower", "lower/block", "lower/block/mma", "lower/cpu", "lower/gpu", "transform")
PROBES = (
    *(
        "gemm nt",
        "gemm split K",
        "conv halo",
        "conv stem",
        "conv diagonal",
        "conv depthwise",
        "attention",
        "gated unit",
    ),
    *("low rank", "two kernels", "softmax", "sum in parts"),
)
WATCHED: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "1000x1000x1000 nt bf16": (partial(kernels.gemm, "nt", "bf16", "bf16"), {"M": 1000, "N": 1000, "K": 1000}),
    "7x7 stem": (
        partial(kernels.conv, (7, 7), "bf16", stride=2, padding=3),
        {"N": 32, "H": 224, "W": 224, "C": 3, "F": 64},
    ),
}
NEUTRAL = (0, 1, (0.0, 0.0))
"""Defaults that describe no machine: nothing, or a factor that changes nothing."""
LAUNCH = ("launch_cycles", "following_cycles")
BOUND = re.compile(r"least|bound|roofline|launch")
OF_MACHINE = re.compile(
    r"\b(bytes?|registers?|lanes?|cycles?|cache|lines?|shared memory|one copy|assembler|measured|row of|rows that)\b",
    re.I,
)
OF_SEARCH = re.compile(r"\b(tried|candidates?|explain|may be walked|factors of|ways)\b", re.I)


class Sources:
    """The functions, classes and constants of some folders of the package."""

    def __init__(self, *folders: str) -> None:
        self.trees = {
            path: ast.parse(path.read_text()) for folder in folders for path in sorted((ROOT / folder).glob("*.py"))
        }

    def functions(self) -> list[tuple[Path, ast.FunctionDef]]:
        """Every function, and the file it is in."""
        return [(path, node) for path, node in self._nodes if isinstance(node, ast.FunctionDef)]

    def classes(self) -> list[tuple[Path, ast.ClassDef]]:
        """Every class, and the file it is in."""
        return [(path, node) for path, node in self._nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def _nodes(self) -> list[tuple[Path, ast.AST]]:
        """Every function and class, and the file it is in: trees are walked once."""
        kinds = ast.FunctionDef | ast.ClassDef
        return [(path, node) for path, tree in self.trees.items() for node in ast.walk(tree) if isinstance(node, kinds)]


def _fields(node: ast.ClassDef) -> dict[str, str]:
    return {
        x.target.id: ast.unparse(x.annotation)
        for x in node.body
        if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
    }


def _calls(node: ast.AST) -> set[str]:
    return {
        x.func.id if isinstance(x.func, ast.Name) else x.func.attr
        for x in ast.walk(node)
        if isinstance(x, ast.Call) and isinstance(x.func, ast.Name | ast.Attribute)
    }


def _name(path: Path, node: ast.FunctionDef) -> str:
    return f"{path.parent.name}/{path.stem}.{node.name}"


# -- compiles that are watched -----------------------------------------------------------------------------------


def watched(make: Callable[[], Any], sizes: dict[str, int]) -> Counter[str]:
    """How often each function is called in a compile for Hopper: `search/search.search_facts`."""
    codes: Counter[Any] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            codes[frame.f_code] += 1

    _forget()
    kernel = make().trace()
    sys.setprofile(profile)
    try:
        kernel_for(_Traced(kernel), sizes, machine=machine("hopper")).text("block")
    finally:
        sys.setprofile(None)
    calls: Counter[str] = Counter()
    for code, count in codes.items():
        path = Path(code.co_filename)
        if ROOT in path.parents:
            calls[f"{path.parent.name}/{path.stem}.{code.co_name}"] += count
    return calls


class _Traced:
    """A kernel that was traced before, so that tracing is not watched."""

    def __init__(self, program: Any) -> None:
        self.trace = lambda: program


def _forget() -> None:
    """Empties the caches of functions: a compile is watched as the first one."""
    for name, module in list(sys.modules.items()):
        if name.startswith(
            ("tilewright.plan", "tilewright.rewrite", "tilewright.lower", "tilewright.transform", "tilewright.driver")
        ):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def ran_in_probes() -> set[str]:
    """The functions that ran in the GPU probes."""
    ran: set[str] = set()
    for case in CASES:
        if case.row == "hopper" and case.name in PROBES:
            ran |= watched(case.make, case.sizes).keys()
    return ran


# -- counts ------------------------------------------------------------------------------------------------------


def planners(sources: Sources, ran: set[str]) -> list[str]:
    """Modules that return a ranking in a GPU probe."""
    rankings = {node.name for _, node in sources.classes() if {"candidates", "rejected"} <= _fields(node).keys()}
    found = {
        f"{path.parent.name}/{path.stem}"
        for path, node in sources.functions()
        if node.returns is not None and ast.unparse(node.returns) in rankings and _name(path, node) in ran
    }
    return sorted(found)


def lowering_parameters(sources: Sources) -> list[str]:
    """Functions that construct what the lowering takes."""
    found = [(path, node) for path, node in sources.functions() if "BoundKernel" in _calls(node)]
    is_bound = [path.stem.startswith("bind") or path.stem == "halo_tiles" for path, _ in found]
    return sorted(
        {"bind*." if bound else _name(path, node) for bound, (path, node) in zip(is_bound, found, strict=True)}
    )


def pins(sources: Sources) -> list[str]:
    """Functions that compare a pinned plan with a planned one."""
    found = []
    for path, node in sources.functions():
        if path.stem in ("plan", "pinned", "words") or path.stem.startswith("bind"):
            continue
        names = {a.arg for a in (*node.args.args, *node.args.kwonlyargs) if a.arg in ("given", "said", "pinned")}
        typed = {
            a.arg
            for a in (*node.args.args, *node.args.kwonlyargs)
            if a.annotation is not None and re.search(r"\bPlan\b", ast.unparse(a.annotation))
        }
        names &= typed | {"given"}
        if (
            names
            and any(_compares(x, names) for x in ast.walk(node))
            and "ArgumentError" not in ast.unparse(node.returns or ast.Constant(None))
        ):
            found.append(_name(path, node))
    return sorted(found)


def _compares(node: ast.AST, names: set[str]) -> bool:
    """Whether a node compares one of some parameters, or a part of it, with what is no constant, or requires it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.startswith("require_") and _uses(node.func.value, names)
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
        return False
    sides = [node.left, *node.comparators]
    others = [x for x in sides if not _uses(x, names)]
    planned = [x for x in others if any(_reads(x, field) for field in ("plan", "best", "candidates"))]
    return len(others) < len(sides) and bool(planned)


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(x, ast.Name) and x.id in names for x in ast.walk(node))


def times(sources: Sources, ran: set[str]) -> list[str]:
    """Functions that return a GPU kernel's time."""
    timed = {node.name for _, node in sources.classes() if "cycles" in _fields(node)} | {"float"}
    found = []
    for path, node in sources.functions():
        returns = ast.unparse(node.returns) if node.returns is not None else ""
        kind = re.sub(r"tuple\[(\w+).*", r"\1", returns)
        plans = "Plan" in " ".join(_fields_of(sources, kind).values())
        counted = any(_reads(node, field) for field in LAUNCH) or _calls(node) & {"launch_cycles", "launching"}
        is_other = BOUND.search(node.name) or "kernel_time" in _calls(node)
        if kind in timed and not plans and counted and not is_other and _name(path, node) in ran:
            found.append(_name(path, node))
    return sorted(found)


def _fields_of(sources: Sources, name: str) -> dict[str, str]:
    return next((_fields(node) for _, node in sources.classes() if node.name == name), {})


def rooflines(sources: Sources, ran: set[str]) -> list[str]:
    """Functions that return the least time that memory leaves."""
    moving = {node.name for _, node in sources.functions() if _reads(node, "far_rate")}
    found = []
    for path, node in sources.functions():
        bound = re.search(r"roofline|lower_bound", node.name)
        asks = "roofline" in _calls(node)
        if bound and not asks and (_reads(node, "far_rate") or _calls(node) & moving) and _name(path, node) in ran:
            found.append(_name(path, node))
    return sorted(found)


def _reads(node: ast.AST, field: str) -> bool:
    return any(isinstance(x, ast.Attribute) and x.attr == field for x in ast.walk(node))


def steering() -> tuple[list[str], list[str]]:
    """(flags, except clauses) that steer planning."""
    driver = Sources("driver")
    trees = {path.name: tree for path, tree in driver.trees.items()}
    clauses = [
        f"{name}:{x.lineno}"
        for name in STEERING
        for x in ast.walk(trees[name])
        if isinstance(x, ast.ExceptHandler) and not isinstance(x.body[-1], ast.Raise)
    ]
    request = next(_fields(node) for _, node in driver.classes() if node.name == "Request")
    replaced = {
        word.arg
        for name in STEERING
        for function in ast.walk(trees[name])
        if isinstance(function, ast.FunctionDef) and "ArgumentError" not in ast.unparse(function.returns or NOTHING)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "replace"
        for word in call.keywords
    }
    return sorted(replaced & request.keys() - {"sized", "pinned"}), clauses


def compile_state() -> list[str]:
    """The fields of the request, those of a dataclass in it one by one."""
    classes = {node.name: _fields(node) for _, node in Sources("driver").classes() if _is_dataclass(node)}

    def leaves(name: str) -> Iterator[str]:
        for field, kind in classes[name].items():
            yield from (f"{field}.{leaf}" for leaf in leaves(kind)) if kind in classes else (field,)

    return list(leaves("Request"))


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(x).startswith("dataclass") for x in node.decorator_list)


def changing_values() -> list[str]:
    """Dataclasses that passes hand on and may change."""
    handed_on = ((path, node) for path, node in Sources("driver").classes() if path.stem in ("request", "bound_plan"))
    return [
        f"{path.stem}.{node.name}"
        for path, node in handed_on
        if _is_dataclass(node) and "dataclass(frozen=True)" not in map(ast.unparse, node.decorator_list)
    ]


def constants() -> list[str]:
    """Numbers that describe one machine."""
    found = []
    for folder in (*FOLDERS, *LOWERING, "analysis", "check", "machine"):
        for path, tree in Sources(folder).trees.items():
            text = path.read_text().splitlines()
            for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
                if not isinstance(node, ast.Assign) or not _is_number(node.value):
                    continue
                names = [x.id for t in node.targets for x in ast.walk(t) if isinstance(x, ast.Name)]
                doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                comment = text[node.end_lineno - 1 if node.end_lineno else 0].partition("#")[2]
                said = f"{doc} {comment}"
                if OF_MACHINE.search(said) and not OF_SEARCH.search(said):
                    found += [f"{folder}/{path.stem}.{n}" for n in names if f"{folder}/{path.name}: {n}" not in ALLOWED]
    for path, node in Sources("machine").classes():
        for x in node.body:
            if not isinstance(x, ast.AnnAssign) or x.value is None or not _is_number(x.value):
                continue
            if ast.literal_eval(ast.unparse(x.value)) not in NEUTRAL:
                found.append(f"machine/{path.stem}.{node.name}.{ast.unparse(x.target)}")
    return found


def _is_number(node: ast.AST) -> bool:
    """Whether an expression is made of numbers alone."""
    kinds = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    values = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
    return (
        all(isinstance(x, kinds) for x in ast.walk(node))
        and bool(values)
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="print what was counted")
    parser.add_argument("--source", action="store_true", help="only what the source tells, without compiles")
    options = parser.parse_args()
    sources = Sources(*FOLDERS)
    flags, clauses = steering()
    rows: list[tuple[str, int, str, list[str]]] = []

    def row(measure: str, bar: str, names: list[str]) -> None:
        rows.append((measure, len(names), bar, names))

    if not options.source:
        ran = ran_in_probes()
        row("planners of GPU kernels", "1", planners(sources, ran))
        row("functions that return a GPU kernel's time", "1", times(sources, ran))
        row("rooflines", "1", rooflines(sources, ran))
        for name, (make, sizes) in WATCHED.items():
            calls = watched(make, sizes)
            for what, functions, bar in (
                ("tile enumerations", ENUMERATIONS, "3"),
                ("cost evaluations", COSTS, "1700" if "1000" in name else ""),
            ):
                counted = {f: calls[f"search/{f}"] for f in functions}
                said = [f"{f} {n}" for f, n in counted.items()]
                rows.append((f"{what}, {name}", sum(counted.values()), bar, said))
    row(
        "places that bind a kernel to its plan",
        "1",
        sorted({x.rpartition(".")[0] for x in lowering_parameters(sources)}),
    )
    row("ways to match a pinned plan", "1", pins(sources))
    row("flags that steer planning", "0", flags)
    row("except clauses that steer planning", "0", clauses)
    row("fields of the compile state", "10", compile_state())
    row("fields of what a compile gives", "5", list(_fields_of(Sources("driver"), "Realised")))
    row("values that passes change", "0", changing_values())
    row("constants that describe one machine", "0", constants())
    row("lowering parameters beside the schedule", "0", structure_counts.lowering_parameters())
    row("types of choices", "1", structure_counts.choice_types())
    row("tests for one product", "0", structure_counts.tests_for_one_product())
    row("files of the largest import circle", "6", structure_counts.largest_circle())
    row("lowerings of products", "1", structure_counts.product_lowerings())
    row("lists of tiles", "1", structure_counts.blocking_lists())
    rows.append(("lines that decide plans", structure_counts.planning_lines(), "5500", []))
    width = max(len(measure) for measure, *_ in rows)
    print(f"{'measure':{width}}  count    bar")
    for measure, count, bar, names in rows:
        print(f"{measure:{width}}  {count:5}  {bar:>5}")
        if options.names:
            print("\n".join(f"    {name}" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
