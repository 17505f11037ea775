"""`benchmarks/source_mutants.py` and `killed_mutants.py`: drawing and applying mutants, and which tests kill them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SOURCE = '''"""A module: 1 < 2."""
from functools import cache

LIMIT = 8


@cache
def size(n: "int | None" = 3) -> int:
    """Return n + 1."""
    return n + 1


class Counter:
    def __init__(self) -> None:
        self.count: int = 0

    def add(self, n: int) -> None:
        """Add n."""
        if n < 0 and self.count:
            raise ValueError(f"{n - 1}")
        n = n
        n = n
        self.count += -n

    def unused(self, names: list[str]) -> str:
        if not names: return ""
        return "µ" + (names[0] if len(names) == LIMIT else names[-1])
'''
TESTS = """
from tilewright.small import Counter, size

def test_a_value_is_kept_for_later_tests():
    size(1)

def test_a_kept_value():
    assert size(1) == 2

def test_the_count():
    counter = Counter()
    counter.add(2)
    assert counter.count == -2

STATE = []

def test_without_a_function_of_the_package():
    STATE.append(1)

def test_that_needs_the_one_before():
    assert STATE
    Counter().add(0)
"""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with a package and its tests."""
    root = tmp_path / "tree"
    files = {
        "src/tilewright/__init__.py": "",
        "src/tilewright/small.py": SOURCE,
        "src/tilewright/torch/small.py": SOURCE,
        "tests/test_small.py": TESTS,
        "pyproject.toml": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def mutant(function: str, old: str, new: str, occurrence: int = 1) -> Any:
    import source_mutants

    return source_mutants.Mutant("src/tilewright/small.py", 1, function, old, new, occurrence)


def test_a_seed_draws_the_same_list_every_time_and_each_line_once(tree: Path) -> None:
    import source_mutants

    drawn = source_mutants.draw(tree, 100, 1)
    assert drawn == source_mutants.draw(tree, 100, 1)
    assert [str(m) for m in drawn] != [str(m) for m in source_mutants.draw(tree, 100, 2)]
    assert drawn[:3] == source_mutants.draw(tree, 3, 1)
    assert {m.file for m in drawn} == {"src/tilewright/small.py"}
    assert sorted(m.line for m in drawn) == [10, 15, 19, 20, 21, 22, 23, 26, 27]
    assert source_mutants.draw(tree, 9, 1, only="plan/") == []


def test_a_list_is_the_same_after_it_is_written_and_read(tree: Path, tmp_path: Path) -> None:
    import source_mutants

    drawn = source_mutants.draw(tree, 100, 1)
    (tmp_path / "list").write_text("# a comment\n" + "".join(f"{m}\n" for m in drawn))
    assert source_mutants.read_list(tmp_path / "list") == drawn
    assert str(mutant("f.<locals>.g", "a", "b", 2)) == "src/tilewright/small.py:1 f.<locals>.g#2: a -> b"
    with pytest.raises(ValueError, match="no mutant: 'f: a -> b'"):
        source_mutants.read("f: a -> b")


def test_mutations_are_in_the_code_of_functions_only() -> None:
    import source_mutants

    mutations = {
        line: sorted((kind, new) for kind, pairs in kinds.items() for _, new in pairs)
        for line, kinds in source_mutants.mutations_of(SOURCE).items()
    }
    assert mutations == {
        10: [("constant", "return n + 0"), ("constant", "return n + 2"), ("sign", "return n - 1")],
        15: [("constant", "self.count: int = 1")],
        19: [
            ("bound", "if n <= 0 and self.count:"),
            ("condition", "if n < 0 or self.count:"),
            ("condition", "if not (n < 0 and self.count):"),
            ("constant", "if n < 1 and self.count:"),
        ],
        20: [("drop", "pass")],
        21: [("drop", "pass")],
        22: [("drop", "pass")],
        23: [("drop", "pass"), ("sign", "self.count += n"), ("sign", "self.count -= -n")],
        26: [("condition", 'if names: return ""'), ("drop", "if not names: pass")],
        27: [
            ("bound", 'return "µ" + (names[0] if len(names) != LIMIT else names[-1])'),
            ("condition", 'return "µ" + (names[0] if not (len(names) == LIMIT) else names[-1])'),
            ("constant", 'return "µ" + (names[0] if len(names) == LIMIT else names[-0])'),
            ("constant", 'return "µ" + (names[0] if len(names) == LIMIT else names[-2])'),
            ("constant", 'return "µ" + (names[1] if len(names) == LIMIT else names[-1])'),
            ("sign", 'return "µ" + (names[0] if len(names) == LIMIT else names[1])'),
        ],
    }


@pytest.mark.parametrize("file", ["algebra/expr_divide.py", "plan/search/launch.py", "targets/cpu/pool.py"])
def test_a_mutant_changes_exactly_one_line(file: str) -> None:
    import source_mutants

    text = (BENCHMARKS.parent / source_mutants.SOURCE / file).read_text()
    drawn = source_mutants.draw(BENCHMARKS.parent, 40, 5, only=f"/{file}$")
    assert len(drawn) > 30
    for one in drawn:
        rows, changed = text.splitlines(), source_mutants.apply(one, text).splitlines()
        assert [n for n, (a, b) in enumerate(zip(rows, changed, strict=True), 1) if a != b] == [one.line]
        assert (rows[one.line - 1].strip(), changed[one.line - 1].strip()) == (one.old, one.new)


def test_a_line_that_moved_is_found_and_one_that_changed_is_refused(tree: Path) -> None:
    import source_mutants

    second = mutant("Counter.add", "n = n", "pass", 2)
    rows = source_mutants.apply(second, "\n\n" + SOURCE).splitlines()
    assert rows[22:24] == ["        n = n", "        pass"]
    assert source_mutants.stale([second], tree) == []
    changed = SOURCE.replace("        n = n\n        n = n\n", "        n = n\n")
    with pytest.raises(source_mutants.StaleMutant, match=r"Counter\.add has no line `n = n` number 2"):
        source_mutants.apply(second, changed)
    gone = [mutant("Counter.remove", "n = n", "pass"), mutant("size", "n = n", "pass")]
    assert len(source_mutants.stale([second, *gone], tree)) == 2


def test_tests_that_reach_a_function_kill_its_mutants(tree: Path, tmp_path: Path) -> None:
    import killed_mutants
    import reach_map

    path = tmp_path / "reach"
    reach_map.record(tree, path, ["tests"], "all", reach_map.Limits())
    reach = reach_map.Reach.read(path, reach_map.digest(tree))
    ((unit, tests),) = reach.reaching("small.py size")
    assert [test.name.partition("::")[2] for test in unit.tests if test.passes] == [
        "test_a_value_is_kept_for_later_tests",
        "test_a_kept_value",
        "test_the_count",
        "test_without_a_function_of_the_package",
        "test_that_needs_the_one_before",
    ]
    assert (tests, reach.reaching("small.py Counter.add")[0][1]) == (0b00001, 0b10100)

    worker = killed_mutants.Worker(tree, tmp_path / "worker")

    def tried(*changed: Any) -> tuple[str, str]:
        result = worker.tried(mutant(*changed), reach, "default")
        return result.outcome, result.by.partition("::")[2]

    # a test that fails without the mutant too does not kill it
    assert tried("Counter.add", "n = n", "n = +n")[0] == "survived"
    assert reach.dependent == {"tests/test_small.py::test_that_needs_the_one_before"}
    # a file of the same size: bytecode of the one before is not taken for its own
    assert tried("Counter.add", "n = n", "n = -n") == ("killed", "test_the_count")
    # the first test keeps the value that the second one sees: only the first executes the function
    assert tried("size", "return n + 1", "return n - 1") == ("killed", "test_a_kept_value")
    assert tried("Counter.unused", 'if not names: return ""', "if names: return 1") == ("unreached", "")
    assert (worker.tree / "src/tilewright/small.py").read_text() == SOURCE

    (tree / "tests/test_small.py").write_text(TESTS + "\n")
    with pytest.raises(SystemExit, match="another state of the tree"):
        reach_map.Reach.read(path, reach_map.digest(tree))


def test_fewer_killed_mutants_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    import killed_mutants

    mutants = [mutant("size", "a", "b"), mutant("size", "a", "c"), mutant("size", "a", "d")]
    (tmp_path / "list").write_text("".join(f"{m}\n" for m in mutants))

    def results(name: str, *outcomes: tuple[str, str]) -> Path:
        lines = [killed_mutants.Result(o, 1.0, s, "t::x", m) for (s, o), m in zip(outcomes, mutants, strict=False)]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        assert [killed_mutants.Result.read(str(line)) for line in lines] == lines
        return tmp_path / name

    before = results("before", ("default", "killed"), ("default", "survived"), ("default", "killed"))
    after = results("after", ("default", "killed"), ("default", "killed"), ("default", "undecided"))
    worse = results("worse", ("default", "survived"), ("default", "survived"))
    options = argparse.Namespace(mutants=tmp_path / "list", results=before, after=after, suite="default")
    killed_mutants.compare(options)
    printed = capsys.readouterr().out
    assert f"killed only after, by t::x: {mutants[1]}\n" in printed
    assert f"killed only before, by t::x: {mutants[2]}\n" in printed
    assert "killed before: 2, after: 2, of 3 mutants that both runs tried" in printed
    options.after = worse
    with pytest.raises(SystemExit):
        killed_mutants.compare(options)
    assert "killed before: 1, after: 0, of 2 mutants" in capsys.readouterr().out
