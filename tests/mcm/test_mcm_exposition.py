"""Texts of many processes become one, in which a parser finds every sample where it belongs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kplane.mcm.metrics.allowlist import digest
from kplane.mcm.metrics.render import Families, read_samples

TEXT = """# HELP workqueue_depth [BETA] Current depth of workqueue
# TYPE workqueue_depth gauge
workqueue_depth{name="a"} 2
workqueue_depth{name="b"} 3
# HELP workqueue_longest_running_processor_seconds x
# TYPE workqueue_longest_running_processor_seconds gauge
workqueue_longest_running_processor_seconds{name="a"} 7
workqueue_longest_running_processor_seconds{name="b"} 4
# HELP work_seconds x
# TYPE work_seconds histogram
work_seconds_bucket{le="1"} 1
work_seconds_bucket{le="+Inf"} 2
work_seconds_sum 3
work_seconds_count 2
# HELP process_cpu_seconds_total x
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
# HELP rest_client_requests_total x
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="h",method="GET"} 10
rest_client_requests_total{code="201",host="h",method="POST"} 1
rest_client_requests_total{code="429",host="h",method="GET"} 4
rest_client_requests_total{code="404",host="h",method="GET"} 5
rest_client_requests_total{code="<error>",host="h",method="GET"} 6
""".splitlines()


def parsed(families: Families) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    found = list(text_string_to_metric_families(families.render().decode()))
    assert len({family.name for family in found}) == len(found), "a metric is described twice"
    return {family.name: [(item.name, item.labels, item.value) for item in family.samples] for family in found}


def test_samples_of_several_processes_are_together_under_their_metric() -> None:
    families = Families()
    families.add(["# HELP process_cpu_seconds_total y", "# TYPE process_cpu_seconds_total counter"])
    families.add(["process_cpu_seconds_total 9.0"])
    families.add(TEXT, labels={"cluster": "one"})
    families.add(TEXT, labels={"cluster": "two"})
    found = parsed(families)
    assert found["process_cpu_seconds"] == [
        ("process_cpu_seconds_total", {}, 9.0),
        ("process_cpu_seconds_total", {"cluster": "one"}, 1.5),
        ("process_cpu_seconds_total", {"cluster": "two"}, 1.5),
    ]
    assert {labels["cluster"] for _, labels, _ in found["work_seconds"]} == {"one", "two"}
    assert len(found["work_seconds"]) == 8
    assert families.render().count(b"# HELP process_cpu_seconds_total") == 1


def test_a_label_cluster_of_an_instance_does_not_hide_ours() -> None:
    families = Families()
    families.add(['x{cluster="theirs",name="a,cluster=\\"b\\""} 1'], labels={"cluster": 'o"ne'})
    labels = {"cluster": 'o"ne', "exported_cluster": "theirs", "name": 'a,cluster="b"'}
    assert parsed(families) == {"x": [("x", labels, 1.0)]}


@given(st.text())
def test_no_text_breaks_what_is_told_of_others(text: str) -> None:
    families = Families()
    families.add(text.splitlines(), labels={"cluster": "bad"})
    families.add(["good_metric 1"], labels={"cluster": "good"})
    assert b'good_metric{cluster="good"} 1\n' in families.render()
    digest(text.splitlines())


@given(st.text(alphabet='{}",\\= ax1#\t'))
def test_what_looks_like_a_sample_ends_in_time(text: str) -> None:
    found = list(read_samples(["x{" + text * 50, "x{" + 'a="b",' * 5000 + text, "good 1"]))
    assert {sample.name for sample in found[:-1]} <= {"x"}
    assert (found[-1].name, found[-1].value) == ("good", "1")


def test_the_digest_sums_over_queues_and_verbs_and_tells_codes_by_their_class() -> None:
    assert digest(TEXT) == {
        ("process_cpu_seconds_total", ()): 1.5,
        ("workqueue_depth", ()): 5.0,
        ("workqueue_longest_running_processor_seconds", ()): 7.0,
        ("rest_client_requests_total", (("code", "2xx"),)): 11.0,
        ("rest_client_requests_total", (("code", "429"),)): 4.0,
        ("rest_client_requests_total", (("code", "4xx"),)): 5.0,
        ("rest_client_requests_total", (("code", "<error>"),)): 6.0,
    }


def test_a_tenant_cannot_make_the_digest_larger() -> None:
    lines = [f'rest_client_requests_total{{code="{code}",host="h{code}"}} 1' for code in range(100, 5000)]
    lines += [f'workqueue_depth{{name="q{number}"}} 1' for number in range(10_000)]
    lines += [f'scheduler_pending_pods{{queue="q{number}"}} 1' for number in range(1000)]
    lines += [f'scheduler_schedule_attempts_total{{profile="p{number}",result="error"}} 1' for number in range(1000)]
    lines += ["workqueue_depth NaN", "workqueue_depth +Inf", "workqueue_depth x", "process_open_fds_2 1"]
    found = digest(lines)
    assert len(found) <= 12
    assert found["workqueue_depth", ()] == 10_000.0
    assert found["scheduler_schedule_attempts_total", (("result", "error"),)] == 1000.0
