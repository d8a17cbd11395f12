import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.ops.pictures.picture import SPAN, Changes, Picture, Point, changed, changes
from tests.unit.ops.pictures.pictures import GOOD, endpoint, model, picture, request


def point(at):
    return Point(at, {}, {}, {})


def over_the_wire(new):
    return msgspec.json.decode(msgspec.json.encode(new), type=Changes)


requests = st.lists(
    st.builds(request, st.sampled_from("abcdefgh"), generated=st.integers(0, 3)), unique_by=lambda one: one.key
).map(tuple)
pictures = st.builds(
    picture,
    at=st.floats(1000, 1010),
    mode=st.sampled_from(["enforce", "observe"]),
    endpoints=st.lists(st.builds(endpoint, usage=st.sampled_from([0.1, 0.2])), max_size=2).map(tuple),
    models=st.lists(st.builds(model, waiting=st.integers(0, 2)), max_size=1).map(tuple),
    requests=requests,
)


@given(before=pictures, after=pictures)
def test_a_picture_and_its_changes_make_the_next(before, after):
    assert changed(before, over_the_wire(changes(before, after))) == after


def test_what_stays_is_not_said_again():
    before = picture(requests=(request("1"), request("2")), endpoints=(endpoint(),))
    after = picture(1000.5, requests=(request("1"), request("2", generated=9)), endpoints=(endpoint(),))
    new = changes(before, after)
    assert new == Changes(at=1000.5, requests=(request("2", generated=9),))
    assert msgspec.json.encode(new).count(b":") < 12, "what is as by default is left out"


def test_points_are_added_and_the_oldest_forgotten():
    before = picture(1000.0, points=(point(1000.0 - SPAN + 1), point(1000.0)))
    after = changed(before, changes(before, picture(1002.0, points=(point(1002.0),))))
    assert [each.at for each in after.points] == [1000.0, 1002.0]


def test_a_later_releases_fields_are_left_unread():
    said = msgspec.to_builtins(picture()) | {"weather": "fair"}
    assert msgspec.convert(said, Picture).headline == GOOD
