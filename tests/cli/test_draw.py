"""`tilewright draw` and what every command shares: the version, help, and errors as one clean message."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright import __version__
from tilewright.algebra import Layout, parse_layout
from tilewright.algebra.picture import layout_svg, partition_svg
from tilewright.cli import app


def tilewright(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Runs a command; what it printed, and what it complained."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_the_version() -> None:
    assert tilewright("--version")[0] == f"tilewright {__version__}\n"


def test_help_shows_an_example() -> None:
    assert "tilewright draw '((2,2),(2,4)):((1,4),(2,8))'" in tilewright("draw", "--help")[0]
    assert "draw" in tilewright("--help")[0]


def test_a_layout_in_the_terminal() -> None:
    lines = [line.split() for line in tilewright("draw", "(2,4):(4,1)")[0].splitlines()]
    assert lines == [["(2,4):(4,1)"], list("0123"), list("00123"), list("14567")]


def test_passes_in_the_terminal() -> None:
    printed, _ = tilewright("draw", "(4,4):(4,1)", "--element-bytes", "4", "--banks", "4")
    assert "a row: 1 pass, a column: 4 passes, 4 banks of 4 bytes" in printed


def test_a_partition_in_the_terminal() -> None:
    printed, _ = tilewright("draw", "((3,2),(2,2)):((8,2),(4,1))", "--partition", "4x6")
    assert printed.splitlines()[2].strip() == "0  T0 V0  T0 V1  T1 V0  T1 V1  T2 V0  T2 V1"


def test_an_svg_file_is_written_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "tile.svg"
    file.write_text("old")
    text = "S<3,3,3> o 0 o (8,64):(64,1)"
    printed, _ = tilewright("draw", text, "-o", str(file), "--element-bytes", "2")
    assert printed == f"wrote {file}: the layout {text}\n"
    assert file.read_text(encoding="utf-8") == layout_svg(parse_layout(text), element_bytes=2)
    assert list(tmp_path.iterdir()) == [file]


def test_an_svg_file_of_a_partition_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "tile.svg"
    options = ["--partition", "4x2", "--element-bytes", "4", "--bank-bytes", "8", "--memory", "(4,2):(2,1)"]
    printed, _ = tilewright("draw", "(4,2)", "-o", str(file), *options)
    assert "the partition (4,2):(1,4) of a tile 4x2" in printed
    expected = partition_svg(Layout((4, 2)), (4, 2), memory=Layout((4, 2), (2, 1)), element_bytes=4, bank_bytes=8)
    assert file.read_text(encoding="utf-8") == expected
    assert ET.fromstring(expected).tag.endswith("svg")


def test_a_fault_in_the_notation_is_shown_with_a_caret() -> None:
    printed, complaint = tilewright("draw", "(4,8:1", code=2)
    assert printed == ""
    assert complaint == "error: expected , or )\n  (4,8:1\n      ^\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["(4,8):1"], "not nested alike"),
        (["(200,8)"], "local_tile"),
        (["(4,8)", "--partition", "4"], "such as 8x16"),
        (["(4,8)", "--partition", "0x8"], "such as 8x16"),
        (["(4,8)", "--partition", "4x4"], "indexes 0 to 15"),
        (["(4,8)", "--memory", "(4,8)"], "needs --partition"),
        (["(4,8)", "-o", "tile.png"], "ends in .svg"),
    ],
)
def test_errors_are_one_message(arguments: list[str], message: str) -> None:
    printed, complaint = tilewright("draw", *arguments, code=2)
    assert printed == ""
    assert complaint.startswith("error: ")
    assert message in complaint
    assert "Traceback" not in complaint


def test_an_option_out_of_range() -> None:
    assert "--banks" in tilewright("draw", "(4,8)", "--banks", "0", code=2)[1]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "tile.svg"
    assert tilewright("draw", "(4,8)", "-o", str(file), code=2)[1].startswith(f"error: cannot write {file}: No such")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "tile.svg"
    folder.mkdir()
    assert "cannot write" in tilewright("draw", "(4,8)", "-o", str(folder), code=2)[1]
    assert list(tmp_path.iterdir()) == [folder]


def test_the_console_script() -> None:
    code = "import sys; sys.argv = ['tilewright', 'draw', '(2']; from tilewright.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == ["error: expected , or ); the text ends here", "  (2", "    ^"]


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ("(1000000000,1000000000)", "1000000000000000000 cells in all"),
        ("(" * 100 + "2" + ")" * 100, "nested at most 64 deep"),
        ("9" * 5000, "an integer has at most 512 bits"),
        ("4:(1)@99999999999", "has no meaning in a layout"),
    ],
)
def test_a_layout_that_is_too_large_to_draw_is_refused_at_once(layout: str, says: str) -> None:
    assert says in tilewright("draw", layout, code=2)[1]


def test_a_tile_of_5000_digits_is_refused() -> None:
    message = tilewright("draw", "(4,2):(2,1)", "--partition", f"{'9' * 5000}x2", code=2)[1]
    assert "an integer has at most 512 bits" in message


CK = Path(__file__).parents[2] / "examples" / "ck"


def test_a_tensor_of_a_block_kernel(tmp_path: Path) -> None:
    file = tmp_path / "sa.svg"
    said, _ = tilewright("draw", str(CK / "optimized_gemm.py"), "sa", "-p", "BM=64", "-o", str(file))
    assert said == f"wrote {file}: %sa: shared f16 (4, 64, 8):(520, 8, 1)\n"
    texts = {e.text for e in ET.fromstring(file.read_text()).iter() if e.text}
    assert {"0", str(3 * 520 + 63 * 8 + 7)} <= texts  # the first offset and the last


def test_a_view_of_a_block_kernel_in_the_terminal() -> None:
    said, _ = tilewright("draw", f"{CK / 'tiled_copy.py'}:tiled_copy", "tile", "-p", "BN=256", "-p", "N=4")
    rows = [line.split() for line in said.splitlines()]
    assert rows[2][:5] == ["0", "0", "b0", "4", "b4"]  # row 0: offsets 0 and 4, first dimension fastest
    assert rows[3][:5] == ["1", "1", "b1", "5", "b5"]


def test_kernels_and_tensors_that_are_not_there_are_named() -> None:
    assert "has no tensor sc; it has a, b, c, sa, sb" in tilewright("draw", str(CK / "basic_gemm.py"), "sc", code=2)[1]
    assert (
        "which tensor of basic_gemm is to be drawn; it has a, b"
        in tilewright("draw", str(CK / "basic_gemm.py"), code=2)[1]
    )
    assert "there is no file none.py" in tilewright("draw", "none.py", "x", code=2)[1]
    assert "block kernels" in tilewright("draw", f"{CK / 'basic_gemm.py'}:gemm", "x", code=2)[1]
    assert "say a parameter" in tilewright("draw", str(CK / "basic_gemm.py"), "sa", "-p", "BM", code=2)[1]


def test_a_parameter_that_is_no_decimal_number_is_refused_by_the_kernel() -> None:
    for value, said in (("²", "pad: a multiple is '²'; it must be an integer"), ("9" * 5000, "at most 512 bits")):
        printed = tilewright("draw", str(CK / "basic_gemm.py"), "sa", "-p", f"BM={value}", code=2)[1]
        assert said in printed
