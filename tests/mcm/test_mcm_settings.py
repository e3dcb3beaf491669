"""The command line of mcm."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcm.settings import Listen, Settings


def parse(tmp_path: Path, *more: str) -> Settings:
    return Settings.parse([f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", *more])


def test_what_is_given_and_what_is_default(tmp_path: Path) -> None:
    settings = parse(tmp_path, "--kubeconfig=k", f"--programs-dir={tmp_path.parent}")
    assert settings.kubeconfig == Path("k")
    assert settings.programs == (tmp_path, tmp_path.parent)
    assert settings.listen == Listen("127.0.0.1", 8081)
    assert parse(tmp_path).kubeconfig is None


@pytest.mark.parametrize(
    ("text", "host"), [("0.0.0.0:80", "0.0.0.0"), ("[::1]:80", "::1"), ("localhost:80", "localhost")]
)
def test_addresses_to_listen_on(tmp_path: Path, text: str, host: str) -> None:
    assert parse(tmp_path, f"--listen={text}").listen == Listen(host, 80)


@pytest.mark.parametrize("text", ["80", ":80", "host", "host:", "host:65536", "host:x", "host:-1"])
def test_what_is_no_address_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(tmp_path, f"--listen={text}")
    assert ended.value.code == 2
    assert "has to be HOST:PORT" in capsys.readouterr().err


def test_a_directory_of_programs_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, f"--programs-dir={tmp_path}/missing")
    assert f"{tmp_path}/missing is no directory" in capsys.readouterr().err


def test_flags_are_not_abbreviated(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, "--kube=k")
