"""Clusters from kubeconfig files that appear, change, disappear, or are half written."""

from __future__ import annotations

import os

import pytest
import yaml

from kplane.provider import Manager, ProviderError
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers.file import FileProvider, kubeconfig_file
from kplane.provider.providers.file.kubeconfig_file import KubeconfigFile


def document(*contexts, port=1, token="one", cluster=None, user=None):
    return {
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in contexts],
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": token} if user is None else user}],
    }


def write(path, *contexts, **fields):
    put(path, yaml.safe_dump(document(*contexts, **fields)))


def put(path, text):
    """Write a file atomically, so that a concurrent reader never sees it empty."""
    new = path.with_name(".new")
    new.write_text(text)
    new.replace(path)


async def names_of(provider):
    """Return the names of the clusters that a provider finds now."""
    clusters = Clusters()
    await provider.run_once(clusters)
    names = clusters.names()
    await clusters.aclose()
    return names


async def test_clusters_follow_contexts_of_files_and_directories(tmp_path, eventually):
    """Criterion 43: each context is a cluster, which appears, changes and disappears with its file."""
    file, directory = tmp_path / "any-name", tmp_path / "discovered"
    provider = FileProvider(files=[file], directories=[directory], interval_seconds=0.02)
    manager = Manager(None, provider, name="test")
    async with manager:
        assert manager.cluster_names() == []
        directory.mkdir()
        found = directory / "kubeconfig.yaml"
        write(found, "only")
        await eventually(manager.cluster_names, lambda names: names == ["kubeconfig"])
        write(file, "a", "b")
        both = ["any-name.a", "any-name.b", "kubeconfig"]
        await eventually(manager.cluster_names, lambda names: names == both)
        assert manager.get_cluster("any-name.a").came_from(provider)

        file.unlink()
        await eventually(manager.cluster_names, lambda names: names == ["kubeconfig"])
        write(found, *(f"new-{number}" for number in range(3)))
        after = [f"kubeconfig.new-{number}" for number in range(3)]
        await eventually(manager.cluster_names, lambda names: names == after)
        found.unlink()
        directory.rmdir()
        await eventually(manager.cluster_names, lambda names: names == [])


@pytest.mark.parametrize(
    "half",
    ["", "apiVersion: v1\ncontexts:\n- context: {cluster: [", "- a list\n", "\x00", "just words"],
    ids=["empty", "cut off", "no mapping", "no text", "no YAML mapping"],
)
async def test_half_written_file_keeps_its_clusters(tmp_path, eventually, caplog, half, telling):
    """Criterion 69: a half-written file keeps its cluster and is logged once."""
    file, other = tmp_path / "a", tmp_path / "b"
    write(file, "kept")
    async with telling(FileProvider(files=[file, other], interval_seconds=0.01)) as clusters:
        (engagement,) = await eventually(clusters.engagements)
        put(file, half)
        write(other, "beside")
        await eventually(clusters.names, lambda names: len(names) == 2)
        for port in (2, 3, 4):
            # The provider sees each change in another look.
            write(other, "beside", port=port)
            server = f"https://127.0.0.1:{port}"
            await eventually(lambda: clusters.get("b").config.server, lambda seen, server=server: seen == server)
        assert clusters.get("a") is engagement.cluster
        assert caplog.text.count(f"{file}: ") == 1
        assert "keeping its clusters" in caplog.text

        write(file, "kept", token="two")
        await eventually(lambda: engagement.cluster.config.token, lambda token: token == "two")
        assert not engagement.closed


async def test_unreadable_file_keeps_its_clusters(tmp_path, eventually, caplog, telling):
    file = tmp_path / "a.kubeconfig"
    write(file, "kept")
    async with telling(FileProvider(directories=[tmp_path], interval_seconds=0.01)) as clusters:
        await eventually(clusters.engagements)
        file.unlink()
        file.mkdir()
        await eventually(lambda: caplog.text, lambda text: "it cannot be read: Is a directory" in text)
        assert clusters.names() == ["a"]


async def test_file_never_read_is_logged_once(tmp_path, eventually, caplog, telling):
    other = tmp_path / "other"
    async with telling(FileProvider(files=[tmp_path, other], interval_seconds=0.01)) as clusters:
        for port in (1, 2, 3):
            write(other, "c", port=port)
            end = f":{port}"
            await eventually(lambda: clusters.get("other").config.server, lambda seen, end=end: seen.endswith(end))
        assert caplog.text.count("it cannot be read: Is a directory") == 1


async def test_invalid_context_does_not_affect_others(tmp_path, eventually, caplog, telling):
    file = tmp_path / "a"
    text = document("good")
    text["contexts"].append({"name": "bad", "context": {"cluster": "elsewhere", "user": "u"}})
    text["contexts"].append("no context at all")
    text["contexts"].append({"name": "odd", "context": {"cluster": "odd", "user": "u"}})
    text["clusters"].append({"name": "odd", "cluster": {"server": "https://x.test", "certificate-authority": "a\0b"}})
    file.write_text(yaml.safe_dump(text))
    async with telling(FileProvider(files=[file], interval_seconds=0.01)) as clusters:
        await eventually(clusters.names, lambda names: names == ["a.good"])
        assert "failed to read context 'bad': the kubeconfig has no cluster 'elsewhere'" in caplog.text


async def test_file_with_new_server_replaces_the_cluster(tmp_path, eventually, telling):
    file = tmp_path / "a"
    write(file, "c", port=1)
    async with telling(FileProvider(files=[file], interval_seconds=0.01)) as clusters:
        (first,) = await eventually(clusters.engagements)
        write(file, "c", port=2)
        await eventually(lambda: clusters.get("a").config.server, lambda server: server.endswith(":2"))
        assert first.closed


async def test_run_once_adds_and_removes_clusters(tmp_path):
    file = tmp_path / "a"
    write(file, "x", "y")
    provider, clusters = FileProvider(files=[file]), Clusters()
    await provider.run_once(clusters)
    assert clusters.names() == ["a.x", "a.y"]
    write(file, "y", "z")
    await provider.run_once(clusters)
    await provider.run_once(clusters)
    assert clusters.names() == ["a.y", "a.z"]
    await clusters.aclose()


async def test_default_files_are_those_of_kubectl_then_working_directory(tmp_path, monkeypatch):
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".kube").mkdir(parents=True)
    work.mkdir()
    write(home / ".kube" / "config", "home")
    write(work / "kubeconfig.yaml", "work")
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "first")
    write(two, "second")
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))

    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(one), "", str(two), str(tmp_path / "absent")]))
    assert await names_of(FileProvider()) == ["one", "two"]
    monkeypatch.delenv("KUBECONFIG")
    assert await names_of(FileProvider()) == ["config"]
    (home / ".kube" / "config").unlink()
    assert await names_of(FileProvider()) == ["kubeconfig"]


async def test_file_provider_reads_every_kubeconfig_of_a_directory(tmp_path):
    for name in ("prod.yaml", "stage.yml", "a.kubeconfig", "b.kubeconfig.yaml", "admin.conf", "config", "c.json"):
        write(tmp_path / name, "x")
    (tmp_path / "directory.kubeconfig").mkdir()
    (tmp_path / "notes.md").write_text("contexts: none, this is a note")
    (tmp_path / "values.yaml").write_text("replicas: 3")
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / ".hidden", "x")
    names = await names_of(FileProvider(directories=[tmp_path]))
    assert names == ["a", "admin", "b", "c", "config", "prod", "stage"]
    assert await names_of(FileProvider(directories=[tmp_path], pattern="*.kubeconfig")) == ["a"]
    assert await names_of(FileProvider(directories=[tmp_path], pattern=".h*")) == [".hidden"]


async def test_cluster_name_is_the_file_and_the_context_if_there_are_several(tmp_path):
    write(tmp_path / "prod.eu.yaml", "admin@prod")
    write(tmp_path / "all.yaml", "a", "b")
    (tmp_path / "eu").mkdir()
    write(tmp_path / "eu" / "kubeconfig", "x")
    provider = FileProvider(directories=[tmp_path], files=[tmp_path / "eu" / "kubeconfig"])
    assert await names_of(provider) == ["all.a", "all.b", "kubeconfig", "prod.eu"]
    assert await names_of(FileProvider(directories=[tmp_path], pattern="*/*")) == ["eu/kubeconfig"]


async def test_cluster_name_stays_while_a_second_context_is_invalid(tmp_path):
    text = document("a", "b")
    text["contexts"][1]["context"]["user"] = "missing"
    (tmp_path / "all").write_text(yaml.safe_dump(text))
    assert await names_of(FileProvider(directories=[tmp_path])) == ["all.a"]


async def test_file_provider_refuses_a_second_cluster_of_one_name(tmp_path, caplog):
    first, second = tmp_path / "b.yaml", tmp_path / "b.kubeconfig"
    write(first, "x", port=1)
    provider, clusters = FileProvider(directories=[tmp_path]), Clusters()
    await provider.run_once(clusters)
    # The new file sorts before the existing file, and still does not replace its cluster.
    write(second, "x", port=2)
    for _ in range(2):
        await provider.run_once(clusters)
        assert clusters.get("b").config.server == "https://127.0.0.1:1"
    assert caplog.text.count(f"failed to add cluster 'b' of {second}: {first} has a cluster of this name") == 1
    first.unlink()
    await provider.run_once(clusters)
    await provider.run_once(clusters)
    assert clusters.get("b").config.server == "https://127.0.0.1:2"
    await clusters.aclose()


async def test_file_that_becomes_a_kubeconfig_joins(tmp_path, caplog):
    caplog.set_level("INFO")
    (tmp_path / "a.yaml").write_text("")
    provider, clusters = FileProvider(directories=[tmp_path]), Clusters()
    await provider.run_once(clusters)
    await provider.run_once(clusters)
    assert clusters.names() == []
    assert caplog.text.count("'a.yaml' is no kubeconfig") == 1
    write(tmp_path / "a.yaml", "x")
    await provider.run_once(clusters)
    assert clusters.names() == ["a"]
    await clusters.aclose()


async def test_file_provider_skips_named_pipe_with_warning(tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe")
    assert await names_of(FileProvider(files=[tmp_path / "pipe"])) == []
    assert "it is a pipe, which can be read only once" in caplog.text


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "a/./b", "a//b"])
def test_file_provider_refuses_patterns_that_leave_the_folder(pattern):
    with pytest.raises(ProviderError, match="names no files of a folder"):
        FileProvider(directories=["x"], pattern=pattern)


def test_file_provider_refuses_an_interval_of_zero():
    with pytest.raises(ProviderError, match="above 0"):
        FileProvider(interval_seconds=0)


def test_file_is_read_again_only_after_a_change(tmp_path, monkeypatch, tools):
    monkeypatch.setattr(kubeconfig_file, "_YOUNG_NANOSECONDS", 0)
    (tmp_path / "ca.pem").write_bytes(tools.Authority("one").pem)
    path = tmp_path / "a"
    write(path, "c", cluster={"certificate-authority": "ca.pem"})
    reads = []
    read = kubeconfig_file.read_document
    monkeypatch.setattr(kubeconfig_file, "read_document", lambda path: reads.append(path) or read(path))
    file = KubeconfigFile(str(path))
    for _ in range(3):
        file.look()
    assert len(reads) == 1

    # Change the named certificate, then the file itself with equal size and modification time.
    renewed = tools.Authority("two").pem
    (tmp_path / "ca.pem").write_bytes(renewed)
    file.look()
    assert (len(reads), file.contexts["c"].ca_data) == (2, renewed)
    before = path.stat()
    text = path.read_text()
    path.write_text(text.replace("127.0.0.1:1", "127.0.0.1:2"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    file.look()
    assert (len(reads), file.contexts["c"].server) == (3, "https://127.0.0.1:2")


def test_file_just_written_is_read_once_more(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write(path, "c")
    reads = []
    monkeypatch.setattr(kubeconfig_file, "read_document", lambda path: reads.append(path) or document("c"))
    file = KubeconfigFile(str(path))
    file.look()
    file.look()
    assert len(reads) == 2


def test_missing_file_or_context_is_dropped_at_second_look(tmp_path):
    path = tmp_path / "a"
    write(path, "x", "y")
    file = KubeconfigFile(str(path))
    file.look()
    path.write_text(yaml.safe_dump(document("x")))
    file.look()
    assert sorted(file.contexts) == ["x", "y"]
    write(path, "x", "y")
    file.look()
    path.write_text(yaml.safe_dump(document("x")))
    file.look()
    assert sorted(file.contexts) == ["x", "y"]
    file.look()
    assert sorted(file.contexts) == ["x"]
    path.unlink()
    file.look()
    assert (file.exists, sorted(file.contexts)) == (False, ["x"])
    file.look()
    assert not file.contexts


async def test_exec_plugins_are_refused_unless_the_files_are_trusted(tmp_path, caplog, monkeypatch):
    file = tmp_path / "a"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "token-for", "interactiveMode": "Never"}
    write(file, "c", user={"exec": plugin})
    assert await names_of(FileProvider(files=[file])) == []
    assert "failed to read context 'c': the kubeconfig has an exec credential plugin" in caplog.text
    assert await names_of(FileProvider(files=[file], trusted=True)) == ["a"]
    assert await names_of(FileProvider(directories=[tmp_path], trusted=True)) == ["a"]
    # The files of kubectl are trusted, as in ClusterConfig.default().
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert await names_of(FileProvider()) == ["a"]


async def test_unverified_servers_are_refused_unless_allowed(tmp_path, caplog):
    file = tmp_path / "a"
    write(file, "c", cluster={"insecure-skip-tls-verify": True})
    assert await names_of(FileProvider(files=[file], trusted=True)) == []
    assert "insecure-skip-tls-verify is set, and not allowed here" in caplog.text
    assert await names_of(FileProvider(files=[file], allow_insecure=True)) == ["a"]
    assert "context 'c' has insecure-skip-tls-verify: its server is not verified" in caplog.text


async def test_invalid_file_or_context_does_not_stop_others(tmp_path, eventually, caplog, monkeypatch, telling):
    files = [tmp_path / name for name in ("a", "b", "c")]
    odd = document("odd", "good")
    odd["contexts"][0]["context"]["user"] = "runs"
    odd["users"].append({"name": "runs", "user": {"exec": {"command": ["rm"], "interactiveMode": {}}}})
    files[0].write_text(yaml.safe_dump(odd))
    files[1].write_text("!!bool x")
    write(files[2], "c")
    provider = FileProvider(files=files, interval_seconds=0.01, trusted=True)
    async with telling(provider) as clusters:
        await eventually(clusters.names, lambda names: names == ["a.good", "c"])
        for told in ("the command of an exec plugin has to be a text", "the kubeconfig is no YAML document"):
            await eventually(lambda told=told: told in caplog.text)


def test_unexpected_error_of_a_context_does_not_stop_the_file(tmp_path, caplog, monkeypatch):
    write(tmp_path / "a", "odd", "good")
    read = kubeconfig_file.ClusterConfig.from_kubeconfig

    def fail(found, **options):
        if options["context"] == "odd":
            raise AttributeError("secret")
        return read(found, **options)

    monkeypatch.setattr(kubeconfig_file.ClusterConfig, "from_kubeconfig", fail)
    file = KubeconfigFile(str(tmp_path / "a"))
    file.look()
    assert list(file.contexts) == ["good"]
    assert "unexpected AttributeError" in caplog.text
    monkeypatch.setattr(kubeconfig_file, "read_document", lambda path: {}[path])
    (tmp_path / "a").write_text("other")
    file.look()
    assert list(file.contexts) == ["good"]
    assert "unexpected KeyError; keeping its clusters" in caplog.text
