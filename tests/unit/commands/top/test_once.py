import io

from rich.console import Console

from gateway.commands.top.once import show
from gateway.ops.pictures.picture import Flow
from tests.unit.ops.pictures.pictures import endpoint, model, picture, request


def shown(seen, width=120):
    out = io.StringIO()
    show(seen, Console(file=out, width=width, highlight=False, markup=False))
    return out.getvalue().splitlines()


def test_every_part_has_its_table():
    flow = Flow(band=2, flow="batch", weight=1.0, waiting=3, oldest=996.0)
    lines = shown(
        picture(
            endpoints=(endpoint("gpu-1:8000", sequences=12),),
            models=(model(waiting=3, flows=(flow,)),),
            requests=(request("1", prompt=1234),),
        )
    )
    assert lines[0] == "● Serving."
    assert any("gpu-1:8000" in line and " 71 %" in line and " 12 " in line for line in lines)
    assert any("batch" in line and " 3 " in line and "4.0 s" in line for line in lines)
    assert any(line.startswith("running") and "1,234" in line for line in lines)
    assert all(len(line) <= 120 for line in lines)


def test_what_is_empty_has_no_table():
    assert not any("request" in line or "endpoint" in line for line in shown(picture()))


def test_it_fits_a_small_terminal_without_a_cut_figure():
    lines = shown(picture(endpoints=(endpoint("a-very-long-name.example:8000"),)), width=80)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("a-very-long"))
    assert "…" in row
    assert "71 %" in row
