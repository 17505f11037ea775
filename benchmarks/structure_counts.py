"""Counts of the planner's structure that its source alone tells: types, parameters, tests for one product, circles.

`planner_counts.py` prints them; each function says its rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tilewright

ROOT = Path(tilewright.__file__).parent
PRODUCTS = re.compile(r"\b(products|mmas|mmas_by_name|mma_axes)\b")
"""The names by which the source speaks of the products of a program."""
FOLDERS = ("plan", "rewrite", "lower", "transform", "driver")
PLANNING = (
    *("choose_plan", "realise", "bind", "bind_blocks", "two_kernels", "repack", "rating"),
    *("bind_halo_tiles", "bind_simt", "pinned_plans"),
)
"""The files of driver/ that decide plans."""
OF_PLAN = ("Schedule", "KernelProgram")
"""The types of a schedule and of the program to which it is bound."""


@cache
def trees() -> dict[str, ast.Module]:
    """{path below the package: its syntax tree} of FOLDERS with the folders below."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT).with_suffix("")): ast.parse(path.read_text()) for path in paths}


@cache
def _classes_and_functions() -> tuple[tuple[str, ast.ClassDef | ast.FunctionDef], ...]:
    """Every (file, class or function); the trees are walked once."""
    kinds = ast.ClassDef | ast.FunctionDef
    return tuple((name, node) for name, tree in trees().items() for node in ast.walk(tree) if isinstance(node, kinds))


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield (file, class) for each class."""
    return ((name, node) for name, node in _classes_and_functions() if isinstance(node, ast.ClassDef))


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield (file, function) for each function and method."""
    return ((name, node) for name, node in _classes_and_functions() if isinstance(node, ast.FunctionDef))


@cache
def fields_of(name: str) -> dict[str, str]:
    """{field: its type} of the class `name`; {} if there is none."""
    found = next((node for _, node in classes() if node.name == name), None)
    return {
        x.target.id: ast.unparse(x.annotation)
        for x in ([] if found is None else found.body)
        if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
    }


def lowering_parameters() -> list[str]:
    """Fields of the class that `lower_tiles` takes of a plan, but the schedule and the program to which it is bound."""
    (lower,) = (x for _, x in functions() if x.name == "lower_tiles")
    taken = {ast.unparse(a.annotation) for a in lower.args.args if a.annotation is not None}
    bound = [name for name in taken if {"plan", "kernel"} & fields_of(name).keys() or "widths" in fields_of(name)]
    return [f"{name}.{field}" for name in bound for field, kind in fields_of(name).items() if kind not in OF_PLAN]


def choice_types() -> list[str]:
    """Classes that say which plan was chosen and why: they have a machine, notes for `explain`, and a method for it."""
    return [
        f"{name}.{node.name}"
        for name, node in classes()
        if {"machine", "notes"} <= fields_of(node.name).keys()
        and any(isinstance(x, ast.FunctionDef) and x.name == "explain" for x in node.body)
    ]


def tests_for_one_product() -> list[str]:
    """Functions that compare the number of a program's products with 1 or 2, or unpack them as if there were one.

    A number in a text, and a comparison with another number, count as none. A legality counts as none: an `if` that
    raises, returns a text or rejects with one, which says what is lacking of several; one product may be unpacked
    behind it.
    """
    found: list[str] = []
    for name, function in functions():
        own = list(_own_nodes(function))
        guards = [x for x in own if isinstance(x, ast.If) and _refuses(x)]
        legal = {id(x) for guard in guards for x in ast.walk(guard.test) if _compares_number(x)}
        compared = [x for x in own if _compares_number(x) and id(x) not in legal]
        if compared or (not legal and any(map(_unpacks_one, own))):
            found.append(f"{name}.{function.name}")
    return found


def _refuses(branch: ast.If) -> bool:
    """True if a branch does nothing but refuse with a text: it raises, returns text, or rejects."""
    *before, last = branch.body
    rejects = any("reject" in ast.unparse(x) for x in before)
    is_text = isinstance(last, ast.Return) and isinstance(last.value, ast.JoinedStr | ast.Constant)
    is_text = is_text and not (isinstance(last.value, ast.Constant) and not isinstance(last.value.value, str))
    return isinstance(last, ast.Raise) or is_text or (rejects and isinstance(last, ast.Return))


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function that are in none of the functions within it."""
    left: list[ast.AST] = [function]
    while left:
        node = left.pop()
        yield node
        left += [x for x in ast.iter_child_nodes(node) if not isinstance(x, ast.FunctionDef)]


def _compares_number(node: ast.AST) -> bool:
    """True if a node compares the number of products with 1 or 2."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    is_small = any(isinstance(x, ast.Constant) and x.value in (1, 2) for x in sides)
    return is_small and any(
        isinstance(x, ast.Call) and ast.unparse(x.func) == "len" and PRODUCTS.search(ast.unparse(x.args[0]))
        for x in sides
    )


def _unpacks_one(node: ast.AST) -> bool:
    """True if a node unpacks products to one name: `(p,) = facts.products`."""
    if not isinstance(node, ast.Assign):
        return False
    pairs = [(target, node.value) for target in node.targets]
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs += list(zip(node.targets[0].elts, node.value.elts, strict=False))
    return any(
        isinstance(target, ast.Tuple)
        and len(target.elts) == 1
        and not isinstance(value, ast.Tuple)
        and PRODUCTS.search(ast.unparse(value))
        for target, value in pairs
    )


def largest_circle() -> list[str]:
    """The files of the largest circle of imports in FOLDERS, imports for types counted."""
    imported = {name: _imported(tree) - {name} for name, tree in trees().items()}

    @cache
    def reached(name: str) -> frozenset[str]:
        found: set[str] = set()
        left = [name]
        while left:
            new = imported[left.pop()] - found
            found |= new
            left += new
        return frozenset(found)

    circles = ([other for other in reached(name) if name in reached(other)] for name in imported)
    return sorted(max(circles, key=len))


def _imported(tree: ast.Module) -> set[str]:
    """The files of FOLDERS that a file imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tilewright."):
            continue
        place = (node.module or "").removeprefix("tilewright.").replace(".", "/")
        for name in (place, *(f"{place}/{alias.name}" for alias in node.names), f"{place}/__init__"):
            found |= {name} & trees().keys()
    return found


def product_lowerings() -> list[str]:
    """Functions of lower/block that write the loops of a product: they call `write_nest`, which is in k_loops.py."""
    return [
        f"{name}.{node.name}"
        for name, node in functions()
        if not name.endswith("/k_loops")
        and any(isinstance(x, ast.Call) and ast.unparse(x.func) == "write_nest" for x in _own_nodes(node))
    ]


def blocking_lists() -> list[str]:
    """Functions of plan/ that list the tiles of kernels: they yield tilings or blockings, or return a list of them."""
    listing = re.compile(r"(Iterator|list)\[(Blocking|Tiling)\]")
    return [
        f"{name}.{node.name}"
        for name, node in functions()
        if node.returns is not None and listing.fullmatch(ast.unparse(node.returns)) and not node.name.startswith("_")
    ]


def planning_lines() -> int:
    """Lines of plan/ and of the files of driver/ that decide plans, without blank ones and comments."""
    names = [name for name in trees() if name.startswith("plan/") or name in {f"driver/{x}" for x in PLANNING}]
    texts = ((ROOT / f"{name}.py").read_text().splitlines() for name in names)
    return sum(1 for text in texts for line in text if line.strip() and not line.strip().startswith("#"))
