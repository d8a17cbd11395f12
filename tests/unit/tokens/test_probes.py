import json

import pytest

from gateway.tokens.features import ALL, Feature
from gateway.tokens.probes import ParityReport, Probe, Reading, UncountedError, compare, probes
from gateway.wire.request import Api


async def length(probe: Probe) -> Reading | None:
    return Reading(len(probe.body))


async def compared(**engine: int | None) -> ParityReport:
    """All probes against an engine that differs in those named."""

    async def there(probe: Probe) -> Reading | None:
        tokens = engine.get(probe.name, len(probe.body))
        return None if tokens is None else Reading(tokens)

    return await compare(probes("m"), length, there)


def test_probes_are_requests_for_the_model_with_names_of_their_own() -> None:
    made = probes("m")
    assert {json.loads(probe.body)["model"] for probe in made} == {"m"}
    assert len({probe.name for probe in made}) == len(made) >= 20
    assert {probe.api for probe in made} == {Api.CHAT, Api.COMPLETIONS, Api.MESSAGES}


async def test_an_engine_that_counts_alike_is_trusted_in_everything() -> None:
    report = await compared()
    assert report.equal
    assert report.compared == len(probes("m"))
    assert [report.distrusted(api) for api in Api] == [frozenset()] * len(Api)


async def test_another_template_shows_in_plain_conversations_and_all_that_become_them() -> None:
    report = await compared(user=1)
    assert [Feature.PROMPT in report.distrusted(api) for api in Api] == [api is not Api.COMPLETIONS for api in Api]


async def test_a_difference_in_a_feature_speaks_against_that_feature_only() -> None:
    report = await compared(tools=1, developer=None)
    assert not report.equal
    assert report.distrusted(Api.CHAT) == {Feature.TOOLS, Feature.DEVELOPER}
    assert report.distrusted(Api.COMPLETIONS) == frozenset()


async def test_the_conversion_of_messages_speaks_for_that_api_only() -> None:
    report = await compared(messages=1)
    assert report.distrusted(Api.MESSAGES) == {Feature.PROMPT}
    assert report.distrusted(Api.CHAT) == frozenset()


async def test_a_refusal_on_both_sides_is_agreement() -> None:
    async def refuse(_: Probe) -> Reading | None:
        return None

    assert (await compare(probes("m"), refuse, refuse)).equal


async def test_an_api_that_the_engine_does_not_count_is_not_trusted() -> None:
    async def there(probe: Probe) -> Reading | None:
        if probe.api is Api.MESSAGES:
            raise UncountedError
        return Reading(len(probe.body))

    report = await compare(probes("m"), length, there)
    assert report.equal
    assert report.distrusted(Api.MESSAGES) == ALL
    assert report.distrusted(Api.CHAT) == frozenset()


async def test_what_we_do_not_count_is_not_asked() -> None:
    async def here(_: Probe) -> Reading | None:
        raise UncountedError

    async def there(_: Probe) -> Reading | None:
        pytest.fail("asked")

    assert (await compare(probes("m"), here, there)).compared == 0


async def test_as_many_tokens_of_another_kind_are_no_difference_in_the_count_but_are_named() -> None:
    async def here(probe: Probe) -> Reading | None:
        return Reading(2, (1, 2) if probe.api is Api.CHAT else None)

    async def there(probe: Probe) -> Reading | None:
        return Reading(2, (1, 3) if probe.name in ("user", "tools") else (1, 2))

    report = await compare(probes("m"), here, there)
    assert report.equal
    assert report.other_ids == ("user", "tools")
    assert report.same_ids == sum(probe.api is Api.CHAT for probe in probes("m")) - 2
