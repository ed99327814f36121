from lmctr.data.batches.impressions import ImpressionView as ImpressionView
from lmctr.data.batches.requests import RequestCollator as RequestCollator
from lmctr.data.batches.rows import RowCollator as _RowCollator
from lmctr.data.batches.rows import RowDataset as _RowDataset
from lmctr.data.batches.sequence import SequenceDataset as SequenceDataset
from lmctr.data.batches.sequence import SequenceView as SequenceView
from lmctr.data.batches.sequence import sumi_rows as sumi_rows
from lmctr.data.batches.tabular import TabularView as TabularView
from lmctr.data.batches.text import TextView as TextView
from lmctr.data.features.processor import TabularFeatureProcessor as TabularFeatureProcessor
from lmctr.data.impressions.source import ImpressionSource as ImpressionSource
from lmctr.data.impressions.store import ImpressionStore as ImpressionStore
from lmctr.data.logs.log import DatasetInfo as DatasetInfo
from lmctr.data.logs.log import InteractionLog as InteractionLog
from lmctr.data.logs.retrieval import Retrieval as Retrieval
from lmctr.data.logs.retrieval import build_retrieval as build_retrieval
from lmctr.data.logs.splits import Splits as Splits
from lmctr.data.logs.splits import split_log as split_log
from lmctr.data.logs.table import load_table as load_table
from lmctr.data.logs.table import log_from_table as log_from_table
from lmctr.data.logs.text_encoders import TextRetriever as TextRetriever
from lmctr.data.logs.validation import LeakageReport as LeakageReport
from lmctr.data.logs.validation import validate_histories as validate_histories
from lmctr.data.logs.validation import validate_log as validate_log
from lmctr.data.processors.impressions import ImpressionProcessor as ImpressionProcessor
from lmctr.data.processors.sequence import SequenceProcessor as SequenceProcessor
from lmctr.data.registry import load as load
from lmctr.data.registry import load_impressions as load_impressions
from lmctr.data.registry import load_log as load_log
from lmctr.data.registry import load_tabular as load_tabular
from lmctr.data.registry import register_dataset as register_dataset
from lmctr.data.synthetic.cascade import SyntheticCascade as SyntheticCascade
from lmctr.data.synthetic.cascade import synthetic_cascade as synthetic_cascade
from lmctr.data.synthetic.log import SyntheticLog as SyntheticLog
from lmctr.data.synthetic.log import synthetic_log as synthetic_log
from lmctr.data.synthetic.sequence import SyntheticSequenceLog as SyntheticSequenceLog
from lmctr.data.synthetic.sequence import synthetic_sequence_log as synthetic_sequence_log
from lmctr.data.synthetic.tables import SyntheticTable as SyntheticTable
from lmctr.data.synthetic.tables import synthetic_table as synthetic_table
from lmctr.data.tables.load import table_source as table_source
from lmctr.data.tables.source import TableSource as TableSource
from lmctr.data.tables.store import TabularStore as TabularStore

ImpressionCollator = _RowCollator
ImpressionDataset = _RowDataset
SequenceCollator = _RowCollator
TabularCollator = _RowCollator
TabularDataset = _RowDataset
TextCollator = _RowCollator
TextDataset = _RowDataset
