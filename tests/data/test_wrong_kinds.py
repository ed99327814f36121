"""Arguments of another kind than is asked for: an error that names them, where Python alone would name an attribute."""

import dataclasses

import numpy as np
import pytest
from sequence_rows import sequence_log

import lmctr
from lmctr.analysis import column_importance, measure_effective_rank
from lmctr.data import (
    InteractionLog,
    RequestCollator,
    SequenceCollator,
    SequenceDataset,
    SequenceView,
    TabularView,
    TextDataset,
    TextView,
    split_log,
    table_source,
    validate_log,
)
from lmctr.evaluation.metrics import grouped_auc
from lmctr.scaling.flops import measure_flops
from lmctr.serving import SplitRetrievalModel, scorer_for
from lmctr.statistics import ItemStatistics

LOG = sequence_log()
PROCESSOR = lmctr.SequenceProcessor.fit(LOG)
VIEW = SequenceView(LOG, PROCESSOR)
MODEL = lmctr.HSTUForCTR(lmctr.HSTUConfig(**PROCESSOR.model_config_values(), hidden_size=8, num_hidden_layers=1))
FIELDS = [{"name": "ad", "type": "categorical"}]
TABLE = lmctr.TabularFeatureProcessor(FIELDS).fit([{"ad": f"a{n % 3}", "label": n % 2} for n in range(12)])
REQUEST = {"history": [], "target": 100, "time": 3, "label": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_log("movielens"), "log: expected a value of the type InteractionLog, got str 'movielens'"),
        (lambda: split_log(LOG, fractions=None), "fractions: got None, accepted: three shares"),
        (
            lambda: split_log(LOG, fractions=["a", "b", "c"]),
            r"fractions: got \['a', 'b', 'c'\], accepted: three shares",
        ),
        (lambda: split_log(LOG, since="2020-01-01"), "since: got '2020-01-01', accepted: a unix second"),
        (lambda: validate_log(None), "log: expected a value of the type InteractionLog, got NoneType"),
        (lambda: validate_log(LOG, "time"), "splits: expected a value of the type Splits, got str 'time'"),
        (lambda: validate_log(LOG, allow=3), "allow: expected a value of the type Mapping, got int 3"),
        (
            lambda: SequenceView(PROCESSOR, LOG),
            "log: expected a value of the type InteractionLog, got SequenceProcessor",
        ),
        (lambda: SequenceView(LOG, None), "processor: expected a value of the type SequenceProcessor, got NoneType"),
        (lambda: TextView(PROCESSOR, LOG), "log: expected a value of the type InteractionLog, got SequenceProcessor"),
        (lambda: TextView(LOG, PROCESSOR), "processor: expected one of a text family, got SequenceProcessor"),
        (lambda: lmctr.data.load([1]), "name_or_path: got list .*, or a table by table_source"),
        (
            lambda: lmctr.SequenceProcessor.fit([3]),
            r"log: expected a value of the type InteractionLog, got list \[3\]",
        ),
        (
            lambda: InteractionLog.from_columns([1], [2], [3], None),
            "InteractionLog.from_columns: label is None; every log has it",
        ),
        (
            lambda: InteractionLog.from_columns([1], [2], [3], [1], catalogue={"title": ["x"]}),
            r"catalogue: no column 'item_id'; its columns are \['title'\]",
        ),
        (
            lambda: table_source(iter([{"a": 1}])),
            "data: a list_iterator can be read once, and a source is read several",
        ),
        (
            lambda: scorer_for(MODEL.base_model, PROCESSOR),
            "model: a HSTUModel has no head to score with; load it with",
        ),
        (lambda: SequenceDataset(LOG), "view: expected a value of the type SequenceView, got InteractionLog"),
        (lambda: SequenceDataset(VIEW, 3), r"events: expected a list of positions of events, got 3; give \[...\]"),
        (lambda: SequenceCollator(LOG), "view: expected a value of the type Batches, got InteractionLog"),
        (
            lambda: SequenceCollator(VIEW, "8"),
            "pad_to_multiple_of must be a whole number of at least 1, or None, got '8'",
        ),
        (
            lambda: SequenceCollator(VIEW, 2.5),
            "pad_to_multiple_of must be a whole number of at least 1, or None, got 2.5",
        ),
        (
            lambda: PROCESSOR([[]], None, times=[3]),
            "candidates: expected a list of candidates, one entry per row, got None",
        ),
        (lambda: RequestCollator(PROCESSOR)(None), "rows: expected a list of requests with their labels, got None"),
        (lambda: RequestCollator(PROCESSOR)([]), "rows: there are none"),
        (
            lambda: RequestCollator(PROCESSOR)([REQUEST | {"history": 3}]),
            "row 0 of the batch: history: expected a list",
        ),
        (lambda: TABLE.of_candidates(None, []), "shared: expected a value of the type Mapping, got NoneType"),
        (lambda: TABLE.of_candidates({}, None), "candidates: expected a list of dicts of columns, got None"),
        (
            lambda: TABLE.of_candidates({}, ["a1"]),
            r"candidates\[0\]: expected a value of the type Mapping, got str 'a1'",
        ),
        (lambda: lmctr.TabularFeatureProcessor(FIELDS, seed="a"), "seed='a'; accepted: a whole number from 0"),
        (lambda: lmctr.TabularFeatureProcessor(FIELDS, extra_labels=3), "extra_labels=3; accepted: a list of columns"),
        (lambda: lmctr.CTRSinkProcessor(None, sink_signal=3), "sink_signal: expected a list of names, got 3"),
        (lambda: lmctr.CTRSinkProcessor(None, sink_signal=[1]), r"sink_signal=\[1\] is not accepted; use one of"),
        (lambda: lmctr.CTRSinkProcessor(None, value_levels=3), "value_levels: expected a list of numbers, got 3"),
        (
            lambda: lmctr.CTRSinkProcessor(None, feedback_labels=3),
            "feedback_labels: expected a list of numbers, got 3",
        ),
        (
            lambda: lmctr.CTRSinkProcessor(None, statistic_bounds="a"),
            "statistic_bounds: expected a value of the type Map",
        ),
        (
            lambda: dataclasses.replace(LOG, item=[1]),
            "InteractionLog.item: expected a value of the type ndarray, got list",
        ),
        (
            lambda: dataclasses.replace(LOG, catalogue=None),
            "InteractionLog.catalogue: expected a value of the type Table",
        ),
        (
            lambda: dataclasses.replace(LOG, users={}),
            "InteractionLog.users: expected a value of the type Table, got dict",
        ),
        (lambda: lmctr.serving.UserState(MODEL, PROCESSOR).save(None), "path: expected a path, .* got NoneType None"),
        (lambda: lmctr.serving.UserState.load(3, MODEL, PROCESSOR), "path: expected a path, .* got int 3"),
        (lambda: ItemStatistics.load(None), "path: expected a path, as a text or a Path, got NoneType None"),
        (lambda: SplitRetrievalModel.from_pretrained(None), "folder: expected a path, .* got NoneType None"),
        (lambda: table_source({}, labels=3), "labels=3; accepted: a list of label columns"),
        (lambda: table_source({}, na_values=3), "na_values=3; accepted: a list of texts"),
        (lambda: table_source({}, fractions=0.8), "fractions: got 0.8, accepted: three shares"),
        (lambda: scorer_for(MODEL, None), "processor: expected a value of the type SequenceProcessor, got NoneType"),
        (lambda: scorer_for(MODEL, TABLE), "processor: expected a value of the type SequenceProcessor, got Tabular"),
        (lambda: lmctr.runs.Run("runs/din"), "Run: got 'runs/din'; lmctr.runs.load opens a run by its folder"),
        (lambda: lmctr.runs.evaluate("x", predictions=3), "predictions: got 3, accepted: a path, or None"),
        (lambda: lmctr.runs.evaluate("x", slices="a"), "slices: got 'a', accepted: a list, or None"),
        (lambda: TabularView(VIEW), "store: expected a value of the type ArrayStore, got SequenceView"),
        (lambda: TextDataset(None), "view: expected a value of the type Batches, got NoneType"),
        (lambda: column_importance(MODEL, LOG, [0]), "view: expected a value of the type Batches, got InteractionLog"),
        (lambda: measure_flops({}, MODEL), "model: expected a value of the type Module, got dict"),
        (lambda: measure_flops(MODEL, [3]), r"inputs: expected a value of the type Mapping, got list \[3\]"),
        (
            lambda: measure_effective_rank(MODEL, VIEW.batch([0]), points={"head": MODEL.head}),
            r"batches: got one batch, of history_items, .*; accepted: several, \[batch\] for one",
        ),
        (
            lambda: measure_effective_rank(MODEL, [3], points={"head": MODEL.head}),
            "batches: expected a value of the type Mapping, got int 3",
        ),
        (lambda: grouped_auc([0, 1], [0.1, 0.2], ["u1", None]), "groups is None at row 1: every sample needs a group"),
        (lambda: grouped_auc([0, 1], [0.1, 0.2], [np.nan, 3]), "groups is NaN at row 0: every sample needs a group"),
        (
            lambda: PROCESSOR([[]], [[100]], times=np.array([1_700_000_500], np.float32)),
            "time: float32 cannot hold unix times to the second; use int64 or float64 numbers",
        ),
    ],
)
def test_what_is_of_another_kind_is_named(call, message):
    with pytest.raises(ValueError, match=f"(^| ){message}"):
        call()


def test_numbers_of_numpy_are_numbers():
    assert SequenceCollator(VIEW, np.int64(8)).pad_to_multiple_of == 8
    assert len(split_log(LOG, fractions=(0.9, 0.1, 0), since=np.int64(0)).train)
