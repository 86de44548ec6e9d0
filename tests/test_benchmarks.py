"""The gate of the benchmarks: what counts as worse. Nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.measuring import Result, in_turn, percentile


def result(ratio: float, **more: object) -> Result:
    fields = {"figure": "send", "title": "a send", "unit": "ms", "ours": ratio, "floor": 1.0}
    return Result(**{**fields, "ratio": ratio, "goal": 1.25, **more})  # type: ignore[arg-type]


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"send": 1.2, "senders": 0.9, "idle": 0.001}))
    monkeypatch.setattr(report, "BASELINE", path)
    return path


@pytest.mark.usefixtures("baseline")
def test_a_ratio_within_the_margin_is_no_regression() -> None:
    assert report.regressions([result(1.2 * report.MARGIN * 0.99)]) == {}


@pytest.mark.usefixtures("baseline")
def test_a_ratio_beyond_the_margin_is_named() -> None:
    worse = report.regressions([result(1.2 * report.MARGIN * 1.01)])

    assert list(worse) == ["send"]
    assert "committed 1.2" in worse["send"]


@pytest.mark.usefixtures("baseline")
def test_where_more_is_better_less_is_worse() -> None:
    def senders(ratio: float) -> dict[str, str]:
        return report.regressions([result(ratio, figure="senders", goal=0.8, at_least=True)])

    assert senders(2.0) == senders(0.9 / report.MARGIN * 1.01) == {}
    assert list(senders(0.9 / report.MARGIN * 0.99)) == ["senders"]


@pytest.mark.usefixtures("baseline")
def test_far_below_its_goal_a_ratio_may_vary() -> None:
    assert report.regressions([result(0.02, figure="idle", goal=0.1)]) == {}
    assert list(report.regressions([result(0.06, figure="idle", goal=0.1)])) == ["idle"]


@pytest.mark.usefixtures("baseline")
def test_a_tail_is_not_compared_and_an_unknown_figure_is_named() -> None:
    assert report.regressions([result(1000, steady=False)]) == {}
    assert "--save" in report.regressions([result(1, figure="new")])["new"]


def test_what_is_saved_is_what_is_compared_and_holds_no_times(baseline: Path) -> None:
    report.save([result(1.5, ours=123.0), result(99, figure="tail", steady=False)])

    assert json.loads(baseline.read_text()) == {"send": 1.5}


def test_a_goal_is_met_from_the_right_side() -> None:
    assert result(1.25).met
    assert not result(1.26).met
    assert result(0.8, goal=0.8, at_least=True).met
    assert not result(0.79, goal=0.8, at_least=True).met
    assert result(9, goal=None).met is None


def test_every_line_and_row_can_be_read() -> None:
    one = result(1.5, more={"p99": 2.0})

    assert json.loads(report.line(one))["p99"] == 2.0
    rows = report.table([one, result(0.5, floor=None)]).splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert "**missed**" in rows[2]


def test_steps_are_taken_in_turn_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    times = in_turn([lambda: order.append("a"), lambda: order.append("b")], 3)

    assert "".join(order) == "baabbaab"
    assert [len(one) for one in times] == [3, 3]
    assert percentile([1, 2, 3], 0.99) == 3


def test_the_committed_ratios_are_numbers_above_zero() -> None:
    ratios = json.loads(report.BASELINE.read_text(encoding="utf-8"))

    known = {"send", "mcp-send", "mcp-start", "verify", "inbox-10000", "hook-wake", "round"}
    assert known <= ratios.keys()
    assert all(ratio > 0 for ratio in ratios.values())
