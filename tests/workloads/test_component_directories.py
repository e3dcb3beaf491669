"""Directory, files, environment, placeholders and log of a component."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kplane.provider.aio.backoff import Backoff
from kplane.workloads import DATA, FILES, SCRATCH, File, Lifetime, Pace, Phase, Port, Probe, RuntimeFailure

FOREVER = "exec sleep 1000"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_owner_may_read_directory_and_files_of_component(runtime, sandbox) -> None:
    component = sandbox.shell("private", FOREVER, data=True, files={"key": File(b"secret")})
    await runtime.reserve("private", ports=["http"])
    await runtime.apply(component)
    directory = sandbox.directory / "private"
    assert {path.name for path in directory.iterdir()} == {"files", "data", "log", "address.json"}
    assert [mode(path) for path in (directory, directory / "files", directory / "data")] == [0o700] * 3
    assert [mode(directory / name) for name in ("files/key", "log", "address.json")] == [0o600] * 3
    assert runtime.log_path("private") == directory / "log"


async def test_scratch_directory_is_private_and_deleted_with_component(runtime, sandbox, eventually) -> None:
    component = sandbox.shell("room", f'touch "{SCRATCH}/made"; {FOREVER}', scratch=True)
    await runtime.apply(component)
    scratch = sandbox.directory / "room/scratch"
    assert mode(scratch) == 0o700
    await eventually(lambda: [path.name for path in scratch.iterdir()] == ["made"])
    await runtime.delete("room")
    assert not scratch.exists()
    with pytest.raises(RuntimeFailure, match="is used, but scratch is not set"):
        await runtime.apply(replace(component, scratch=False))


async def test_files_are_corrected_before_the_program_starts(runtime, sandbox) -> None:
    component = sandbox.shell("files", FOREVER, files={"a": File(b"1"), "b": File(b"2")})
    await runtime.apply(component)
    files = sandbox.directory / "files/files"
    (files / "a").chmod(0o644)
    (files / "b").write_text("changed by somebody")
    (files / ".a.new").write_text("left by a crash")
    await runtime.apply(replace(component, files={**component.files, "c": File(b"3")}))
    assert {path.name: path.read_bytes() for path in files.iterdir()} == {"a": b"1", "b": b"2", "c": b"3"}
    assert mode(files / "a") == 0o600
    await runtime.apply(replace(component, files={"c": File(b"3")}))
    assert [path.name for path in files.iterdir()] == ["c"]


@pytest.fixture
def full_disk() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context manager under which no file can grow beyond 64 bytes."""

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return full


@pytest.mark.parametrize("reloaded", [False, True])
async def test_failed_write_of_files_keeps_old_process_and_old_files(
    runtime, sandbox, is_running, full_disk, reloaded
) -> None:
    old, new = (
        {"a": File(text, reloaded=reloaded), "b": File(text * size, reloaded=reloaded)}
        for text, size in ((b"1", 1), (b"2", 100))
    )
    component = sandbox.shell("kept", FOREVER, files=old)
    await runtime.apply(component)
    state = await sandbox.phase(runtime, "kept", Phase.READY)
    with full_disk(), pytest.raises(RuntimeFailure, match="Component kept: its directory cannot be written"):
        await runtime.apply(replace(component, files=new))
    files = sandbox.directory / "kept/files"
    assert (runtime.state("kept"), is_running(state.pid)) == (state, True)
    assert {path.name: path.read_bytes() for path in files.iterdir()} == {"a": b"1", "b": b"1"}
    await runtime.apply(replace(component, files=new))
    assert (runtime.state("kept").pid == state.pid) == reloaded
    assert {path.name: path.read_bytes() for path in files.iterdir()} == {"a": b"2", "b": b"2" * 100}


async def test_replaced_process_keeps_its_old_files_until_it_ends(runtime, sandbox) -> None:
    script = "trap 'cat files/f files/gone > data/seen; exit' TERM; echo > data/up; while :; do sleep 0.05; done"
    component = sandbox.shell("old", script, data=True, files={"f": File(b"1"), "gone": File(b"2")})
    await runtime.apply(component)
    await sandbox.text(sandbox.directory / "old/data/up")
    await runtime.apply(replace(component, args=("-c", FOREVER), files={"f": File(b"3")}))
    assert (sandbox.directory / "old/data/seen").read_text() == "12"
    assert [path.read_bytes() for path in (sandbox.directory / "old/files").iterdir()] == [b"3"]


async def test_reloaded_file_is_replaced_atomically(runtime, sandbox) -> None:
    component = sandbox.shell("reload", FOREVER, files={"cert": File(b"old", reloaded=True)})
    await runtime.apply(component)
    pid = runtime.state("reload").pid
    path = sandbox.directory / "reload/files/cert"
    with path.open("rb") as old:
        await runtime.apply(replace(component, files={"cert": File(b"new", reloaded=True)}))
        assert old.read() == b"old", "who has it open reads the old one to its end"
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o600
    assert runtime.state("reload").pid == pid


async def test_contents_of_files_appear_in_no_repr_and_no_log(runtime, sandbox, caplog) -> None:
    caplog.set_level("DEBUG")
    component = sandbox.shell("quiet", "exit 1", files={"key": File(b"very-secret")})
    await runtime.apply(component)
    await sandbox._eventually(lambda: runtime.state("quiet").restarts)
    assert "very-secret" not in caplog.text + repr(component) + repr(runtime.state("quiet"))


@pytest.mark.parametrize("lifetime", Lifetime)
async def test_process_gets_clean_environment_and_standard_descriptors(runtime, sandbox, monkeypatch, lifetime) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    report = "env > data/env; pwd > data/pwd; ls -l /proc/$$/fd > data/fds; ps -o pid=,pgid=,sid= $$ > data/ids"
    script = f"{report}; exec sleep 1000"
    try:
        await runtime.apply(
            sandbox.shell("clean", script, data=True, lifetime=lifetime, env={"A": "b", "PLACE": f"{DATA}/x"})
        )
    finally:
        os.close(descriptor)
    directory = sandbox.directory / "clean"
    ids = (await sandbox.text(directory / "data/ids")).split()
    environment = dict(line.split("=", 1) for line in (directory / "data/env").read_text().splitlines())
    assert {key: value for key, value in environment.items() if key not in {"_", "SHLVL", "OLDPWD"}} == {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "PWD": str(directory),
        "A": "b",
        "PLACE": f"{directory}/data/x",
        "KPLANE_COMPONENT": str(directory),
        "KPLANE_COMPONENT_HASH": environment["KPLANE_COMPONENT_HASH"],
    }
    assert (directory / "data/pwd").read_text().strip() == str(directory)
    assert ids == [str(runtime.state("clean").pid)] * 3, "it leads a session and a group of its own"
    targets = [line.split(" -> ") for line in (directory / "data/fds").read_text().splitlines() if " -> " in line]
    assert {left.split()[-1]: right for left, right in targets if left.split()[-1] in {"0", "2"}} == {
        "0": "/dev/null",
        "2": str(directory / "log"),
    }
    assert not {right for _, right in targets} - {"/dev/null", str(directory / "log"), str(directory / "data/fds")}


async def test_placeholders_in_arguments_become_directories(runtime, sandbox) -> None:
    script = f"cp {FILES}/in {DATA}/out; exec sleep 1000"
    await runtime.apply(sandbox.shell("places", script, data=True, files={"in": File(b"content")}))
    await sandbox.text(sandbox.directory / "places/data/out", lambda text: text == "content")


async def test_placeholders_in_files_are_replaced_if_names_files_is_set(runtime, sandbox) -> None:
    content = f"ca: {FILES}/ca.crt".encode()
    files = {"in": File(content, names_files=True), "as-it-is": File(content)}
    component = sandbox.shell("named", "exec sleep 1000", files=files)
    await runtime.apply(component)
    directory = sandbox.directory / "named/files"
    assert (directory / "in").read_text() == f"ca: {directory}/ca.crt"
    assert (directory / "as-it-is").read_bytes() == content
    pid = runtime.state("named").pid
    await runtime.apply(component)
    assert runtime.state("named").pid == pid


async def test_programs_are_searched_in_order(sandbox, tmp_path) -> None:
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        program = tmp_path / place / "tool"
        program.write_text(f"#!/bin/sh\necho {place}; exec sleep 1000\n")
        program.chmod(0o755)
    (tmp_path / "first/tool").chmod(0o644)
    async with sandbox.runtime(programs=[tmp_path / "first", tmp_path / "second"]) as runtime:
        component = replace(sandbox.shell("tool", ""), program="tool", args=())
        await runtime.apply(component)
        pid = runtime.state("tool").pid
        await sandbox.text(runtime.log_path("tool"), lambda text: text == "second\n")
        (tmp_path / "first/tool").chmod(0o755)
        await runtime.apply(component)
        assert runtime.state("tool").pid != pid, "another program is another description"
        await sandbox.text(runtime.log_path("tool"), lambda text: text == "second\nfirst\n")


PORT = Port(number=1, name="http")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Upper"}, "'Upper' cannot be the name of a component"),
        ({"name": "../up"}, "'../up' cannot be the name"),
        ({"name": "a" * 64}, "cannot be the name"),
        ({"files": {"../f": File(b"")}}, r"'../f' in files is no plain file name"),
        ({"files": {".hidden": File(b"")}}, "is no plain file name"),
        ({"args": (f"{DATA}/x",)}, r"\$\(DATA\) is used, but data is not set"),
        ({"env": {"KPLANE_COMPONENT": "x"}}, "env must not set KPLANE_COMPONENT"),
        ({"args": ("a\0b",)}, "NUL"),
        ({"program": "bin/sh"}, "has to be a plain name or an absolute path"),
        ({"program": "/nowhere/sh"}, "looked for: /nowhere/sh"),
        ({"readiness": Probe(port="https", path="/")}, "port 'https', which is not in ports"),
        ({"ports": (PORT,), "readiness": Probe(port="http", path="/", ca="ca")}, "file 'ca', which is not in files"),
        (
            {"ports": (PORT,), "readiness": Probe(port="http", path="/", ca="ca"), "files": {"ca": File(b"x")}},
            "file 'ca', which readiness names, holds no CA certificate",
        ),
    ],
)
async def test_invalid_description_is_refused_with_the_reason(runtime, sandbox, changes, message) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        await runtime.apply(replace(sandbox.shell("x", FOREVER), **changes))
    assert runtime.names() == []


async def test_log_is_bounded_while_its_writer_continues(sandbox) -> None:
    async with sandbox.runtime(log_limit_bytes=20_000) as runtime:
        script = "i=0; while :; do i=$((i+1)); echo line $i; [ $((i % 200)) = 0 ] && sleep 0.02; done"
        await runtime.apply(sandbox.shell("chatty", script))
        pid = runtime.state("chatty").pid
        log = runtime.log_path("chatty")
        old = log.with_name("log.1")
        first = await sandbox.text(old)
        await sandbox.text(old, lambda text: text != first)
        assert old.stat().st_size <= 20_000
        assert mode(old) == 0o600
        before = log.stat().st_ino
        for _ in range(3):  # the log may exceed the limit between two checks, and each check truncates it
            await sandbox._eventually(lambda: log.stat().st_size, lambda size: size > 10_000)
            await sandbox._eventually(lambda: log.stat().st_size, lambda size: size < 10_000)
        await sandbox.text(log, lambda text: text.startswith("line ") or "\nline " in text)
        assert log.stat().st_ino == before
        assert b"\0" not in log.read_bytes(), "the writer appends where the file now ends"
        assert runtime.state("chatty").pid == pid
        assert {path.name for path in log.parent.iterdir()} - {".log.new"} == {"files", "log", "log.1"}


async def test_kernel_limits_log_of_component_that_only_logs(sandbox) -> None:
    """The limit holds without checks of the size: this test runs no second check."""
    limit = 20_000
    line = "$(head -c 9999 /dev/zero | tr '\\0' x)"
    script = f"line={line}; i=0; while [ $((i += 1)) -le 100 ]; do echo $line; done; touch data/over; {FOREVER}"
    async with sandbox.runtime(log_limit_bytes=limit, pace=Pace(log_check=1000.0)) as runtime:
        await runtime.apply(sandbox.shell("flood", script, data=True, lifetime=Lifetime.BOUND, only_logs=True))
        pid = runtime.state("flood").pid
        await sandbox._eventually(lambda: (sandbox.directory / "flood/data/over").exists())
        assert runtime.log_path("flood").stat().st_size == 4 * limit
        assert runtime.state("flood").pid == pid, "what does not fit is lost, and the program goes on"


async def test_full_log_is_rotated_and_written_again(sandbox) -> None:
    limit = 20_000
    line = "$(head -c 9999 /dev/zero | tr '\\0' x)"
    script = f"line={line}; while :; do echo $line; sleep 0.001; done"
    async with sandbox.runtime(log_limit_bytes=limit) as runtime:
        await runtime.apply(sandbox.shell("flood", script, lifetime=Lifetime.BOUND, only_logs=True))
        pid = runtime.state("flood").pid
        log, old = runtime.log_path("flood"), runtime.log_path("flood").with_name("log.1")
        for _ in range(3):
            before = old.stat().st_ino if old.exists() else 0
            await sandbox._eventually(lambda before=before: old.exists() and old.stat().st_ino != before)
            assert log.stat().st_size <= 4 * limit
            assert old.stat().st_size <= limit
        assert runtime.state("flood").pid == pid


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), FileNotFoundError(2, "No such file")])
async def test_delete_after_a_failed_removal_removes_all_files(runtime, sandbox, monkeypatch, failure) -> None:
    await runtime.apply(sandbox.shell("keys", FOREVER, files={"key": File(b"secret")}))
    remove = shutil.rmtree
    failures = [failure]

    def fail_once(path, **options) -> None:
        if failures:
            raise failures.pop()
        remove(path, **options)

    monkeypatch.setattr("kplane.workloads.processes.runtime.shutil.rmtree", fail_once)
    await runtime.apply(sandbox.shell("keys-2", FOREVER, files={"key": File(b"secret")}))
    if not isinstance(failure, FileNotFoundError):  # a concurrent removal is no failure
        with pytest.raises(RuntimeFailure, match=r"Component keys cannot be removed: .*Input/output error"):
            await runtime.delete("keys")
    await runtime.delete("keys")
    assert [path.parent.parent.name for path in sandbox.directory.rglob("key")] == ["keys-2"]


async def test_failed_removal_of_remnants_is_logged_and_retried(sandbox, monkeypatch, caplog, eventually) -> None:
    """All removable files are removed at once, because they may be keys."""
    remnant = sandbox.directory / ".removed-keys-01234567"
    for name in ("a", "stuck", "z"):
        (remnant / name).mkdir(parents=True)
        (remnant / name / "key").write_text("secret")
    unlink, stuck = os.unlink, ["stuck"]

    def refuse(path, *, dir_fd=None) -> None:
        if stuck and "stuck" in os.readlink(f"/proc/self/fd/{dir_fd}"):
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    monkeypatch.setattr(Backoff, "next_delay", lambda _: 0.05)
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("other", FOREVER))
        await eventually(lambda: caplog.text.count(f"failed to remove {remnant} of a deleted component") > 2)
        assert [path.parent.name for path in remnant.rglob("key")] == ["stuck"]
        stuck.clear()
        await eventually(lambda: not remnant.exists())
