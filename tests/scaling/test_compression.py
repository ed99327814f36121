"""Eq. 5-8 by hand and against the rows that the sampler builds; FLOPs against a counter and the paper's table."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_rows import sequence_log, sequence_view

from lmctr import ASTROConfig, ASTROForCTR
from lmctr.data.batches.sequence import sumi_rows
from lmctr.scaling.compression import (
    compression_ratio,
    epoch_flops,
    padded_samples,
    plan_compression,
    row_bytes,
    sample_histogram,
)
from lmctr.scaling.flops import StageFlops, astro_flops, count_flops, paper_flops

TABLE_3 = [  # length, layers, FLOPs
    (100, 1, 5.82e6), (400, 1, 1.84e7), (800, 1, 3.46e7), (400, 4, 4.11e8), (800, 4, 1.01e9), (1600, 4, 2.79e9),
    (800, 8, 2.31e9), (800, 12, 3.61e9),
]  # fmt: skip


@pytest.mark.parametrize(("length", "layers", "stated"), TABLE_3)
def test_the_papers_table_3(length, layers, stated):
    assert paper_flops(length, layers) == pytest.approx(stated, rel=0.03)


def test_the_papers_table_2_is_not_at_equal_flops():
    first = [paper_flops(length, layers) for length, layers in ((1600, 1), (800, 2), (400, 4), (200, 8))]
    assert first[0] == pytest.approx(6.6e7, rel=0.01)
    assert first[2] == pytest.approx(4.11e8, rel=0.03)
    assert max(first) / min(first) > 5


@pytest.mark.parametrize("values", [
    {}, {"use_gating_fusion": False}, {"use_partitioning": False}, {"use_adaptive_layers": False}, {"num_hidden_layers": 1},
    {"task_names": ["a", "b"], "head_hidden_sizes": [7], "gate_ratio": 3, "intermediate_size": 24},
], ids=str)  # fmt: skip
def test_formula_equals_the_counter(values):
    """The formula is what the model runs, product by product."""
    defaults = {"num_hidden_layers": 3, "hidden_size": 16, "sequence_length": 30}
    config = ASTROConfig(**(defaults | {"strategies": [{"name": "a"}, {"name": "b"}]} | values))
    events, candidates = 40, 7
    inputs = {
        "history_items": torch.randint(1, 50, (1, events)),
        "candidate_items": torch.randint(1, 50, (1, candidates)),
        "history_times": torch.arange(events)[None],
        "candidate_times": torch.full((1, candidates), events),
    }
    formula = astro_flops(config, candidates)
    assert formula.total == count_flops(ASTROForCTR(config), inputs)
    assert astro_flops(config, 2 * candidates).stage2 == 2 * formula.stage2
    assert astro_flops(config, 2 * candidates).stage1 == formula.stage1


def test_stage_1_is_the_papers_formula_without_its_constant():
    config = ASTROConfig(strategies=[{"name": "a"}, {"name": "b"}], sequence_length=800, num_hidden_layers=8)
    assert astro_flops(config).stage1 == pytest.approx(paper_flops(800, 8) - paper_flops(0, 8))


def test_backward_costs_about_twice_the_forward():
    config = ASTROConfig(strategies=[{"name": "a"}], sequence_length=30, hidden_size=16)
    inputs = {
        "history_items": torch.randint(1, 50, (2, 30)),
        "candidate_items": torch.randint(1, 50, (2, 3)),
        "labels": torch.ones(2, 3),
    }
    model = ASTROForCTR(config)
    assert 2.5 < count_flops(model, inputs, backward=True) / count_flops(model, inputs) < 3.2


def test_equations_by_hand():
    """Two users with 3 samples and one with 7, five per row: 2 + 2 + 3 places stay empty, four rows."""
    histogram = {3: 2, 7: 1}
    assert padded_samples(histogram, 5) == 2 * 2 + 3
    assert compression_ratio(histogram, 5, 100, 10) == pytest.approx((20 * 100 / 5 + 20 * (10 + 4)) / (13 * 110))
    assert compression_ratio(histogram, 1, 100, 10) == pytest.approx((100 + 14) / 110)
    cost = epoch_flops(histogram, 5, lambda c: StageFlops(1000.0, 10.0 * c))
    assert cost == pytest.approx(20 / 5 * (1000 + 50))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), degree=st.integers(1, 7))
def test_rows_of_the_formula_are_the_samplers_rows(seed, degree):
    """Without a time window (N + N_p) / N_c is exactly the number of rows, and N_p the number of empty places."""
    log = sequence_log(seed)
    events = log.sample_events()
    histogram = sample_histogram(log, events)
    rows = sumi_rows(log, events, degree)
    assert sum(n * groups for n, groups in histogram.items()) == len(events)
    assert padded_samples(histogram, degree) == (rows < 0).sum()
    assert len(rows) * degree == len(events) + padded_samples(histogram, degree)


def test_windows_part_the_groups():
    log = sequence_log(4, seconds=400)
    events = log.sample_events()
    histogram = sample_histogram(log, events, 50)
    expected: dict = {}
    for user in range(log.num_users):
        own = [int(log.time[e]) for e in events if log.user[e] == user]
        while own:
            inside = [t for t in own if t - own[0] <= 50]
            expected[len(inside)] = expected.get(len(inside), 0) + 1
            own = own[len(inside) :]
    assert histogram == dict(sorted(expected.items()))


def test_bytes_are_those_of_the_columns():
    log = sequence_log(num_users=200, most_events=40)
    view = sequence_view(log)
    events = log.sample_events()
    rows = sumi_rows(log, events, 5)
    user, item, lists = row_bytes(view, rows)
    history = int(view.lengths(rows).sum())
    places = rows.size
    # Arrow pads each buffer to 64 bytes and describes each batch; offsets of lists are 4 bytes per row.
    assert user == pytest.approx(history * (4 + 1 + 2 + 8) + 4 * 4 * len(rows), rel=0.05)
    assert item == pytest.approx(places * (4 + 2 + 8 + 1) + 4 * 4 * len(rows), rel=0.1)
    assert lists == pytest.approx(places * 4 + 4 * len(rows), rel=0.1)


def test_plan():
    log = sequence_log(2, num_users=60, most_events=60, seconds=10_000)
    view = sequence_view(log)
    events = log.sample_events()
    config = ASTROConfig(**view.processor.model_config_values(), sequence_length=60)
    plan = plan_compression(view, events, config, degrees=(1, 2, 5, 10, 40))
    by_degree = {point.num_candidates: point for point in plan.points}
    assert by_degree[1].padded == 0
    assert by_degree[1].rows == plan.num_samples == len(events)
    assert by_degree[1].measured_ratio > 1  # a dependence list for nothing
    for point in plan.points:
        assert point.rows == point.rows_by_formula
        # Eq. 7 gives every row the mean history of a sample. A row keeps its longest, and padded rows are of users with few events.
        assert 0.5 * point.ratio < point.measured_ratio < 1.5 * point.ratio
    assert by_degree[5].measured_ratio < 0.5
    assert plan.best("ratio").num_candidates in (5, 10)
    assert plan.best("measured_flops").measured_flops == min(p.measured_flops for p in plan.points)
    assert plan.to_dict()["best_by_bytes"] == plan.best().num_candidates
    lengths = np.minimum(view.lengths(sumi_rows(log, events, 5)), 60)
    assert by_degree[5].measured_flops == pytest.approx(sum(3 * astro_flops(config, 5, n).total for n in lengths))
    some = plan_compression(view, events, config, degrees=[3], max_samples=200)
    assert 100 < some.num_samples <= 200
    assert math.isfinite(some.points[0].flops)
    for values, message in (({"degrees": []}, "degrees"), ({"degrees": [0]}, "degrees")):
        with pytest.raises(ValueError, match=message):
            plan_compression(view, events, config, **values)
    with pytest.raises(ValueError, match="no samples"):
        plan_compression(view, events[:0], config)
    with pytest.raises(ValueError, match="by: got"):
        plan.best("rows")
