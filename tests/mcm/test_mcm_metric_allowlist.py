"""mcm passes on a fixed set of the thousands of series of an instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kplane.mcm.serving.metric_allowlist import SERIES, allowed_values, read_samples

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


@given(st.text())
def test_any_text_gives_only_allowed_series(text: str) -> None:
    assert {name for name, _ in allowed_values(text.splitlines())} <= SERIES.keys()


@given(st.text(alphabet='{}",\\= ax1#\t'))
def test_sample_after_malformed_samples_is_read(text: str) -> None:
    samples = list(read_samples(["x{" + text * 50, "x{" + 'a="b",' * 5000 + text, "good 1"]))
    assert {sample.name for sample in samples[:-1]} <= {"x"}
    assert (samples[-1].name, samples[-1].value) == ("good", "1")


def test_values_are_aggregated_over_queues_verbs_and_code_classes() -> None:
    assert allowed_values(TEXT) == {
        ("process_cpu_seconds_total", ()): 1.5,
        ("workqueue_depth", ()): 5.0,
        ("workqueue_longest_running_processor_seconds", ()): 7.0,
        ("rest_client_requests_total", (("code", "2xx"),)): 11.0,
        ("rest_client_requests_total", (("code", "429"),)): 4.0,
        ("rest_client_requests_total", (("code", "4xx"),)): 5.0,
        ("rest_client_requests_total", (("code", "<error>"),)): 6.0,
    }


def test_tenant_cannot_add_series() -> None:
    lines = [f'rest_client_requests_total{{code="{code}",host="h{code}"}} 1' for code in range(100, 5000)]
    lines += [f'workqueue_depth{{name="q{number}"}} 1' for number in range(10_000)]
    lines += [f'scheduler_pending_pods{{queue="q{number}"}} 1' for number in range(1000)]
    lines += [f'scheduler_schedule_attempts_total{{profile="p{number}",result="error"}} 1' for number in range(1000)]
    lines += ["workqueue_depth NaN", "workqueue_depth +Inf", "workqueue_depth x", "process_open_fds_2 1"]
    values = allowed_values(lines)
    assert len(values) <= 12
    assert values["workqueue_depth", ()] == 10_000.0
    assert values["scheduler_schedule_attempts_total", (("result", "error"),)] == 1000.0
