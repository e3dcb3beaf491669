"""The plugin in separate runs of pytest: output, skipped tests, and errors that end a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

NEEDING = """
    import pytest

    @pytest.mark.k8s_needs("gc")
    def test_collects(): pass

    @pytest.mark.k8s_needs("api", "pods")
    @pytest.mark.k8s_needs("images")
    def test_runs_pods(): pass

    def test_needs_nothing(): pass
"""
USING = """
    def test_by_name(k8s): raise AssertionError("it ran")

    def test_by_request(request):
        request.getfixturevalue("k8s")
        raise AssertionError("it ran")

    def test_without(): pass
"""
ENVIRONMENT = {
    "USE_EXISTING_CLUSTER": "true",
    "KIND_CLUSTER": "mine",
    "KIND_NODE_IMAGE": "node:1",
    "KIND_KEEP": "maybe",
}


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    # pytest-asyncio warns without a loop scope. The import of hypothesis takes three quarters of such a run.
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\naddopts = -p no:hypothesispytest")
    return pytester


@pytest.fixture
def on_cluster(stand_ins, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.write_kubectl()
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
    monkeypatch.setenv("K8S_ALLOWED_CONTEXTS", "staging")


def test_backend_and_reason_are_printed_after_collection(stand_ins, pytester: pytest.Pytester) -> None:
    stand_ins.write_programs_of_local()
    pytester.makepyfile(NEEDING)
    line = (
        "k8s: local (auto: no cluster named by USE_EXISTING_CLUSTER, no KIND_CLUSTER/KIND_NODE_IMAGE; "
        f"programs found in {stand_ins.directory})"
    )
    pytester.runpytest().stdout.fnmatch_lines(["collected 3 items", line])
    pytester.runpytest("--k8s=none").stdout.fnmatch_lines(["collected 3 items", "k8s: none (--k8s=none)"])


@pytest.mark.parametrize("workers", [(), ("-n1",)])
@pytest.mark.parametrize(
    ("tests", "args", "passed"),
    [
        ("def test_of_a_unit(): pass", (), 1),
        (f"{NEEDING}\n    def test_with(k8s): pass", ("-k", "test_needs_nothing"), 1),
        (NEEDING, ("--collect-only",), 0),
        (NEEDING, ("--collect-only", "--k8s=kind"), 0),
    ],
)
def test_run_without_cluster_tests_calls_no_programs(
    stand_ins,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tests: str,
    args: tuple[str, ...],
    passed: int,
    workers: tuple[str, ...],
) -> None:
    """The environment names clusters, but this run has no test that uses a cluster."""
    stand_ins.write_kubectl()
    stand_ins.write_kind("mine")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile(tests)
    run = pytester.runpytest_subprocess if workers else pytester.runpytest
    outcome = run(*args, *workers)
    assert outcome.ret == pytest.ExitCode.OK
    outcome.assert_outcomes(passed=passed)
    outcome.stdout.no_fnmatch_line("k8s: *")
    assert stand_ins.calls("kind") + stand_ins.calls("kubectl") == []


@pytest.mark.parametrize(("args", "program"), [((), "kubectl"), (("--k8s=kind",), "kind")])
def test_run_with_cluster_tests_calls_programs(
    stand_ins, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], program: str
) -> None:
    """Proves that the previous test would detect calls of the programs."""
    stand_ins.write_kubectl()
    stand_ins.write_kind("mine")
    for name, value in (ENVIRONMENT | {"KIND_KEEP": ""}).items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile("def test_with(k8s): pass")
    pytester.runpytest(*args)
    assert stand_ins.calls(program)


def test_marker_needs_stays_available_to_the_project(stand_ins, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers = needs: of the project")
    pytester.makepyfile("import pytest\n\n@pytest.mark.needs('docker', version=1)\ndef test_theirs(): pass")
    pytester.runpytest("--strict-markers").assert_outcomes(passed=1)


def test_tests_that_use_k8s_are_skipped_without_a_cluster(stand_ins, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USING)
    outcome = pytester.runpytest("-rs")
    outcome.assert_outcomes(passed=1, skipped=2)
    outcome.stdout.fnmatch_lines(
        [
            "k8s: none (auto: *; no embedded cluster, because its programs are missing; `python -m kplane.binaries` *",
            "SKIPPED * k8s: none (auto: *",
        ]
    )


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_tests_with_missing_capabilities_are_skipped(
    stand_ins, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    stand_ins.write_programs_of_local()
    pytester.makepyfile(NEEDING)
    outcome = pytester.runpytest_subprocess("-rs", "--k8s=local", *workers)
    outcome.assert_outcomes(passed=2, skipped=1)
    outcome.stdout.fnmatch_lines(["SKIPPED * needs images, pods; k8s: local (--k8s=local; programs found in *"])


@pytest.mark.parametrize(
    ("mark", "says", "workers"),
    [
        ('"nodes", "pods"', "unknown capability 'nodes'", ()),
        ('"nodes", "pods"', "unknown capability 'nodes'", ("-n1",)),
        ("", "expected names of capabilities", ()),
        ("pods=True", "expected names of capabilities", ()),
        ("['pods']", "unknown capability ['pods']", ()),
    ],
)
def test_knows_its_capabilities(
    stand_ins, pytester: pytest.Pytester, mark: str, says: str, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.k8s_needs({mark})\ndef test_wrong(): pass")
    run = pytester.runpytest_subprocess if workers else pytester.runpytest
    outcome = run(*workers)
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    text = outcome.stderr.str()
    assert (
        f"test_knows_its_capabilities.py::test_wrong: failed to read the marker `k8s_needs`: {says}; use api: " in text
    )


def test_required_cluster_that_is_missing_is_a_usage_error(stand_ins, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    outcome = pytester.runpytest("--k8s-required")
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    outcome.stderr.fnmatch_lines(["ERROR: --k8s-required: failed to find a cluster for the tests: auto: *"])
    stand_ins.write_programs_of_local()
    assert pytester.runpytest("--k8s-required").ret == 0


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_refused_context_ends_the_run_before_any_test(
    on_cluster: None, stand_ins, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("K8S_ALLOWED_CONTEXTS", "kind-*")
    pytester.makepyfile("""
        def test_with(k8s): open("ran", "w")

        def test_without(): open("ran", "w")
    """)
    outcome = pytester.runpytest_subprocess(*workers)
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    outcome.stderr.fnmatch_lines(["ERROR: *current context staging: K8S_ALLOWED_CONTEXTS allows kind-*"])
    assert not (pytester.path / "ran").exists()
    assert stand_ins.calls("kubectl") == ["config current-context"]


def test_capabilities_of_existing_cluster_are_detected(on_cluster: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NEEDING)
    outcome = pytester.runpytest("-rs")
    outcome.stdout.fnmatch_lines(["k8s: existing (*; context staging is allowed by staging; has api, gc, pods)"])
    outcome.stdout.fnmatch_lines(["SKIPPED * needs images; k8s: existing *"])


def test_k8s_uses_a_private_kubeconfig_of_the_checked_context(on_cluster: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pathlib

        def test_cluster(k8s):
            assert (k8s.name, k8s.context) == ("existing", "staging")
            assert k8s.kubeconfig.read_text() == "kubeconfig of staging\\n"
            assert k8s.kubeconfig.stat().st_mode & 0o777 == 0o600
            said = k8s.kubectl("get", "widgets").split()
            assert said[:3] == ["kubectl", f"--kubeconfig={k8s.kubeconfig}", "--context=staging"]
            assert said[-2:] == ["get", "widgets"]
            pathlib.Path("where").write_text(str(k8s.kubeconfig))
    """)
    pytester.runpytest().assert_outcomes(passed=1)
    assert not Path((pytester.path / "where").read_text()).exists(), "credentials were left behind"


def test_kubectl_failure_shows_its_error_and_the_calling_line(on_cluster: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_asked(k8s):
            assert k8s.kubectl("get", "nonsense", check=False) == "on output\\nno such thing\\n"
            k8s.kubectl("get", "nonsense")
    """)
    outcome = pytester.runpytest()
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(
        [
            '>*k8s.kubectl("get", "nonsense")',
            "E * failed to run `kubectl get nonsense`: status 3: no such thing",
        ]
    )
    outcome.stdout.no_fnmatch_line("*subprocess.run*")


def test_keeps_the_logs_of_the_first_failure_of_a_test(on_cluster: None, stand_ins, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def after():
            yield
            raise RuntimeError("and again")

        def test_fails_twice(k8s, after): assert False

        def test_passes(k8s): pass

        def test_fails_without(): assert False
    """)
    outcome = pytester.runpytest("--k8s-report-dir=logs")
    outcome.assert_outcomes(failed=2, passed=1, errors=1)
    directories = list((pytester.path / "logs").iterdir())
    assert [directory.name for directory in directories] == [
        "test_keeps_the_logs_of_the_first_failure_of_a_test.py-test_fails_twice"
    ]
    assert {file.name for file in directories[0].iterdir()} == {"events.txt", "pods.txt"}
    outcome.stdout.fnmatch_lines([f"*all logs: logs/{directories[0].name}"])
    assert sum("events -A" in call for call in stand_ins.calls("kubectl")) == 1


def test_failure_without_report_dir_shows_ends_of_logs(on_cluster: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_fails(k8s): assert False")
    outcome = pytester.runpytest()
    outcome.stdout.fnmatch_lines(["*- events.txt -*", "kubectl *events -A", "*- pods.txt -*"])
    assert [
        path.name for path in pytester.path.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    ] == []


@pytest.mark.parametrize("args", [(), ("--k8s-required",)])
def test_kind_cluster_is_created_once_for_all_workers_and_deleted(
    stand_ins, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    stand_ins.write_kubectl()
    stand_ins.write_kind("somebody-elses")
    monkeypatch.setenv("KIND_NODE_IMAGE", "node:1")
    monkeypatch.setenv("KIND_CONFIG", "cluster.yaml")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.k8s_needs("images", "pods")
        def test_uses_it(k8s):
            assert (k8s.name, k8s.context) == ("kind", "kind-kplane-e2e")
            assert k8s.kubeconfig.read_text() == "kubeconfig of kplane-e2e\\n"
            k8s.load_images("one:1", "two:2")
    """)
    outcome = pytester.runpytest_subprocess("--dist=each", "--tx=2*popen", *args)
    outcome.assert_outcomes(passed=2)
    outcome.stdout.fnmatch_lines(["k8s: kind (*; cluster kplane-e2e will be created from node:1; kind found in *)"])
    assert sum(line.startswith("k8s: ") for line in outcome.outlines) == 1
    calls = stand_ins.calls("kind")
    assert calls.count("get clusters") == 2, "once to choose, once to create"
    (creation,) = [call for call in calls if call.startswith("create")]
    assert creation.startswith("create cluster --name=kplane-e2e --kubeconfig=")
    assert creation.endswith(" --image=node:1 --config=cluster.yaml")
    assert calls.count("load docker-image --name=kplane-e2e one:1 two:2") == 2
    assert calls[-1].startswith("delete cluster --name=kplane-e2e --kubeconfig=")


@pytest.mark.parametrize(
    ("clusters", "keep", "created"), [(("kplane-e2e",), "", False), ((), "1", True), (("kplane-e2e",), "1", False)]
)
def test_existing_or_kept_kind_cluster_is_not_deleted(
    stand_ins,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    clusters: tuple[str, ...],
    keep: str,
    created: bool,
) -> None:
    stand_ins.write_kubectl()
    stand_ins.write_kind(*clusters)
    monkeypatch.setenv("KIND_KEEP", keep)
    pytester.makepyfile("def test_uses_it(k8s): pass")
    pytester.runpytest("--k8s=kind").assert_outcomes(passed=1)
    calls = [call.split()[0] for call in stand_ins.calls("kind")]
    assert ("create" in calls) is created
    assert "delete" not in calls


def test_failed_kind_creation_shows_its_error_and_deletes_nothing(stand_ins, pytester: pytest.Pytester) -> None:
    stand_ins.write_kubectl()
    stand_ins.write("kind", 'case "$1" in create) echo "no such image" >&2; exit 1 ;; esac')
    pytester.makepyfile("def test_uses_it(k8s): pass")
    outcome = pytester.runpytest("--k8s=kind")
    outcome.assert_outcomes(errors=1)
    outcome.stdout.fnmatch_lines(
        ["E *failed to run `kind create cluster --name=kplane-e2e *`: status 1: no such image"]
    )
    assert not any(call.startswith("delete") for call in stand_ins.calls("kind"))


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_project_packages_may_be_named_like_kplane_components(
    stand_ins, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    """kplane owns only the package `kplane`: `python -m pytest` finds the packages of the project first."""
    stand_ins.write_kubectl()
    stand_ins.write_kind("kplane-e2e")
    for name in ("api", "embedded", "provider", "testing", "tools", "workloads"):
        (pytester.mkpydir(name) / "hammers.py").touch()
    pytester.makepyfile("""
        import tools.hammers
        import workloads.hammers

        def test_with(k8s): pass
    """)
    outcome = pytester.runpytest_subprocess("--k8s=kind", *workers)
    outcome.assert_outcomes(passed=1)


def test_marker_option_and_fixture_have_descriptions(stand_ins, pytester: pytest.Pytester) -> None:
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.k8s_needs(*): *api, gc, pods, images, reset"])
    pytester.runpytest("--help").stdout.fnmatch_lines(["*--k8s={auto,kind,local,existing,none}*"])
    pytester.runpytest("--fixtures").stdout.fnmatch_lines(["k8s [[]session scope[]] *"])


def test_plugin_import_loads_no_slow_modules() -> None:
    """Modules with a slow import are imported only when a cluster is started."""
    ours = ("kplane.binaries", "kplane.provider", "kplane.workloads")
    slow = ("aiohttp", "asyncio", "cryptography", "kopf", "pydantic", "yaml", *ours)
    assert _loaded_by("kplane.testing.plugin", names=slow) == []


def _loaded_by(*modules: str, names: Iterable[str]) -> list[str]:
    """Return the members of `names` that a new Python process has loaded after the import of these modules."""
    script = f"import sys, {', '.join(modules)}; print(*(name for name in {tuple(names)} if name in sys.modules))"
    root = Path(__file__).parents[3]
    process = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    return process.stdout.split()


def test_clean_api_server_is_skipped_on_cluster_without_reset(on_cluster, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_by_name(clean_api_server): raise AssertionError("it ran")

        def test_by_request(request):
            request.getfixturevalue("clean_api_server")
            raise AssertionError("it ran")
    """)
    outcome = pytester.runpytest("-rs")
    outcome.assert_outcomes(skipped=2)
    outcome.stdout.fnmatch_lines(["SKIPPED * needs reset; k8s: existing *"])


def test_clean_api_server_without_grpc_names_missing_packages(
    stand_ins, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.write_programs_of_local()
    pytester.makeconftest("""
        from kplane.testing.clean import fixture

        fixture.find_spec = lambda name: None
    """)
    pytester.makepyfile("def test_uses_it(clean_api_server): pass")
    outcome = pytester.runpytest_subprocess("--k8s=local")
    outcome.assert_outcomes(errors=1)
    outcome.stdout.fnmatch_lines(["*needs grpc and google.protobuf; install kplane[[]testing[]]*"])
