"""The sweep over tuned constants: its processes have the changed ones, and its rows say what came of it."""

from dataclasses import fields

import pytest

from gateway.admission.tuning import TUNING
from tests.proof.ablation import NEAR_ONE, OUT, Cell, Figures, Offered, cells, main, row, variants

CELL = Cell(Offered("conversation", 0, "outputs"), 1.5, "forecast")
FLOWS = Cell(Offered("conversation", 0, "plain", flows=True), 1.5, "both")


def test_its_cells_are_those_of_the_proof_and_the_further_ones_each_with_a_name_of_its_own():
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("conversation p") or "outputs" in name for name in names) > 24
    assert {"conversation plain 0.6 both", "code plain 1.5 forecast", FLOWS.name} <= {*names}


def test_every_constant_has_variants_that_differ_from_it():
    known = {field.name for field in fields(TUNING)}
    assert known >= {*OUT, *NEAR_ONE}
    for name in known:
        tried = dict(variants(name))
        assert {title.removeprefix(f"{name} ") for title in tried} <= {"out", "half", "double"}
        assert tried
        assert all(changed == name and value != getattr(TUNING, name) for ((changed, value),) in tried.values())


def test_a_share_near_one_is_halved_and_doubled_by_its_distance_from_it():
    tried = dict(variants("quantile_top"))
    distance = 1 - TUNING.quantile_top
    assert tried["quantile_top half"][0][1] == pytest.approx(1 - distance / 2)
    assert tried["quantile_top double"][0][1] == pytest.approx(1 - distance * 2)


def test_a_row_tells_the_worst_cell_the_mean_and_what_was_preempted():
    before = {CELL: Figures(0.97, 1, 1000, None), FLOWS: Figures(1.0, 0, 1000, 0.25)}
    after = {CELL: Figures(0.96, 5, 1000, None), FLOWS: Figures(1.005, 0, 1000, 0.75)}
    printed = row("name", before, after).split()
    assert printed[:8] == ["name", "-1.00", "-0.25", "+0.50", "0.50/", "1.00", "2.50/", "5.00"]
    assert printed[8:10] == ["0.25", "0.75"]
    assert " ".join(printed[10:]) == CELL.name


@pytest.mark.slow
def test_a_changed_constant_reaches_the_core_and_another_s_name_changes_nothing(capsys):
    main(["forecast_share=0.5", "promise_late", "--cells", CELL.name, "--requests", "200"])
    _, _, kept, halved, *same = capsys.readouterr().out.splitlines()
    assert 90 < float(kept.split()[-1]) < 110
    assert float(halved.split()[1]) < -3
    assert len(same) == 3
    assert all(float(line.split()[2]) == 0.0 for line in same)
