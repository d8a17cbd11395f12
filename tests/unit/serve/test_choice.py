import json

import pytest

from engine.cache import SetupError
from engine.gpu import Gpu, Holder
from engine.llama.kind import LLAMA_SERVER
from engine.llama.program import IN_PROCESS
from engine.plan.ladder import Engine
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve.choice import Choices
from tests.unit.engine.plan.models import LLAMA_3_70B, LLAMA_8B
from tests.unit.engine.plan.written import LLAMA, tensors, written

GIB = 2**30
CARD = "NVIDIA GeForce RTX 4090"
OURS, OTHERS = 4711, 4712


class Machine:
    """A machine with cards, and who holds how much of them."""

    def __init__(self, monkeypatch):
        self.cards, self.held, self.host = [], {}, 64 * GIB
        self.llama = LLAMA_SERVER
        monkeypatch.setattr("gateway.serve.hardware.gpus", self.gpus)
        monkeypatch.setattr("gateway.serve.hardware.holders", lambda index: tuple(self.held.get(index, ())))
        monkeypatch.setattr("gateway.serve.hardware.total_bytes", lambda: 64 * GIB)
        for module in ("hardware", "choice"):
            monkeypatch.setattr(f"gateway.serve.{module}.free_bytes", lambda: self.host)
        monkeypatch.setattr("gateway.serve.choice.llama_server", self.program)
        monkeypatch.setattr("gateway.serve.choice.family", lambda _: frozenset({OURS}))

    def gpus(self):
        def used(index):
            return sum(held.used_bytes or 0 for held in self.held.get(index, ()))

        return tuple(Gpu(n, CARD, 24564 * 2**20, 24100 * 2**20 - used(n)) for n in range(len(self.cards)))

    def hold(self, index, gib, pid=OTHERS):
        self.held.setdefault(index, []).append(Holder(pid, None if gib is None else round(gib * GIB)))

    def program(self, given, environ):
        if self.llama is None:
            raise SetupError("llama-server", "there is none", "install it")
        return self.llama, "/bin/llama-server"


@pytest.fixture
def machine(monkeypatch):
    made = Machine(monkeypatch)
    made.cards = [0]
    return made


@pytest.fixture
def told():
    return []


@pytest.fixture
def choices(told):
    return Choices(told.append, {})


@pytest.fixture
def model(tmp_path):
    def make(config=LLAMA_8B, name="model"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return make


@pytest.fixture
def gguf(tmp_path):
    return str(written(tmp_path / "small.gguf", LLAMA, tensors()))


def settings(*engines):
    return Settings.model_validate({"models": [{"engine": {"choice": "auto", **engine}} for engine in engines]})


def chosen(choices, *engines):
    made = choices.applied(settings(*engines)).models
    return made[0].engine if len(made) == 1 else [model.engine for model in made]


def test_what_fits_is_vllm_as_it_is_on_the_freest_card(machine, choices, model, told):
    machine.cards = [0, 1]
    machine.hold(0, 10)
    engine = chosen(choices, {"model": model(), "args": ["--max-model-len", "8192"]})
    assert engine.args[:2] == ("--max-model-len", "8192")
    assert engine.gpus == ((1,),)
    assert told[0].rung.name == "vLLM"


def test_what_changes_answers_is_taken_only_where_it_is_allowed(machine, choices, model):
    machine.hold(0, 10)
    assert "--cpu-offload-gb" in chosen(choices, {"model": model()}).args
    engine = chosen(choices, {"model": model(), "quality": ["weights"]})
    assert engine.args[:2] == ("--quantization", "fp8")


def test_an_alternative_comes_before_quantizing_here_and_serves_under_the_models_own_name(machine, choices, model):
    whole = model(LLAMA_3_70B, "big")
    small = model(name="small")
    made = choices.applied(settings({"model": whole, "alternatives": [small], "quality": ["weights"]})).models[0]
    assert (made.engine.model, made.name) == (small, "big")


def test_several_cards_are_spread_over(machine, choices, model):
    machine.cards = [0, 1]
    engine = chosen(choices, {"model": model(), "args": ["--max-model-len", "100000"]})
    assert "--tensor-parallel-size" in engine.args
    assert engine.gpus == ((0, 1),)


def test_each_replica_gets_cards_of_its_own(machine, choices, model):
    machine.cards = [0, 1, 2, 3]
    engine = chosen(choices, {"model": model(), "args": ["--max-model-len", "100000"], "replicas": 2})
    assert engine.gpus == ((0, 1), (2, 3))
    assert chosen(choices, {"model": model(), "gpus": [[2], [0]], "replicas": 2}).gpus == ((2,), (0,))


def test_a_llama_server_is_the_way_down(machine, choices, model, gguf):
    engine = chosen(choices, {"model": model(LLAMA_3_70B), "alternatives": [gguf], "args": ["--dtype", "bfloat16"]})
    assert engine.model == gguf
    assert "--gpu-layers" in engine.args
    assert "--dtype" not in engine.args, "arguments for vLLM are none of a llama-server's"


def test_a_llama_server_for_the_processor_alone_is_planned_on_it(machine, choices, model, gguf):
    machine.llama = IN_PROCESS
    engine = chosen(choices, {"model": model(LLAMA_3_70B), "alternatives": [gguf]})
    assert engine.args[engine.args.index("--gpu-layers") + 1] == "0"


def test_without_a_llama_server_there_is_no_way_down(machine, choices, model, gguf):
    machine.llama = None
    with pytest.raises(ConfigurationError, match="it needs llama-server, which is not here"):
        chosen(choices, {"model": model(LLAMA_3_70B), "alternatives": [gguf]})


def test_a_file_of_a_hub_is_fetched_only_where_nothing_else_holds(machine, choices, model, gguf, monkeypatch):
    fetched = []
    monkeypatch.setattr(
        "gateway.serve.choice.local", lambda name, _: fetched.append(name) or (gguf if ":" in name else name)
    )
    alternative = {"alternatives": ["owner/m-GGUF:Q4_K_M"]}
    assert chosen(choices, {"model": model(), **alternative}).model == model()
    assert fetched == []
    assert chosen(choices, {"model": model(LLAMA_3_70B, "big"), **alternative}).model == gguf


def test_where_nothing_holds_it_the_nearest_is_named(machine, choices, model):
    with pytest.raises(ConfigurationError, match=r"the nearest, .*, lacks .* GiB\. Name a smaller checkpoint"):
        chosen(choices, {"model": model(LLAMA_3_70B)})
    machine.hold(0, 10)
    machine.host = GIB
    with pytest.raises(ConfigurationError, match=r"engine.quality: \[weights\] allows it"):
        chosen(choices, {"model": model()})


def test_on_a_cpu_the_cache_is_in_the_environment(machine, choices, model):
    machine.cards = []
    engine = chosen(choices, {"model": model(), "args": ["--max-model-len", "131072"]})
    assert {name: value.get_secret_value() for name, value in engine.env.items()} == {"VLLM_CPU_KVCACHE_SPACE": "17"}
    assert engine.gpus is None


def test_engines_on_one_cpu_do_not_count_the_same_memory_twice(machine, choices, model):
    machine.cards = []
    machine.host = 30 * GIB
    with pytest.raises(ConfigurationError, match="model second: no way"):
        chosen(choices, {"model": model()}, {"model": model(name="second")})


def test_several_engines_on_cards_have_theirs_named(machine, choices, model):
    machine.cards = [0, 1]
    with pytest.raises(ConfigurationError, match=r"needs its cards named: gpus: \[\[0\]\]"):
        chosen(choices, {"model": model()}, {"model": model(name="second")})
    both = [{"model": model(), "gpus": [[1]]}, {"model": model(name="second"), "gpus": [[0]]}]
    assert [engine.gpus for engine in chosen(choices, *both)] == [((1,),), ((0,),)]


def test_the_context_that_is_kept_is_given_or_the_least_that_is_useful(machine, choices, model, told):
    chosen(choices, {"model": model(), "min_model_len": 20000})
    chosen(choices, {"model": model(), "min_model_len": 20000, "args": ["--max-model-len", "30000"]})
    chosen(choices, {"model": model()})
    assert [choice.ladder.wanted for choice in told] == [20000, 30000, 4096]


def test_a_choice_stays_while_its_description_does(machine, choices, model, told):
    first = chosen(choices, {"model": model()})
    machine.hold(0, 10)
    assert chosen(choices, {"model": model()}) == first
    assert len(told) == 1
    assert chosen(choices, {"model": model(), "min_model_len": 8000}) != first, "another description is another choice"


def test_what_an_engine_of_ours_holds_is_free_for_the_next(machine, choices, model):
    machine.hold(0, 20, pid=OURS)
    assert "--cpu-offload-gb" not in chosen(choices, {"model": model()}).args


def test_engines_that_are_given_are_left_alone(choices):
    plain = Settings.model_validate({"models": [{"engine": {"model": "no/such"}}]})
    assert choices.applied(plain) is plain


@pytest.mark.parametrize("fault", ["missing", "no shape"])
def test_what_cannot_be_planned_is_told(machine, choices, model, fault):
    name = "./no/such/folder" if fault == "missing" else model({"model_type": "strange"})
    with pytest.raises(ConfigurationError, match="model "):
        chosen(choices, {"model": name})


# --- news -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def serving(machine, choices, model):
    """A model that was chosen, and whose engine runs."""
    chosen(choices, {"model": model(), "args": ["--max-model-len", "8192"]})
    machine.hold(0, 20, pid=OURS)
    assert list(choices.news()) == list(choices.news()) == []
    return choices


def test_another_process_on_the_card_is_news_with_what_would_be_chosen(machine, serving):
    machine.hold(0, 8)
    assert list(serving.news()) == [], "one look may fall into a start"
    (line,) = serving.news()
    assert line.startswith(
        "model: others hold 8.0 GiB more of GPU 0 than when it was chosen as vLLM: with 15.5 GiB free"
    )
    assert "the choice would be vLLM, weights partly on the host" in line
    assert list(serving.news()) == [], "once"
    machine.held[0].pop()
    assert list(serving.news()) == []
    (line,) = serving.news()
    assert "the choice would be the same" in line


def test_a_card_whose_processes_the_driver_hides_has_no_news(machine, choices, model):
    chosen(choices, {"model": model()})
    machine.held[0] = [Holder(OURS, None), Holder(OTHERS, 5 * GIB)]
    assert [*choices.news(), *choices.news()] == []


def test_a_cpu_has_no_news(machine, choices, model):
    machine.cards = []
    chosen(choices, {"model": model()})
    assert [*choices.news(), *choices.news()] == []


def test_the_engine_of_a_choice_is_one_of_the_ladder(machine, choices, model, told):
    chosen(choices, {"model": model()})
    assert told[0].rung.engine is Engine.VLLM
