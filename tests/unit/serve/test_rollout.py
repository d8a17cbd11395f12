import json
from pathlib import Path

import pytest

from engine.assembly import assembled
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.kind import VLLM
from gateway.config.secrets import revealed
from gateway.config.settings import Settings
from gateway.serve.rollout import Change, beside, elsewhere, knows, meanwhile, notice


def engine(name, port, served="m"):
    return assembled(EngineSpec(VLLM, name, "org/m", served, port, Path("/python")), Policy())


def settings(*ports):
    endpoints = [{"url": f"http://127.0.0.1:{port}/"} for port in ports]
    return Settings.model_validate({"models": [{"endpoints": endpoints}]})


def urls(settings):
    return [str(endpoint.url) for endpoint in settings.models[0].endpoints]


A, B, C, D = (engine(name, port) for name, port in zip("abcd", (1, 2, 3, 4), strict=True))
OTHER = engine("other", 9, served="n")
A_AS_N, OTHER_AS_M = engine("a", 1, served="n"), engine("other", 9)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ([A], [A], Change()),
        ([A], [B], Change(replaced=((A, B),))),
        ([A, B], [C, D], Change(replaced=((A, C), (B, D)))),
        ([A, B], [A], Change(removed=(B,))),
        ([A], [A, B], Change(added=(B,))),
        ([OTHER, A], [B], Change(replaced=((A, B),), removed=(OTHER,))),
        ([A], [OTHER], Change(replaced=((A, OTHER),))),
        ([A, OTHER], [B, C, OTHER], Change(replaced=((A, B),), added=(C,))),
        ([A, OTHER], [OTHER_AS_M, A_AS_N], Change(taken_over=((OTHER, OTHER_AS_M), (A, A_AS_N)))),
        ([B, A], [A_AS_N], Change(taken_over=((A, A_AS_N),), removed=(B,))),
        ([B, A, OTHER], [A_AS_N, C], Change(taken_over=((A, A_AS_N),), replaced=((B, C),), removed=(OTHER,))),
    ],
)
def test_those_that_come_take_the_places_of_those_that_go(old, new, change):
    assert Change.between(old, new) == change


def test_until_a_new_one_is_there_the_old_one_serves():
    planned, before = settings(3, 4), settings(1, 2)
    assert urls(meanwhile(planned, before, [C], [A])) == [f"http://127.0.0.1:{port}/" for port in (4, 1)]
    assert meanwhile(planned, before, [], []) == planned
    assert knows(planned, C)
    assert not knows(planned, A)


def deployed(**models):
    """Settings of models with an endpoint each, or with these settings."""
    entries = [
        {"name": name, **({"endpoints": [{"url": f"http://127.0.0.1:{given}/"}]} if isinstance(given, int) else given)}
        for name, given in models.items()
    ]
    return Settings.model_validate({"models": entries})


def known(settings):
    return {
        model.name: ([at.address for at in model.endpoints], [one.name for one in model.lora])
        for model in settings.models
    }


def test_a_model_that_goes_from_an_endpoint_or_an_adapter_to_an_engine_keeps_it_until_that_is_there():
    adapter = {"lora": [{"name": "n", "path": "/n"}], "endpoints": [{"url": "http://127.0.0.1:7/"}]}
    planned = deployed(m=7, n=9)
    assert known(meanwhile(planned, deployed(m=7, n=8), [OTHER], [])) == {
        "m": (["127.0.0.1:7"], []),
        "n": (["127.0.0.1:8"], []),
    }
    assert known(meanwhile(planned, deployed(m=adapter), [OTHER], [])) == {"m": (["127.0.0.1:7"], ["n"])}
    for before in (deployed(m=7, n=8), deployed(m=adapter)):
        assert meanwhile(planned, before, [], []) == planned


def test_nothing_falls_back_to_a_model_that_is_not_there_yet():
    fallbacks = [{"model": "n"}, {"url": "http://127.0.0.1:8/v1", "model": "else"}]
    models = [
        {"name": "m", "endpoints": [{"url": "http://127.0.0.1:1/"}], "fallbacks": fallbacks},
        {"name": "n", "endpoints": [{"url": "http://127.0.0.1:9/"}]},
    ]
    planned = Settings.model_validate({"models": models})
    until_then = meanwhile(planned, Settings(), [OTHER], [])
    assert [fallback.model for model in until_then.models for fallback in model.fallbacks] == ["else"]
    Settings.model_validate_json(json.dumps(revealed(until_then)))
    assert meanwhile(planned, Settings(), [], []) == planned


@pytest.mark.parametrize("others", [0, 1])
def test_a_model_is_known_by_the_name_of_the_engine_that_serves_it(others):
    """One that comes with a new name is known when it is there, but for the others that serve its model."""

    def named(name, *ports):
        endpoints = [{"url": f"http://127.0.0.1:{port}/"} for port in ports]
        return {"name": name, "endpoints": endpoints}

    def known(settings):
        return {model.name: len(model.endpoints) for model in settings.models}

    before = Settings.model_validate({"models": [named("m", 1), *[named("n", 5)] * others]})
    planned = Settings.model_validate({"models": [named("n", *[5] * others, 9)]})
    assert known(meanwhile(planned, before, [OTHER], [A])) == ({"n": 1} if others else {}) | {"m": 1}


def test_a_model_whose_endpoints_are_found_stays_without_one():
    found = Settings.model_validate({"models": [{"name": "n", "discover": [{"dns": "http://vllm:8000"}]}]})
    assert meanwhile(found, found, [], []) == found


def test_an_engine_may_come_back_at_another_address():
    assert urls(elsewhere(settings(1, 2), A, C)) == [f"http://127.0.0.1:{port}/" for port in (3, 2)]


def test_while_gateways_take_over_both_know_the_endpoints_of_both():
    named = Settings.model_validate(
        {"models": [{"name": "n", "endpoints": [{"url": "http://127.0.0.1:3/"}, {"url": "http://127.0.0.1:9/"}]}]}
    )
    assert urls(beside(settings(1, 2), settings(2, 3))) == [f"http://127.0.0.1:{port}/" for port in (1, 2, 3)]
    both = beside(settings(1, 3), named)
    assert urls(both) == urls(settings(1, 3))
    assert [(model.name, len(model.endpoints)) for model in both.models] == [(None, 2), ("n", 1)], "of another model"
    assert beside(settings(1, 2), settings(2)) == settings(1, 2)


@pytest.mark.parametrize("adapted", [0, 1])
def test_a_model_with_the_name_of_an_adapter_is_not_known_beside_it(adapted):
    names = ["a", "b"]
    models = [{"name": name, "endpoints": [{"url": f"http://h:{port}"}]} for port, name in enumerate(names, 1)]
    models[adapted]["lora"] = [{"name": names[1 - adapted], "path": "/p"}]
    one, other = (Settings.model_validate({"models": [model]}) for model in models)
    assert beside(one, other) == one


@pytest.mark.parametrize(
    ("others", "took", "said"),
    [
        (2, 30, "m is served by 2 of 3 engines meanwhile"),
        (0, None, "requests for m wait for those on it and then for the new engine; after 60 s they are refused"),
        (0, 20.4, "requests for m wait for those on it, and about 20 s then: so long its last start took"),
        (
            0,
            95,
            (
                "requests for m wait for those on it, and about 95 s then, as its last start took; "
                "those that have waited 60 s are refused with 503"
            ),
        ),
    ],
)
def test_what_a_change_costs_is_said_beforehand(others, took, said):
    assert notice(A, B, others=others, took=took, patience=60) == said


def test_a_model_that_goes_for_another_is_not_said_to_wait():
    assert notice(A, OTHER, others=0, took=9, patience=60) == "m ends, and n is served when its engine is ready"
