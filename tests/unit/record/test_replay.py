from dataclasses import replace

import pytest

from gateway.admission.events import Arrived, Capacity, Declared, Demand, EndpointUp, Finished, Verdict
from gateway.config.errors import ConfigurationError
from gateway.record.lines import Dropped, EventLogError, Opened, encode, happened
from gateway.record.replay import PoolKey, Replayed, policy, settings, steps, verify
from gateway.record.whatif import compare
from tests.unit.record.recorded import Tape, started

UP = EndpointUp("e", Capacity(1000, 100, max_num_seqs=1))


def arrived(number, flow=""):
    return Arrived(number, Demand((10,), 10), flow=flow)


def short():
    """Two requests, one after the other."""
    tape = Tape(ttft_target=None)
    return tape.tell(0, UP).tell(1, arrived(1), arrived(2)).tell(2, Finished(1, Verdict.DONE, 5))


def test_what_was_decided_is_decided_again(tmp_path):
    replayed = verify(short().write(tmp_path / "f"))
    assert (replayed.events, replayed.decisions, replayed.differences) == (4, 2, [])
    assert replayed.models == {PoolKey(1, 1): "m"}


def test_each_run_and_each_pool_has_a_core_of_its_own(tmp_path):
    tape = short()
    tape.lines += tape.lines
    tape.lines += [encode(Opened(2, "n")), encode(happened(9, 2, UP, []))]
    replayed = verify(tape.write(tmp_path / "f"))
    assert replayed.differences == []
    assert replayed.models == {PoolKey(1, 1): "m", PoolKey(2, 1): "m", PoolKey(2, 2): "n"}


def test_a_record_that_begins_with_what_an_earlier_core_had_replays_by_itself(tmp_path):
    tape = Tape(ttft_target=None).tell(0, UP, Declared(arrived(1, flow="heavy"), "e", 30))
    waited = replace(arrived(2), waited=1.5, failures=1, avoid="e")
    tape.tell(1, waited, arrived(3)).tell(2, Finished(1, Verdict.DONE, 50)).tell(3, Finished(2, Verdict.DONE, 5))
    file = tape.write(tmp_path / "f")
    replayed = verify(file)
    assert (replayed.events, replayed.decisions, replayed.differences) == (6, 2, [])
    _, declared, came, *_ = [step.event for step in steps(file, Replayed(), {})]
    assert (declared, came) == (Declared(arrived(1, flow="heavy"), "e", 30), waited)


def test_a_record_that_tells_otherwise_is_found_out(tmp_path):
    tape = short()
    tape.lines[-1] = tape.lines[-1].replace(b'"endpoint":"e"', b'"endpoint":"f"')
    (difference,) = verify(tape.write(tmp_path / "f")).differences
    assert difference.since == 2
    assert [one["endpoint"] for one in difference.recorded] == ["f"]
    assert [one["endpoint"] for one in difference.replayed] == ["e"]


def test_nothing_is_held_against_what_comes_after_a_gap(tmp_path):
    tape = short()
    del tape.lines[2]  # the endpoint
    tape.lines.insert(2, encode(Dropped(1)))
    replayed = verify(tape.write(tmp_path / "f"))
    assert (replayed.events, replayed.gaps, replayed.differences) == (0, [1], [])


def test_an_event_of_nobody_is_a_fault(tmp_path):
    tape = short()
    del tape.lines[1]
    with pytest.raises(EventLogError, match="pool 1"):
        verify(tape.write(tmp_path / "f"))


@pytest.mark.parametrize("band", ["1", 1])
def test_the_policy_is_the_recorded_one_with_the_changes(band):
    start = started(kv_high=0.7, kv_low=0.5, queue={"ttl": 3}, bands={1: {"reserved": 0.2}})
    changed = policy(start, {"kv_high": 0.6, "queue": {"max_requests": 9}, "bands": {band: {"ttft_target": 2}}})
    assert (changed.kv_high, changed.kv_low, changed.ttl, changed.max_requests) == (0.6, 0.5, 3, 9)
    assert (changed.bands[1].reserved, changed.bands[1].ttft_target) == (0.2, 2)
    assert (changed.weights, changed.poll_interval) == ({"heavy": 2.0}, 0.5)


def test_settings_are_those_of_the_record_and_not_of_this_machine(monkeypatch):
    monkeypatch.setenv("KVGATE_ADMISSION__KV_HIGH", "0.99")
    monkeypatch.setenv("KVGATE_CONFIG", "/nonexistent")
    assert settings(started(), {}).kv_high == 0.9


def test_a_change_that_is_no_setting_is_named():
    with pytest.raises(ConfigurationError, match=r"admission\.kv_hihg.*did you mean `kv_high`"):
        policy(started(), {"kv_hihg": 1})


def test_what_was_changed_meanwhile_is_changed_again_and_for_the_cores_to_come(tmp_path):
    tape = Tape(ttft_target=None).tell(0, UP).tell(1, arrived(1), arrived(2))
    tape.change(2, {"heavy": 1.0}, mode="observe").tell(3, arrived(3))
    tape.change(4, {"heavy": 1.0}, ttft_target=None).tell(5, arrived(4))
    tape.lines += [encode(Opened(2, "n")), *(encode(happened(6, 2, event, [])) for event in (UP,))]
    file = tape.write(tmp_path / "f")
    replayed = verify(file)
    assert (replayed.decisions, replayed.differences) == (3, [])
    found = {}
    for step in steps(file, Replayed(), {}):
        step.controller.handle(step.event, step.at)
        found[step.key.pool] = step.controller
    assert found.keys() == {1, 2}
    assert {core._pool.policy.ttft_target for core in found.values()} == {None}
    assert {core._pool.policy.weights["heavy"] for core in found.values()} == {1.0}


def test_a_setting_of_a_replay_holds_also_where_the_operator_changed_others(tmp_path):
    tape = Tape(ttft_target=None).tell(0, UP).tell(1, arrived(1), arrived(2))
    file = tape.change(2, {}, mode="observe").tell(3, arrived(3)).write(tmp_path / "f")
    for step in steps(file, Replayed(), {"kv_high": 0.95}):
        step.controller.handle(step.event, step.at)
        core = step.controller
    assert (core._pool.policy.kv_high, core._pool.policy.mode) == (0.95, "observe")
    enforced = compare(file, {"mode": "enforce"})
    assert enforced.outcomes() == [("dispatched", 3, 1), ("still waiting at the end", 0, 2)]
