"""Pictures of the documents: diagrams and recordings, drawn from their sources."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.pictures import diagram, recording
from tools.pictures.__main__ import DIRECTORY, main, render
from tools.pictures.cast import Cast, Output
from tools.pictures.record import record
from tools.pictures.terminal import Screen, Style

SVG = "{http://www.w3.org/2000/svg}"


def test_committed_pictures_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_pictures_are_svgs_with_title_and_without_scripts() -> None:
    pictures = render()
    assert {path.name for path in pictures} >= {"overview.svg", "tenant.svg"}
    for path, picture in pictures.items():
        root = ET.fromstring(picture)
        assert root.tag == f"{SVG}svg", path
        assert (root.findtext(f"{SVG}title") or "").strip(), path
        assert not list(root.iter(f"{SVG}script")), path
        assert path.parent == DIRECTORY


def rows(data: str, *, columns: int = 20) -> list[str]:
    screen = Screen(columns)
    screen.write(data)
    return ["".join(cell.character for cell in row) for row in screen.rows]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("one\rtwo", ["two"]),
        ("\x1b[1mone\x1b[0m", ["one"]),
        ("one\n\r\x1b[1A\x1b[2Ktwo", ["two", ""]),
        ("one two\x1b[4D", ["one two"]),
        ("12345678901234567890X", ["12345678901234567890", "X"]),
        ("a\tb", ["a       b"]),
        ("\x1b]0;title\x07text", ["text"]),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\ text", ["link text"]),
        ("text   ", ["text"]),
    ],
)
def test_screen_handles_control_sequences(data: str, shown: list[str]) -> None:
    assert rows(data) == shown


def test_screen_reads_colour_and_dim_style() -> None:
    screen = Screen(20)
    screen.write("\x1b[32m✓\x1b[0m \x1b[2mdim\x1b[0m")
    (row,) = screen.rows
    assert row[0].style == Style(colour="green")
    assert row[1].style == Style()
    assert row[2].style == Style(dim=True)


@pytest.mark.parametrize("data", ["\x1b[32mone\x1b[0m\x1b[2Ktwo", "\x1b]0;title\x07one", "\x1b]8;;x\x1b\\one"])
def test_screen_accepts_sequences_split_at_any_byte(data: str) -> None:
    whole = Screen(20)
    whole.write(data)
    for cut in range(len(data)):
        screen = Screen(20)
        screen.write(data[:cut])
        screen.write(data[cut:])
        assert list(screen.rows) == list(whole.rows), cut


@pytest.mark.parametrize("colour", ["38;5;1", "38;2;1;2;31", "48;5;31", "48;2;2;31;1", "38", "38;5"])
def test_palette_colours_do_not_change_other_styles(colour: str) -> None:
    screen = Screen(20)
    screen.write(f"\x1b[{colour}m" + "one " + f"\x1b[{colour if colour.count(';') > 1 else '0'};1m" + "two")
    (row,) = screen.rows
    assert row[0].style == Style()
    assert row[-1].style == Style(bold=True)


def test_spinner_frames_are_drawn_alike() -> None:
    assert rows("⠋ work") == rows("⠙ work") == ["• work"]


def drawn(*outputs: tuple[float, str]) -> str:
    return recording.draw(Cast(20, "demo", [Output(*output) for output in outputs]))


def test_row_appears_at_time_of_its_output() -> None:
    picture = drawn((1.0, "first\r\n"), (1.5, "second\r\n"))
    total = 1.5 + 12.0
    assert f"@keyframes k0{{0%{{opacity:0}}{100 * 1.0 / total:.3f}%{{opacity:1}}}}" in picture
    assert f"@keyframes k1{{0%{{opacity:0}}{100 * 1.5 / total:.3f}%{{opacity:1}}}}" in picture


def test_long_pauses_are_shortened() -> None:
    assert "animation:k0 14.60s" in drawn((1.0, "first\r\n"), (61.0, "second\r\n"))


def test_picture_without_animation_shows_final_rows() -> None:
    root = ET.fromstring(drawn((0.5, "⠋ work\r\n"), (1.0, "\x1b[1A\x1b[2Kdone\r\n")))
    groups = {"".join(group.itertext()).strip(): group.get("class") for group in root.iter(f"{SVG}g")}
    assert groups == {"• work": "o", "done": None}


def test_markup_characters_are_escaped() -> None:
    assert "a &lt; b &amp; c" in drawn((0.0, "a < b & c"))


def test_recording_contains_commands_and_their_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cast = record(["name=acme", "echo hello $name"], columns=40, title="")
    file = tmp_path / "demo.cast"
    cast.save(file)
    assert Cast.load(file).title == ""
    lines = rows("".join(output.data for output in Cast.load(file).outputs), columns=40)
    assert [row for row in lines if row] == ["$ name=acme", "$ echo hello $name", "hello acme", "$"]


def test_failed_command_aborts_recording(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="status 1"):
        record(["false", "echo no"], columns=40, title="")


def test_interrupt_terminates_recorded_command(tmp_path: Path) -> None:
    """A command may take its time to end, as `make demo` does."""
    ended = tmp_path / "ended"
    script = tmp_path / "long.sh"
    script.write_text(f"trap 'sleep 0.5; touch {ended}; exit 1' TERM; echo begun; while sleep 0.1; do :; done")
    recorder = subprocess.Popen(
        [sys.executable, "-m", "tools.pictures", "record", str(tmp_path / "demo.cast"), f"bash {script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with recorder:
        assert recorder.stdout is not None
        while b"begun" not in recorder.stdout.readline():
            pass
        recorder.send_signal(signal.SIGINT)
        recorder.stdout.read()
    assert recorder.returncode != 0
    assert ended.exists()
    assert not (tmp_path / "demo.cast").exists()


def test_recording_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.cast").write_text('{"version": 1}\n')
    with pytest.raises(ValueError, match="no asciicast of version 2"):
        Cast.load(tmp_path / "old.cast")


DESCRIPTION = """
title = "Two boxes"
size = [300, 100]
[box.one]
at = [10, 10]
size = [80, 40]
title = "One"
[box.two]
at = [200, 10]
size = [80, 40]
title = "Two"
lines = ["$code"]
[[arrow]]
from = "one.right"
to = "two.left"
label = "a & b"
"""


def test_diagram_draws_boxes_and_arrows() -> None:
    root = ET.fromstring(diagram.draw(DESCRIPTION))
    assert [text.text for text in root.iter(f"{SVG}text")] == ["One", "Two", "code", "a & b"]
    ways = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert ways == ["M90 30L200 30"]


def test_arrow_between_offset_boxes_has_corners() -> None:
    picture = diagram.draw(re.sub(r"at = \[200, 10\]", "at = [200, 50]", DESCRIPTION))
    assert 'd="M90 30L145 30L145 70L200 70"' in picture


def test_arrow_without_side_of_a_box_is_refused() -> None:
    with pytest.raises(ValueError, match="up is no side of a box"):
        diagram.draw(DESCRIPTION.replace("one.right", "one.up"))
