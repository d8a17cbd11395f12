import json
import socket
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.gpu import Gpu
from engine.program import Role
from engine.program_lifecycle import BecameReady, Exited, Lifecycle, Start, State, Tick
from gateway.config.engine import from_words
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve import launch
from gateway.serve.launch import agrees, knowing, place_by, programs, served_name, telling
from gateway.serve.owner_socket import OwnerSocket
from gateway.serve.rollout import beside
from tests.unit.engine.adapters import adapter

PYTHON = Path("/engine/bin/python")


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    monkeypatch.setattr("gateway.serve.launch.gpus", tuple)


def launched(engine, *, python=PYTHON, running=(), **more):
    model = {"engine": {"model": "org/chat", **engine}, **more.pop("model", {})}
    settings = Settings.model_validate({"models": [model], **more})
    engines, gateways = programs(settings, python, running=running)
    return [*engines, *gateways]


def handed_over(program):
    """The settings that a gateway reads from its standard input."""
    return Settings.model_validate(json.loads(program.stdin))


def test_the_gateway_fronts_the_engine_that_is_launched():
    engine, gateway = launched({})
    assert (engine.role, gateway.role) == (Role.ENGINE, Role.GATEWAY)
    assert engine.argv[0] == str(PYTHON)
    (model,) = handed_over(gateway).models
    assert f"{model.endpoints[0].url}".rstrip("/") == engine.ready_url.removesuffix("/health")
    assert (model.name, model.tokenizer, model.engine) == ("org/chat", "org/chat", None)
    assert gateway.argv[0] == sys.executable


def test_an_engine_described_as_one_that_runs_is_that_one_and_another_has_another_name():
    first = launched({"replicas": 2, "args": ["--enable-lora"], "env": {"A": "hidden"}})
    same = launched(
        {"replicas": 2, "args": ["--enable-lora"], "env": {"A": "hidden"}, "stop_timeout": 3}, running=first
    )
    assert same[:2] == first[:2]
    assert handed_over(same[2]).models == handed_over(first[2]).models
    other, *_ = launched({"replicas": 1, "args": ["--no-enable-lora"], "env": {"A": "hidden"}}, running=same)
    assert other.name == "engine org/chat"
    again = launched({"replicas": 2, "args": ["--enable-lora"], "env": {"A": "other"}}, running=same)
    assert [program.name for program in again] == ["engine org/chat 0 #2", "engine org/chat 1 #2", "gateway"]
    assert not {program.ready_url for program in again[:2]} & {program.ready_url for program in first}
    assert "hidden" not in first[0].described


def test_an_engine_goes_on_in_another_group_and_with_another_time_to_stop():
    (before, was) = launched({"on_demand": True})
    (engine, gateway) = launched({"on_demand": True, "group": "card", "idle_stop": 5}, running=[before])
    assert engine == before
    assert (before.place, engine.place) == ("model 1 org/chat", "group card")
    assert not agrees(was, gateway)
    assert agrees(gateway, gateway)


def test_another_adapter_of_the_same_rank_needs_no_other_engine_if_one_can_load_it_while_it_runs(tmp_path):
    def with_adapters(*ranks, running=(), **engine):
        lora = [{"name": f"a{rank}", "path": str(adapter(tmp_path / f"a{rank}", rank=rank))} for rank in ranks]
        return launched(engine, model={"lora": lora}, running=running)

    first = with_adapters(8)
    assert "--enable-lora" in first[0].argv
    assert "--lora-modules" not in first[0].argv, "the gateway has it load them"
    assert first[0].env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    more = with_adapters(8, 16, running=first)
    assert more[0] == first[0], "the gateway has it loaded"
    assert [one.name for one in handed_over(more[1]).models[0].lora] == ["a8", "a16"]
    higher, *_ = with_adapters(8, 32, running=first)
    assert higher.name == "engine org/chat #2"
    assert higher.argv[higher.argv.index("--max-lora-rank") + 1] == "32"
    (without, *_) = launched({}, running=first)
    assert without.name == "engine org/chat #2"
    assert "--enable-lora" not in without.argv
    fixed = {"env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}}
    unable = with_adapters(8, **fixed)
    (other, *_) = with_adapters(8, 16, running=unable, **fixed)
    assert (other.name, other.argv[-1]) == ("engine org/chat #2", f"a16={tmp_path}/a16")


def test_only_a_vllm_that_is_to_sleep_is_launched_so_that_it_can(binary):
    def able(engine):
        program, _ = launched({"on_demand": True, **engine})
        return (
            program.sleeps,
            "--enable-sleep-mode" in program.argv,
            program.env.get("VLLM_SERVER_DEV_MODE"),
        )

    assert able({"idle": "sleep"}) == (True, True, "1")
    assert able({}) == (False, False, None)
    assert able({"model": "org/m-GGUF:Q4_K_M", "llama_server": str(binary), "idle": "sleep"}) == (False, False, None)


def test_replicas_have_names_and_ports_of_their_own():
    *engines, gateway = launched({"replicas": 3})
    assert len({engine.name for engine in engines}) == len({engine.ready_url for engine in engines}) == 3
    assert len(handed_over(gateway).models[0].endpoints) == 3


@pytest.mark.parametrize(
    "args", [["--max-num-seqs", "7"], ["--max-num-seqs=7"], ["--max_num_seqs=3", "--max-num-seqs=7"]]
)
def test_a_sequence_limit_given_to_the_engine_is_known_to_the_gateway(args):
    _, gateway = launched({"args": args})
    assert handed_over(gateway).models[0].endpoints[0].max_num_seqs == 7


@pytest.mark.parametrize(("given", "known"), [("8", 8), ("1k", None), ("lots", None), ("0", None)])
def test_a_sequence_limit_is_read_as_vllm_reads_it_and_left_to_it_where_it_is_none(given, known):
    _, gateway = launched({"args": ["--max-num-seqs", given]})
    assert handed_over(gateway).models[0].endpoints[0].max_num_seqs == known


def test_the_engines_own_tokenizer_is_the_gateways():
    assert handed_over(launched({"args": ["--tokenizer", "org/other"]})[-1]).models[0].tokenizer == "org/other"
    assert handed_over(launched({}, model={"tokenizer": "mine"})[-1]).models[0].tokenizer == "mine"


def test_the_engines_chat_template_is_the_gateways_and_the_other_way_round(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    _, gateway = launched({"args": ["--chat-template", str(file)]})
    assert handed_over(gateway).models[0].chat_template == str(file)
    engine, gateway = launched({}, model={"chat_template": str(file)})
    assert handed_over(gateway).models[0].chat_template == str(file)
    assert engine.argv[-2:] == ("--chat-template", str(file))
    assert engine.described != launched({})[0].described


@pytest.fixture
def binary(tmp_path):
    file = tmp_path / "llama-server"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_a_gguf_file_gets_a_llama_server_that_counts_for_its_gateway(binary, monkeypatch):
    monkeypatch.setattr(launch, "engine_python", lambda: pytest.fail("no vLLM is needed"))
    engine, gateway = launched({"model": "/models/chat.Q4.gguf", "llama_server": str(binary)}, python=None)
    assert engine.argv[:5] == (str(binary), "--model", "/models/chat.Q4.gguf", "--alias", "chat.Q4")
    assert any("it cannot be planned: " in choice for choice in engine.choices)
    (model,) = handed_over(gateway).models
    assert (model.name, model.tokenizer, model.endpoints[0].kv_tokens) == ("chat.Q4", None, 16_384)


def test_a_llama_servers_arguments_are_its_own(binary, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    gguf = {"model": "m.gguf", "llama_server": str(binary), "args": ["-c", "512"]}
    engine, gateway = launched(gguf, model={"chat_template": str(template)})
    assert "--ctx-size" not in engine.argv
    given = engine.argv.index("-c")
    assert engine.argv[given : given + 4] == ("-c", "512", "--chat-template-file", str(template))
    assert handed_over(gateway).models[0].endpoints[0].kv_tokens == 512
    with pytest.raises(ConfigurationError, match="engine argument --slots is set by kvgate"):
        launched({**gguf, "args": ["--no-slots"]})


def test_another_program_is_another_engine(binary, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(binary.read_bytes())
    other.chmod(0o755)
    one, two = (launched({"model": "m.gguf", "llama_server": str(file)})[0] for file in (binary, other))
    assert one.described != two.described


def test_engines_and_running_endpoints_may_be_of_one_model():
    _, gateway = launched({}, model={"endpoints": [{"url": "http://elsewhere:1", "api_key": "k"}]})
    urls = [endpoint.url.host for endpoint in handed_over(gateway).models[0].endpoints]
    assert urls == ["elsewhere", "127.0.0.1"]
    assert handed_over(gateway).models[0].endpoints[0].api_key.get_secret_value() == "k"


def test_secrets_go_through_the_pipe_and_nowhere_else(monkeypatch):
    monkeypatch.setenv("KVGATE_AUTH__ADMIN_KEY", "hidden")
    engine, gateway = launched({"env": {"HF_TOKEN": "hidden"}}, auth={"admin_key": "hidden"})
    assert handed_over(gateway).auth.admin_key.get_secret_value() == "hidden"
    assert "hidden" not in "".join(gateway.argv) + "".join(gateway.env.values())
    assert engine.env["HF_TOKEN"] == "hidden"
    assert "hidden" not in repr(engine) + repr(gateway)


def test_a_gateway_is_handed_the_sockets_it_listens_on():
    with socket.socket() as clients, socket.socket() as admin:
        settings = Settings.model_validate({"models": [{"engine": {"model": "m"}}]})
        [gateway] = programs(settings, PYTHON, [clients, admin])[-1]
        assert gateway.fds == (clients.fileno(), admin.fileno())
        assert gateway.argv[-3:-1] == (f"--listen={clients.fileno()}", f"--listen={admin.fileno()}")
    assert gateway.tells


def test_a_gateway_knows_which_engines_are_started_for_it():
    *engines, gateway = launched({"replicas": 2})
    told = from_words(word.partition("=")[2] for word in gateway.argv if word.startswith("--launched="))
    assert [f"http://{address}/health" for address in told] == [engine.ready_url for engine in engines]


def test_an_upgrade_of_the_code_is_noticed(monkeypatch, tmp_path):
    package = tmp_path / "gateway" / "serve"
    package.mkdir(parents=True)
    (package / "launch.py").write_text("1")
    (tmp_path / "engine").mkdir()
    monkeypatch.setattr(launch, "__file__", str(package / "launch.py"))
    before = launched({})[-1].described
    assert launched({})[-1].described == before
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "launch.pyc").write_text("1")
    assert launched({})[-1].described == before
    (package / "launch.py").write_text("22")
    assert launched({})[-1].described != before


def test_the_gateway_has_longer_to_stop_than_its_streams():
    _, gateway = launched({}, server={"shutdown_timeout": 33})
    assert gateway.policy.stop_timeout > 33


@pytest.fixture
def owner():
    made = OwnerSocket(2)
    yield made
    made.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gateway_killed_now_and_then_is_never_given_up_and_one_that_cannot_run_is(workers, owner):
    models = [{"endpoints": [{"url": "http://e"}]}]
    settings = Settings.model_validate({"models": models, "server": {"workers": workers}})
    _, gateways = programs(settings, PYTHON, owner=owner if workers > 1 else None)
    for gateway in gateways:
        life, now = Lifecycle(gateway.policy), 0.0
        life.handle(Start(), now)
        for _ in range(20):
            life.handle(BecameReady(), now + 2)
            life.handle(Exited(permanent=False), now + 20)
            assert life.state is State.BACKOFF
            assert life.delay() <= 1, "it is back at once each time"
            now += 20 + life.delay()
            life.handle(Tick(), now)
        began = now
        while life.state is not State.FAILED:
            life.handle(Exited(permanent=False), now)
            waits = life.delay() if life.state is State.BACKOFF else 0.0
            now += waits
            life.handle(Tick(), now)
        assert 30 <= now - began < 60, f"{gateway.name}: what it lacks may be back soon, as a file"


def test_each_replica_has_its_own_gpu(monkeypatch):
    cards = tuple(Gpu(index, "card", total_bytes=1 << 34, free_bytes=1 << 34) for index in range(2))
    monkeypatch.setattr("gateway.serve.launch.gpus", lambda: cards)
    first, second, _ = launched({"replicas": 2})
    assert first.env["CUDA_VISIBLE_DEVICES"] != second.env["CUDA_VISIBLE_DEVICES"]
    with pytest.raises(ConfigurationError, match="engines: they need 3 GPUs"):
        launched({"replicas": 3})


def test_engines_of_different_models_share_no_gpu(monkeypatch):
    cards = tuple(Gpu(index, "card", total_bytes=1 << 34, free_bytes=1 << 34) for index in range(3))
    monkeypatch.setattr("gateway.serve.launch.gpus", lambda: cards)
    models = [{"engine": {"model": "a"}}, {"engine": {"model": "b", "gpus": [[0]]}}, {"engine": {"model": "c"}}]
    engines, _ = programs(Settings.model_validate({"models": models}), PYTHON)
    assert [engine.env["CUDA_VISIBLE_DEVICES"] for engine in engines] == ["1", "0", "2"]


def test_a_folder_is_served_by_its_name(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (model,) = Settings.model_validate({"models": [{"engine": {"model": f"{folder}/"}}]}).models
    assert served_name(model) == "my-model"
    (named,) = Settings.model_validate({"models": [{"name": "n", "engine": {"model": str(folder)}}]}).models
    assert served_name(named) == "n"


def test_in_a_tier_an_engine_is_launched_at_its_address_and_all_gateways_know_it_alike():
    engine = {"on_demand": True, "group": "card", "at": "10.0.0.7:8001", "args": ["--max-num-seqs", "7"]}

    def at(advertise):
        tier = {"redis": "redis://h", "advertise": advertise, "key_file": "/key"}
        return launched(engine, model={"name": "m"}, tier=tier)

    program, here = at("10.0.0.7:8500")
    (elsewhere,) = at("10.0.0.8:8500")
    host = program.argv.index("--host")
    assert program.argv[host : host + 4] == ("--host", "10.0.0.7", "--port", "8001")
    assert program.ready_url == "http://10.0.0.7:8001/health"
    assert handed_over(here).models == handed_over(elsewhere).models
    (endpoint,) = handed_over(elsewhere).models[0].endpoints
    assert (endpoint.address, endpoint.max_num_seqs) == ("10.0.0.7:8001", 7)
    assert program.place == "group card at 10.0.0.7" == place_by(here, program), "as who decides elsewhere knows it"
    assert [word for word in here.argv if "launched" in word] == [word for word in elsewhere.argv if "launched" in word]


def test_two_engines_at_one_address_are_refused():
    engine = {"model": "m", "on_demand": True, "at": "h:1"}
    with pytest.raises(ValidationError, match="share an address: h:1"):
        Settings.model_validate({"models": [{"name": name, "engine": engine} for name in "ab"]})


def test_two_engines_on_demand_of_one_model_have_a_name_and_a_place_each():
    models = [{"name": "red", "engine": {"model": "org/m", "on_demand": True}}] * 2
    engines, (gateway,) = programs(Settings.model_validate({"models": models}), PYTHON)
    assert [engine.name for engine in engines] == ["engine red", "engine red #2"]
    assert [engine.place for engine in engines] == ["model 1 red", "model 2 red"]
    assert [place_by(gateway, engine) for engine in engines] == ["model 1 red", "model 2 red"]


def test_engines_on_demand_that_name_one_gpu_are_one_group(monkeypatch):
    monkeypatch.setattr("gateway.serve.launch.gpus", lambda: (Gpu(0, "card", 80 << 30, 80 << 30),))
    engine = {"model": "org/m", "on_demand": True, "gpus": [[0]]}
    models = [{"name": name, "engine": engine} for name in "ab"]
    _, (gateway,) = programs(Settings.model_validate({"models": models}), PYTHON)
    known = from_words(word.removeprefix("--launched=") for word in gateway.argv if word.startswith("--launched="))
    assert [how.place for how in known.values()] == ["group GPU 0"] * 2


def test_a_gateway_that_takes_over_knows_how_engines_come_and_go_that_only_the_one_before_it_knew():
    old, before = launched({"on_demand": True, "idle_stop": 5})
    new, gateway = launched({"on_demand": True, "idle_stop": 7})
    both = telling(gateway, beside(gateway.settings, before.settings))

    def idle_stops(gateway):
        words = (word.removeprefix("--launched=") for word in gateway.argv if word.startswith("--launched="))
        return {address: how.idle_stop for address, how in from_words(words).items()}

    assert idle_stops(knowing(both, before)) == {old.spec.address: 5, new.spec.address: 7}
    assert knowing(gateway, before) == knowing(gateway, gateway) == gateway
