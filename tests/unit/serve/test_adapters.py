import pytest

from engine.vllm.kind import VLLM
from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings
from gateway.serve.adapters import check_adapters, doubts, modules, switches
from tests.unit.engine.adapters import adapter

UPDATES = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def model(*paths, args=(), **engine):
    lora = [{"name": f"a{number}", "path": str(path)} for number, path in enumerate(paths)]
    return ModelSettings.model_validate({"engine": {"model": "owner/base", "args": args, **engine}, "lora": lora})


def test_an_engine_without_adapters_needs_nothing():
    assert (switches(model(), ()), modules(model())) == ((), ())


def test_an_engine_is_told_its_adapters_and_the_rank_that_they_need(tmp_path):
    given = model(adapter(tmp_path / "a"), adapter(tmp_path / "b", rank=20), "owner/on-the-hub")
    assert switches(given, ()) == ("--enable-lora", "--max-lora-rank", "32")
    assert switches(given, ("--enable-lora", "--max-lora-rank", "64")) == (), "what is given stays"
    assert switches(model(adapter(tmp_path / "a")), ()) == ("--enable-lora",)


@pytest.mark.parametrize(
    ("env", "named"),
    [({}, ()), ({UPDATES: "TRUE "}, ()), ({UPDATES: "0"}, ("--lora-modules", "a0=owner/one", "a1=owner/two"))],
)
def test_only_an_engine_that_cannot_load_them_while_it_runs_has_their_paths_in_its_command_line(env, named):
    """It starts with the same command line again, and by then they may be gone."""
    assert modules(model("owner/one", "owner/two", env=env)) == named


@pytest.mark.parametrize(
    ("made", "args", "said"),
    [
        (None, (), "adapter a0: there is no folder"),
        ({"width": 99}, (), "adapter a0: it is of another base"),
        ({"rank": 64}, ("--max-lora-rank", "32"), "Give --max-lora-rank 64"),
    ],
)
def test_what_an_engine_could_not_load_is_refused_before_it_starts(tmp_path, made, args, said):
    if made is not None:
        adapter(tmp_path / "a", **made)
    with pytest.raises(ConfigurationError, match=said):
        check_adapters(model(tmp_path / "a", args=args), VLLM, args, {"hidden_size": 128})


def test_a_base_by_another_name_is_only_told(tmp_path):
    of_other, of_this = adapter(tmp_path / "a", base="else/other"), adapter(tmp_path / "b", base="copy/base")
    check_adapters(model(of_other), VLLM, (), {"hidden_size": 128})
    assert [*doubts(model(of_other, of_this))] == [
        "the adapter a0 says that it is of else/other: see that this is owner/base"
    ]
