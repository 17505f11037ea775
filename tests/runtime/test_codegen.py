"""Code generation in a helper process: whatever happens to LLVM there, this process lives and goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from native_checks import succeeds

from tilewright.errors import CodeGenerationError
from tilewright.runtime import codegen_server
from tilewright.runtime.codegen import Helper
from tilewright.targets.cpu.target import host

GOOD = "define i32 @f(i32 %x) {\n  %y = mul i32 %x, 3\n  ret i32 %y\n}\n"
# no instruction selects a product of tiles where the CPU is said to have none
ABORTS = """declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
define void @f() {
  call void @llvm.x86.tdpbf16ps(i8 0, i8 1, i8 2)
  ret void
}
"""
PLAIN = {"triple": "x86_64-unknown-linux-gnu", "cpu": "x86-64", "features": "", "level": 2, "form": "assembly"}


@pytest.fixture
def helper():  # type: ignore[no-untyped-def]
    made = Helper()
    yield made
    made.stop()


def test_assembly_and_object_code(helper: Helper) -> None:
    assert "imul" in helper.ask(PLAIN, GOOD).decode() or "lea" in helper.ask(PLAIN, GOOD).decode()
    assert helper.ask(host().options.request("object"), GOOD).startswith(b"\x7fELF")


def test_text_that_does_not_parse_is_reported_with_its_line(helper: Helper) -> None:
    with pytest.raises(CodeGenerationError, match=r"(?s)expected.*%y = mull") as caught:
        helper.ask(PLAIN, GOOD.replace("mul", "mull"))
    assert "LLVM could not generate machine code" in str(caught.value)
    assert helper.ask(PLAIN, GOOD)


def test_where_llvm_aborts_this_process_lives_and_the_next_compile_works(
    helper: Helper, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with pytest.raises(CodeGenerationError, match="LLVM ERROR: Cannot select"):
            helper.ask(PLAIN, ABORTS)
        process = helper.process
        assert helper.ask(PLAIN, GOOD)
        assert helper.process is process
    assert capfd.readouterr().err == ""


def test_an_unknown_cpu_or_triple_is_reported(helper: Helper) -> None:
    with pytest.raises(CodeGenerationError, match="nowhere"):
        helper.ask({**PLAIN, "triple": "nowhere-none-none"}, GOOD)
    assert helper.ask(PLAIN, GOOD)


def test_a_helper_that_was_killed_is_started_again(helper: Helper) -> None:
    before = helper.ask(PLAIN, GOOD)
    assert helper.process is not None
    first = helper.process.pid
    os.kill(first, signal.SIGKILL)
    assert helper.ask(PLAIN, GOOD) == before
    assert helper.process.pid != first


def test_a_helper_killed_during_a_request_is_started_again(helper: Helper) -> None:
    lines = "\n".join(f"  %v{i} = mul i32 %v{i - 1}, %v{i - 2}" for i in range(2, 3000))
    long = f"define i32 @f(i32 %v0, i32 %v1) {{\n{lines}\n  ret i32 %v2999\n}}\n"
    helper.start()
    assert helper.process is not None
    first = helper.process.pid
    threading.Timer(0.05, lambda: os.kill(first, signal.SIGKILL)).start()
    assert b"imul" in helper.ask(PLAIN, long)
    assert helper.process.pid != first


def state_of(pid: int) -> str:
    """The letter of a process's state: S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def waited_for(condition: Callable[[], bool], seconds: int = 60) -> bool:
    """Whether it comes about; the time is only there so that a fault is a failure and no hang."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_killed_helper_is_noticed_at_once_and_takes_its_child_with_it(helper: Helper) -> None:
    """The child that works for it must not keep its output open. It is stopped, so that it cannot end by itself."""
    helper.start()
    process = helper.process
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    assert waited_for(lambda: children.read_text().split() != [])
    child = int(children.read_text().split()[0])
    assert waited_for(lambda: state_of(child) == "S")  # it is ready, and waits for its request
    os.kill(child, signal.SIGSTOP)
    codegen_server.write_message(process.stdin, PLAIN, GOOD.encode())  # type: ignore[arg-type]
    process.kill()
    hung = threading.Event()
    late = threading.Timer(60, lambda: (hung.set(), os.kill(child, signal.SIGKILL)))
    late.start()
    assert codegen_server.read_message(process.stdout) is None  # type: ignore[arg-type]
    late.cancel()
    assert not hung.is_set()
    assert waited_for(lambda: not is_there(child))


def test_an_interrupted_request_does_not_answer_the_next_one(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime import codegen

    helper.start()

    def interrupted(stream: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(codegen, "read_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            helper.ask(PLAIN, GOOD.replace("@f", "@wrong"))
    answer = helper.ask(PLAIN, GOOD).decode()
    assert "wrong" not in answer
    assert "f:" in answer


def test_requests_from_several_threads_get_their_own_answers(helper: Helper) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for i in range(5):
            name = f"function_{number}_{i}"
            if name not in helper.ask(PLAIN, GOOD.replace("@f", f"@{name}")).decode():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_modules_in_the_working_folder_are_not_taken_for_the_helpers(
    helper: Helper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "struct", "llvmlite", "tilewright"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    assert helper.ask(PLAIN, GOOD)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


START = """
import os, signal, sys
from tilewright.runtime.codegen import HELPER
HELPER.start()
print(HELPER.process.pid, flush=True)
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise SystemExit(0)",
        # a forked child that lives on does not keep the helper of a parent that was killed
        "os.fork() or __import__('time').sleep(1) or os._exit(0); os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_the_helper_does_not_outlive_its_process(end: str) -> None:
    from native_checks import script

    pid = int(script(START + end).stdout.split()[0])
    for _ in range(1200):
        if not is_there(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"the helper {pid} still runs")


def test_compiles_leave_no_children_no_open_files_and_little_memory() -> None:
    printed = succeeds(
        """
        import os, subprocess
        from native_checks import affine, whole
        from tilewright import compile_text

        def state():
            pages = int(open("/proc/self/statm").read().split()[1])
            return len(os.listdir("/proc/self/fd")), pages * 4096 / 2**20

        def children():
            task = f"/proc/self/task/{os.getpid()}/children"
            return len(open(task).read().split())

        x = whole(5, 37)
        def work(first, count):
            for i in range(first, first + count):
                y = compile_text(affine(i, i + 1), "cpu")(x)
                assert (y == x * i + i + 1).all()

        work(0, 30)
        before = state()
        work(30, 70)
        after = state()
        print(after[0] - before[0], after[1] - before[1], children())
        """,
        TILEWRIGHT_CACHE_DIR="off",
    )
    files, memory, children = printed.split()
    assert int(files) <= 0
    assert int(children) == 1  # the helper
    assert float(memory) < 14
