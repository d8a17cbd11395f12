import pytest

from gateway.config.reloadable import _TABLE, NEEDS, Needs, SettingsChange, every
from gateway.config.settings import Settings


def settings(**sections):
    models = sections.pop("models", [{"endpoints": [{"url": "http://a:1"}]}])
    return Settings.model_validate({"models": models, **sections})


def between(before, after):
    return SettingsChange.between(settings(**before), settings(**after))


def test_every_setting_is_classified_once():
    assert set(NEEDS) == {path for path, _ in every(Settings)} - {"models"}
    named = [path for paths in _TABLE.values() for path in paths]
    assert len(named) == len(set(named))


def test_a_setting_of_admission_is_live_unless_the_table_says_otherwise():
    of_admission = {path: needs for path, needs in NEEDS.items() if path.startswith("admission.")}
    assert [path for path, needs in of_admission.items() if needs is not Needs.NOTHING] == ["admission.event_log"]


def test_what_can_change_changes_and_what_cannot_stays_and_is_named():
    change = between(
        {"server": {"port": 1, "body_timeout": 3}},
        {
            "server": {"port": 2, "body_timeout": 4},
            "admission": {"mode": "observe", "event_log": "f", "bands": {2: {"reserved": 0.1}}},
            "auth": {"keys": [{"name": "a", "key": "k"}]},
            "counting": {"threads": 7, "process_bytes": 8},
        },
    )
    now = change.settings
    assert (now.server.port, now.server.body_timeout) == (1, 4)
    assert (now.admission.mode, now.admission.event_log, now.admission.bands[2].reserved) == ("observe", None, 0.1)
    assert (now.counting.threads, now.counting.process_bytes) == (2, 8)
    assert set(change.live) == {
        *("server.body_timeout", "admission.mode", "admission.bands", "counting.process_bytes", "auth.keys"),
    }
    assert change.later == {
        "server.port": Needs.RESTART,
        "admission.event_log": Needs.PROCESS,
        "counting.threads": Needs.PROCESS,
    }
    assert change.told()[0] == "server.port: needs a restart"
    assert change.told(launches=True) == ["server.port: needs a restart"], "a new process is no news there"


def test_nothing_that_differs_is_no_change():
    change = between({}, {})
    assert (change.live, change.later, change.settings) == ((), {}, settings())


def test_endpoints_come_and_go_and_their_models_stay_what_they_are():
    before = [{"tokenizer": "t", "endpoints": [{"url": "http://a:1"}, {"url": "http://b:1"}]}]
    after = [
        {"tokenizer": "u", "endpoints": [{"url": "http://b:1", "max_num_seqs": 3}, {"url": "http://c:1"}]},
        {"name": "n", "tokenizer": "v", "endpoints": [{"url": "http://d:1"}]},
    ]
    change = between({"models": before}, {"models": after})
    assert (change.live, change.later) == (("models[].endpoints",), {"models[0].tokenizer": Needs.PROCESS})
    assert [model.tokenizer for model in change.settings.models] == ["t", "v"]
    assert [e.address for model in change.settings.models for e in model.endpoints] == ["b:1", "c:1", "d:1"]


def test_a_model_whose_only_endpoint_is_another_is_the_same_by_its_name():
    change = between(
        {"models": [{"name": "n", "tokenizer": "t", "endpoints": [{"url": "http://a:1"}]}]},
        {"models": [{"name": "n", "tokenizer": "u", "endpoints": [{"url": "http://b:1"}]}]},
    )
    assert (change.settings.models[0].tokenizer, list(change.later)) == ("t", ["models[0].tokenizer"])


def test_an_endpoint_that_is_for_another_model_from_now_on_takes_nothing_of_its_own_there():
    def models(of_a, of_b):
        named = {"a": of_a, "b": of_b}
        return {
            "models": [
                {"name": name, "tokenizer": name, "endpoints": [{"url": f"http://{host}:1"} for host in hosts]}
                for name, hosts in named.items()
            ]
        }

    for of_b in (["three"], ["four"]):
        change = between(models(["one", "two"], of_b), models(["one"], ["two", "three"]))
        assert change.later == {}
        assert [(model.name, model.tokenizer) for model in change.settings.models] == [("a", "a"), ("b", "b")]


def test_a_model_without_a_name_is_the_same_by_its_source_first():
    """An address that another model's pod had may be one of its own now."""
    sources = [{"tokenizer": name, "discover": [{"file": f"/{name}"}]} for name in ("a", "b")]
    one, two = ([{"url": f"http://{host}:1"}] for host in ("one", "two"))
    change = between(
        {"models": [sources[0] | {"endpoints": one}, sources[1]]},
        {"models": [sources[0] | {"endpoints": two}, sources[1] | {"endpoints": one}]},
    )
    assert (change.later, [model.tokenizer for model in change.settings.models]) == ({}, ["a", "b"])


def test_a_source_of_endpoints_changes_live_and_its_model_is_the_same_whoever_is_found():
    source = {"discover": [{"file": "/f"}]}
    change = between(
        {"models": [{"tokenizer": "t", "endpoints": [{"url": "http://a:1"}], **source}]},
        {"models": [{"tokenizer": "u", "endpoints": [{"url": "http://b:1"}], **source}]},
    )
    assert (change.settings.models[0].tokenizer, change.later) == ("t", {"models[0].tokenizer": Needs.PROCESS})
    change = between({"models": [source]}, {"models": [{"discover": [{"file": "/g"}]}]})
    assert (change.live, change.later) == (("models[].discover",), {})
    assert change.settings.models[0].discover[0].name == "/g", "a model without endpoints yet stays"


@pytest.mark.parametrize(("beside", "left"), [({}, 1), ({"endpoints": [{"url": "http://b:1"}]}, 2)])
def test_an_engine_cannot_be_launched_by_a_gateway_alone(beside, left):
    engine = {"name": "new", "engine": {"model": "m"}, **beside}
    change = between({}, {"models": [{"endpoints": [{"url": "http://a:1"}]}, engine]})
    assert change.later == {"models[1].engine": Needs.ENGINE}
    assert (len(change.settings.models), change.settings.models[-1].engine) == (left, None)
    assert change.told() == ["models[1].engine: needs a restart"]


def test_of_an_engine_each_setting_is_named():
    before, after = ({"models": [{"engine": {"model": "m", **one}}]} for one in ({}, {"args": ["-x"], "fit": "off"}))
    change = between(before, after)
    assert change.later == {"models[0].engine.args": Needs.ENGINE, "models[0].engine.fit": Needs.NEXT_ENGINE}
    assert change.told(launches=True) == ["models[0].engine.fit: is for the next engine that takes this one's place"]
