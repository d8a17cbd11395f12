from pathlib import Path

import pytest

from engine.plan.hub import FIRST_READ, PUBLIC, AbsentError, CheckpointError, Hub, HubSettings, is_model_id
from tests.unit.engine.plan.hub_server import FakeHub, safetensors, serving


def settings(url: str, token: str | None = None) -> HubSettings:
    return HubSettings(url, token, offline=False, cache=Path("nowhere"))


def test_settings_come_from_the_variables_vllm_obeys(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_from_file\n")
    told = HubSettings.from_environ({"HF_HOME": str(tmp_path), "HF_ENDPOINT": "https://mirror.example/"})
    assert told == HubSettings("https://mirror.example", "hf_from_file", offline=False, cache=tmp_path / "hub")
    told = HubSettings.from_environ({"HF_TOKEN": "hf_x", "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert told == HubSettings(PUBLIC, "hf_x", offline=True, cache=tmp_path)
    assert HubSettings.from_environ({"HF_TOKEN": " hf_x\r\n"}).token == "hf_x"


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    for token in ("hf_se\x00cret", "hf_secr\N{LATIN SMALL LETTER E WITH ACUTE}t"):
        with pytest.raises(CheckpointError, match="is no token") as raised:
            Hub(settings("https://hub.example", token), "owner/name", "main")
        assert "hf_se" not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "possible"),
    [
        ("meta-llama/Llama-3.1-8B", True),
        ("gpt2", True),
        ("./models/llama", False),
        ("/models/llama", False),
        ("a/b/c", False),
        ("../x", False),
        ("", False),
    ],
)
def test_what_can_be_a_name_on_a_hub(model: str, *, possible: bool) -> None:
    assert is_model_id(model) is possible


def test_a_header_takes_one_small_request_of_a_large_file() -> None:
    hub = FakeHub({"model.safetensors": safetensors(a=50_000_000)})
    with serving(hub), Hub(settings(hub.url), "owner/name", "main") as client:
        assert [tensor.bytes for tensor in client.tensors("model.safetensors")] == [50_000_000]
    assert [asked for _, _, asked in hub.seen] == [f"bytes=0-{FIRST_READ - 1}"] * 2  # the redirect and its target
    assert hub.served <= FIRST_READ


def test_a_header_longer_than_the_first_request_takes_a_second() -> None:
    names = {f"layers.{index}.{'x' * 100}": 2 for index in range(3000)}
    hub = FakeHub({"model.safetensors": safetensors(**names)})
    with serving(hub), Hub(settings(hub.url), "owner/name", "main") as client:
        assert len(client.tensors("model.safetensors")) == 3000


def test_a_server_that_knows_no_ranges_is_left_after_the_header() -> None:
    hub = FakeHub({"model.safetensors": safetensors(a=200_000_000)}, ranges=False)
    with serving(hub), Hub(settings(hub.url), "owner/name", "main") as client:
        assert len(client.tensors("model.safetensors")) == 1
    assert hub.served < 200_000_000


def test_the_token_is_sent_to_the_hub_and_not_to_where_it_redirects() -> None:
    hub = FakeHub({"model.safetensors": safetensors(a=4)}, token="hf_good")
    with serving(hub), Hub(settings(hub.url, "hf_good"), "owner/name", "main") as client:
        client.tensors("model.safetensors")
    assert [(path.split("/")[1], token) for path, token, _ in hub.seen] == [("owner", "Bearer hf_good"), ("cdn", None)]


def test_a_file_that_is_not_there_is_told_from_a_model_that_is_not() -> None:
    hub = FakeHub({})
    with serving(hub), Hub(settings(hub.url), "owner/name", "main") as client, pytest.raises(AbsentError):
        client.file("model.safetensors.index.json")


@pytest.mark.parametrize(
    ("hub", "token", "model", "revision", "cause", "remedy"),
    [
        (FakeHub({}, gated=True), None, "owner/name", "main", "gated, and no token", "HF_TOKEN"),
        (FakeHub({}, gated=True, allowed=False), "hf_x", "owner/name", "main", "has no access", "Ask for access"),
        (FakeHub({}, token="hf_good"), "hf_bad", "owner/name", "main", "refuses the token", "new one"),
        (FakeHub({}), None, "owner/other", "main", "has no model owner/other", "private"),
        (FakeHub({}), "hf_x", "owner/other", "main", "that your token may see", "Check the name"),
        (FakeHub({}), None, "owner/name", "v9", "no revision v9", "branch"),
        (FakeHub({}, status=401), None, "owner/name", "main", "wants a token", "HF_TOKEN"),
        (FakeHub({}, status=403), "hf_x", "owner/name", "main", "forbids", "access"),
        (FakeHub({}, status=503), None, "owner/name", "main", "answered 503", "later"),
    ],
)
def test_each_refusal_has_its_cause_and_a_way_out(  # noqa: PLR0917 - the columns of a table
    hub: FakeHub, token: str | None, model: str, revision: str, cause: str, remedy: str
) -> None:
    with (
        serving(hub),
        Hub(settings(hub.url, token), model, revision) as client,
        pytest.raises(CheckpointError) as raised,
    ):
        client.file("config.json")
    assert cause in raised.value.cause
    assert remedy in raised.value.remedy
    assert "hf_" not in str(raised.value)


def test_a_page_in_place_of_the_weights_is_no_safetensors_file() -> None:
    hub = FakeHub({"model.safetensors": b"<!DOCTYPE html><html></html>"})
    with (
        serving(hub),
        Hub(settings(hub.url), "owner/name", "main") as client,
        pytest.raises(CheckpointError, match="no safetensors file"),
    ):
        client.tensors("model.safetensors")


def test_a_hub_that_cannot_be_reached_is_said_with_the_ways_around_it() -> None:
    with (
        Hub(settings("http://127.0.0.1:1"), "owner/name", "main") as client,
        pytest.raises(CheckpointError, match="could not be reached") as raised,
    ):
        client.file("config.json")
    assert "HF_ENDPOINT" in raised.value.remedy
