import asyncio

import msgspec
import pytest

from gateway.admission.events import RequestId
from gateway.ops.merged import packed
from gateway.ops.pictures.digest import Digest, OfModel
from gateway.ops.pictures.picture import Picture
from gateway.ops.state import Decided
from gateway.tier.frames import (
    Answer,
    AskTurn,
    Came,
    Explain,
    Look,
    Report,
    Reported,
    Saw,
    Scrape,
    ShowState,
)
from tests.unit.tier.halls import (
    ONE,
    THREE,
    TWO,
    World,
    counted,
)
from tests.unit.tier.lines import turns

pytestmark = pytest.mark.usefixtures("hurried", "nothing_to_keep")


async def test_questions_are_answered(world, front):
    front.say(ShowState(1), ShowState(2, drain="here"), ShowState(3, undrain="nobody"))
    front.say(Explain(4, "m", ONE), Explain(5, "other", ONE))
    answers = {answer.number: answer.body for answer in await front.heard()}
    assert answers[1] == answers[2]
    tier = Decided.model_validate_json(answers[1]).tier
    assert (tier.role, tier.id, tier.epoch, tier.members) == ("owner", tier.owner, None, ("1",))
    assert answers[3] is answers[5] is None
    assert b'"verdict":"dispatch"' in answers[4]
    assert world.drained == ["here"]


async def test_a_picture_is_told_with_what_the_fronts_saw_end(world, front):
    digest = Digest({"m": OfModel({"completed": 1})})
    front.say(Saw(digest), Look(1, 7.0))
    (answer,) = await front.heard()
    assert msgspec.json.decode(answer.body, type=Picture).at == 8.0
    assert world.digests == [digest]


async def test_where_a_request_stands_is_told_to_the_front_that_has_it(world, front):
    front.say(*(Came("m", arrival) for arrival in (ONE, TWO, THREE)))
    front.say(AskTurn(1, THREE.request), AskTurn(2, ONE.request), AskTurn(3, RequestId(9)))
    answers = {answer.number: answer.body for answer in await front.heard() if isinstance(answer, Answer)}
    assert answers == {1: b'{"position":2,"eta":null,"rule":"sequences"}', 2: None, 3: None}


async def test_an_adapter_is_given_to_a_model_that_is_served(world, front):
    front.say(ShowState(1, give=("m", "a", None)), ShowState(2, give=("other", "a", "/a")))
    answers = {answer.number: answer.body for answer in await front.heard()}
    assert (answers[1] is None, answers[2]) == (False, None)
    assert world.given == [("m", "a", None)]


@pytest.mark.parametrize("operator", [{"drain": "here"}, {"undrain": "here"}])
async def test_what_an_operator_asks_is_done_once_all_fronts_have_told_what_is_drained(operator):
    world = World(fronts=2)
    front = await world.join(1)
    front.say(ShowState(1, **operator))
    assert await front.heard() == []
    assert world.drained == []
    await world.join(2)
    assert await front.heard() != []
    assert world.drained == ["here"]


async def test_no_sum_is_told_before_all_fronts_are_there():
    world = World(fronts=2)
    front = await world.join(1)
    front.say(Scrape(1))
    assert await front.heard() == []
    other = await world.join(2)
    await turns()
    for one in (front, other):
        one.say(Reported(1, packed(())))
    await asyncio.sleep(0.5)
    assert Answer in {type(message) for message in await front.heard()}
    world.hall.close()
    world.cores.close()


async def test_each_gateway_is_told_its_own_figures_and_the_owners_those_of_the_pools(tier):
    fronts = {1: None, 2: "b:1", 3: "b:1"}
    said = {number: await tier.join(number, machine) for number, machine in fronts.items()}

    async def told(asks):
        said[asks].say(Scrape(7))
        for number, front in said.items():
            for message in await front.heard():
                if isinstance(message, Report):
                    assert fronts[number] == fronts[asks], "the others are not even asked"
                    front.say(Reported(message.number, packed([counted("c", 10**number)])))
        while not (answers := await said[asks].heard()):  # a thread writes the text
            pass
        (answer,) = answers
        lines = answer.body.decode().splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}

    assert await told(1) == {"c_total": 10, "pools_total": 1}
    assert await told(2) == await told(3) == {"c_total": 1100}


async def test_in_a_tier_the_state_names_the_epoch_and_all_fronts(tier):
    front = await tier.join(1)
    await tier.join(2, "b:1")
    front.say(ShowState(1))
    (answer,) = await front.heard()
    shown = Decided.model_validate_json(answer.body).tier
    assert (shown.owner, shown.epoch, shown.members) == ("a", 3, ("1", "2"))
