"""Programs natively on arrays between protected pages: nothing past an end, nor before a beginning, is touched."""

from __future__ import annotations

import signal

from native_checks import script, succeeds


def test_the_guard_pages_guard() -> None:
    for at, place in (("end", "y.nbytes"), ("begin", "-1")):
        done = script(
            f"""
            import ctypes
            import numpy as np
            from guarded import guarded
            y = guarded(np.arange(37, dtype=np.float32), "{at}")
            assert (y == np.arange(37)).all()
            ctypes.memset(y.ctypes.data, 0, y.nbytes)
            print("here", flush=True)
            ctypes.memset(y.ctypes.data + {place}, 0, 1)
            """
        )
        assert (done.stdout, done.returncode) == ("here\n", -signal.SIGSEGV), done.stderr


def test_convolutions_stay_within_their_arrays() -> None:
    assert "stay within" in succeeds("import guarded; guarded.main()")
