from xml.etree import ElementTree as ET

from loadtests.flame import WIDTH, flame_graph

RECT = "{http://www.w3.org/2000/svg}rect"


def boxes(drawn):
    """Left edge, width and height of each frame, by the name under the pointer."""
    found = {}
    for box in ET.fromstring(drawn).iter(RECT):  # noqa: S314  # our own
        name = box[0].text.partition(":")[0]
        found[name] = float(box.get("x")), float(box.get("width")), int(box.get("y"))
    return found


def test_a_frame_is_as_wide_as_what_was_spent_in_it_and_lies_on_the_one_that_called():
    found = boxes(flame_graph({("a", "b"): 3.0, ("a",): 1.0, ("c",): 4.0}))
    assert found["all"][:2] == (0, WIDTH)
    assert found["a"][:2] == (0, WIDTH / 2)
    assert found["b"][:2] == (0, 3 * WIDTH / 8)
    assert found["c"][:2] == (WIDTH / 2, WIDTH / 2)
    assert found["b"][2] < found["a"][2] == found["c"][2] < found["all"][2]


def test_what_is_too_narrow_to_see_is_left_out_and_names_are_escaped():
    drawn = flame_graph({("<lambda>",): 1.0, ("b",): 0.0001})
    assert set(boxes(drawn)) == {"all", "<lambda>"}


def test_of_nothing_there_is_no_graph():
    assert flame_graph({}) == ""
