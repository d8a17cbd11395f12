import gzip

import pytest

from engine.plan.traffic import Range, TrafficError
from gateway.admission.events import Arrived, Capacity, Demand, EndpointUp, Finished, Verdict
from gateway.admission.snapshot import Load
from gateway.advice.traffic import read_traffic
from gateway.ops.metrics import Metrics
from gateway.ops.state import EndpointState, EngineTotals, GatewayState, QueueState
from tests.fakes.pages import server
from tests.unit.record.recorded import Tape


def kvgate_metrics():
    metrics = Metrics("0.1.0", ["m"])
    for length in (100, 200, 300):
        metrics.model("m").answered(length, 10)
    engine = EngineTotals(prefix_queried_tokens=1000, prefix_hit_tokens=400)
    endpoint = EndpointState(
        id="e", url="http://e", healthy=True, state="up", reason="", since_seconds=1,
        model="m", sequences=2, in_flight=1, peak_sequences=5, engine=engine,
    )  # fmt: skip
    state = GatewayState(
        version="0", mode="enforce", draining=False, ready=True, endpoints=(endpoint,),
        queues=(QueueState(model="m", depth=0),),
    )  # fmt: skip
    metrics.sample({"m": Load(0, 2, ())})
    return metrics.exposition(state).decode()


@pytest.mark.parametrize("path", ["", "/", "/metrics"])
def test_a_kvgate_that_runs(path):
    with server({"/metrics": kvgate_metrics()}) as url:
        traffic = read_traffic(url + path)
    assert (traffic.requests, traffic.source) == (3, f"{url}/metrics")
    assert traffic.prompt_tokens.p50 == Range(193, 256)
    assert traffic.total_tokens.most == Range(257, 384)
    assert traffic.concurrency.p50 == Range(2, 2)
    assert traffic.concurrency.most == Range(5, 5)
    assert (traffic.hit_rate, traffic.now) == (0.4, 1)
    assert traffic.span >= 0


VLLM = """# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 1.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 3.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 9000.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 3.0
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{engine="0",le="1000.0",model_name="m"} 3.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 3.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 30.0
vllm:request_generation_tokens_count{engine="0",model_name="m"} 3.0
"""


def test_a_vllm_that_runs_says_what_its_longest_can_be():
    models = '{"data": [{"id": "m", "max_model_len": 4096}, {"id": "lora", "max_model_len": 4096}]}'
    with server({"/metrics": VLLM, "/v1/models": models}) as url:
        assert read_traffic(url).prompt_tokens.most == Range(1001, 4096)
    with server({"/metrics": VLLM, "/v1/models": '{"data": [{"id": "m"}]}'}) as url:
        assert read_traffic(url).prompt_tokens.most == Range(1001, 7999)


def test_who_wants_a_key_is_given_it():
    with server({"/metrics": VLLM}, key="sesame") as url:
        assert read_traffic(url, key="sesame").requests == 3
        with pytest.raises(TrafficError, match=r"/metrics: answered 401, it wants an admin key, and none was given"):
            read_traffic(url)
        with pytest.raises(TrafficError, match="not the one given"):
            read_traffic(url, key="guess")
        assert read_traffic(url, key="sesame\n").requests == 3
        with pytest.raises(TrafficError, match=r"cannot be sent: expected a key of one line of ASCII characters$"):
            read_traffic(url, key="gu\ness")


@pytest.mark.parametrize(
    ("pages", "said"),
    [({}, "expected a kvgate or a vLLM there, it answered 404"), ({"/metrics": "up 1\n"}, "found neither")],
)
def test_a_server_that_is_none_of_both(pages, said):
    with server(pages) as url, pytest.raises(TrafficError, match=rf"{url}/metrics: .*{said}"):
        read_traffic(url)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("http://127.0.0.1:1", r"http://127.0.0.1:1/metrics: cannot be reached"),
        ("http://[", r"cannot be reached"),
        ("/nonexistent/trace", r"/nonexistent/trace: cannot be read: No such file or directory; expected a kvgate's"),
    ],
)
def test_what_is_not_there(source, said):
    with pytest.raises(TrafficError, match=said):
        read_traffic(source)


def test_an_event_log_tells_what_was_answered(tmp_path):
    tape = Tape(ttft_target=None).tell(0, EndpointUp("e", Capacity(1000, 100, max_num_seqs=2)))
    tape.tell(1, *(Arrived(number, Demand((10 * number,), 100, 2 if number == 3 else 1)) for number in (1, 2, 3)))
    tape.tell(5, Finished(1, Verdict.DONE, 8), Finished(2, Verdict.FAILED, 2)).tell(8, Finished(3, Verdict.DONE, 31))
    file = tape.write(tmp_path / "events")
    traffic = read_traffic(str(file))
    assert (traffic.requests, traffic.span) == (2, 7)
    assert traffic.total_tokens.p50 == Range(18, 18)
    assert traffic.output_tokens.most == Range(16, 16)
    assert traffic.concurrency.most == Range(2, 2)
    assert read_traffic(str(file), model="m") == traffic
    with pytest.raises(TrafficError, match="expected requests of the model other in the event log, it has none"):
        read_traffic(str(file), model="other")


def test_an_event_log_that_is_broken_and_a_trace(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text('{"hello": 1}\n')
    with pytest.raises(TrafficError, match="broken, line 1: this is no event log"):
        read_traffic(str(broken))
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(gzip.compress(b"arrival,prompt,output\n0,5,5\n"))
    assert read_traffic(str(trace)).requests == 1
