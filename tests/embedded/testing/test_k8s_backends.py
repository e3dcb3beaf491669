"""The fixture `k8s` with real clusters, and its example in docs/testing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kplane.binaries.programs import Binaries
from kplane.embedded.handle import Handle
from kplane.workloads import find_processes

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DOCUMENT = Path(__file__).parents[3] / "docs" / "testing" / "index.md"
SETTINGS = ("K8S_ALLOWED_CONTEXTS", "KIND_CLUSTER", "KIND_NODE_IMAGE", "KUBECONFIG", "USE_EXISTING_CLUSTER")


@pytest.fixture
def pytester(pytester: pytest.Pytester, binaries: Binaries, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A run of pytest in an environment without cluster settings, with cached programs."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    # pytester sets its own HOME, which has no cached programs.
    monkeypatch.setenv("XDG_CACHE_HOME", str(binaries.kubernetes.parents[2]))
    return pytester


def _blocks(document: str) -> dict[str, str]:
    """Return the files that a document shows: code blocks whose first line is a comment with a file name."""
    return dict(re.findall(r"```\w+\n# (\S+\.\w+)\n(.*?)```", document, re.DOTALL))


def test_documented_example_passes_without_kplane_operators(pytester: pytest.Pytester) -> None:
    files = _blocks(DOCUMENT.read_text())
    assert set(files) == {"widgets.py", "crd.yaml", "conftest.py", "test_widgets.py"}
    for name, content in files.items():
        (pytester.path / name).write_text(content)
    pytester.makepyfile(
        test_bare="""
        import pytest

        def test_has_nothing_of_kplane(k8s):
            assert "kplane" not in k8s.kubectl("get", "crd,clusterroles", "-o=name")
            assert "kplane-system" not in k8s.kubectl("get", "namespaces")

        @pytest.mark.k8s_needs("gc")
        def test_collects_garbage(k8s):
            k8s.kubectl("create", "configmap", "owner")
            uid = k8s.kubectl("get", "configmap", "owner", "-o=jsonpath={.metadata.uid}")
            owned = f'''
              apiVersion: v1
              kind: ConfigMap
              metadata:
                name: owned
                ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]
            '''
            k8s.kubectl("apply", "-f", "-", stdin=owned)
            k8s.kubectl("delete", "configmap", "owner")
            k8s.kubectl("wait", "--for=delete", "configmap/owned", "--timeout=120s")

        def test_leaves_a_mark(k8s, pytestconfig):
            (pytestconfig.rootpath / "directory").write_text(str(k8s.directory))
    """
    )
    outcome = pytester.runpytest_subprocess("--k8s=local", "--k8s-required", "-rs")
    outcome.assert_outcomes(passed=5, skipped=1)
    outcome.stdout.fnmatch_lines(
        ["k8s: local (--k8s=local; programs found in *)", "SKIPPED * needs pods; k8s: local *"]
    )
    directory = Path((pytester.path / "directory").read_text())
    assert not directory.exists()
    assert find_processes(directory) == []


@pytest.mark.slow
def test_project_packages_may_share_names_of_kplane_packages(pytester: pytest.Pytester) -> None:
    for name in ("api", "controlplane_operator", "embedded", "mcm", "provider", "tools", "workloads"):
        pytester.mkpydir(name)
    pytester.makepyfile("""
        import os
        import api

        def test_with(k8s):
            assert k8s.kubectl("get", "namespace", "default", "-o=name").strip() == "namespace/default"
            assert "PYTHONSAFEPATH" not in os.environ
            assert api.__file__.startswith(os.getcwd())
    """)
    pytester.runpytest_subprocess("--k8s=local").assert_outcomes(passed=1)


@pytest.mark.slow
def test_k8s_operators_fixture_starts_kplane_operators(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def k8s_operators():
            return True
    """)
    pytester.makepyfile("""
        def test_installed(k8s):
            k8s.kubectl("get", "controlplanes")
            assert False, "to see the logs"
    """)
    outcome = pytester.runpytest_subprocess("--k8s-report-dir=kept")
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(
        ["k8s: local (auto: *", "*to see the logs*", "*- daemon.log -*", "*INFO kplane.embedded ready*"]
    )
    (report,) = (pytester.path / "kept").iterdir()
    names = {str(file.relative_to(report)) for file in report.rglob("*.log")}
    parts = ("etcd", "kube-apiserver", "kube-controller-manager", "controlplane-operator", "mcm")
    assert names >= {"daemon.log", *(f"runtime/{part}.log" for part in parts)}


def test_existing_cluster_is_used_only_if_context_is_allowed(
    pytester: pytest.Pytester, api_server: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.admin_kubeconfig))
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.k8s_needs("gc")
        def test_reaches_it(k8s):
            assert k8s.name == "existing"
            assert k8s.capabilities == {"api", "gc"}
            assert "controlplanes" in k8s.kubectl("get", "crd")

        @pytest.mark.k8s_needs("pods")
        def test_runs_pods(k8s): assert False
    """)
    refusal = pytester.runpytest_subprocess()
    assert refusal.ret == pytest.ExitCode.USAGE_ERROR
    refusal.stderr.fnmatch_lines(["ERROR: auto: USE_EXISTING_CLUSTER: failed to use the current context *"])

    context = re.search(r"the current context (\S+): ", refusal.stderr.str())
    assert context is not None
    monkeypatch.setenv("K8S_ALLOWED_CONTEXTS", f"other-*,{context[1]}")
    outcome = pytester.runpytest_subprocess("-rs", "-n2")
    outcome.assert_outcomes(passed=1, skipped=1)
    outcome.stdout.fnmatch_lines([f"k8s: existing (*; context {context[1]} is allowed by {context[1]}; has api, gc)"])


def test_unreachable_existing_cluster_skips_or_fails_if_required(
    pytester: pytest.Pytester, api_server: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = pytester.path / "elsewhere"
    kubeconfig.write_text(api_server.admin_kubeconfig.read_text().replace(api_server.server, "https://127.0.0.1:1"))
    kubeconfig.chmod(0o600)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("K8S_ALLOWED_CONTEXTS", "*")
    pytester.makepyfile("def test_uses_it(k8s): assert False")
    pytester.runpytest_subprocess("--k8s=existing").assert_outcomes(skipped=1)
    outcome = pytester.runpytest_subprocess("--k8s=existing", "--k8s-required")
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    outcome.stderr.fnmatch_lines(
        ["ERROR: --k8s-required: *--k8s=existing; failed to run `kubectl *127.0.0.1:1*refused*"]
    )
