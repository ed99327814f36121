"""Import paths of 0.1.0 that users may have."""

import importlib
import sys

import pytest
import warm

import lmctr
from lmctr import _moved

OLD = [
    "cli.analyze_sequence",
    "cli.analyze_tabular",
    "cli.answers",
    "cli.benchmark_features",
    "cli.benchmark_retrieval",
    "cli.benchmark_scoring",
    "cli.benchmark_sequence",
    "cli.benchmark_tabular",
    "cli.benchmark_text",
    "cli.benchmark_tools",
    "cli.benchmark_train",
    "cli.compare",
    "cli.grid_baselines",
    "cli.grid_file",
    "cli.grid_report",
    "cli.grid_run",
    "cli.grid_state",
    "cli.predict_events",
    "cli.predict_impressions",
    "cli.predict_table",
    "cli.progress",
    "cli.recipe",
    "cli.requests",
    "cli.runs",
    "cli.scaling_allocate",
    "cli.scaling_cost",
    "cli.scaling_design",
    "cli.scaling_fit",
    "cli.scaling_flops",
    "cli.scaling_ladder",
    "cli.scaling_ladder_file",
    "cli.scaling_ladder_report",
    "cli.scaling_models",
    "cli.scaling_revenue",
    "cli.scaling_sumi",
    "cli.scaling_tables",
    "cli.views",
    "cli.views.base",
    "cli.views.impressions",
    "cli.views.logs",
    "cli.views.sequence",
    "cli.views.stored",
    "cli.views.tabular",
    "cli.views.text",
    "cli.views.text_build",
    "configuration_utils",
    "data.builders.reading",
    "data.builders.schema",
    "data.builders.table",
    "data.builders.tabular_files",
    "data.collators",
    "data.columns",
    "data.features_columns",
    "data.features_fields",
    "data.features_files",
    "data.features_fit",
    "data.features_transform",
    "data.features_vocabulary",
    "data.impressions_processor",
    "data.impressions_source",
    "data.impressions_view",
    "data.log",
    "data.retrieval",
    "data.sequence",
    "data.sequence_processor",
    "data.splits",
    "data.store_view",
    "data.synthetic_cascade",
    "data.synthetic_sequence",
    "data.synthetic_tables",
    "data.table_store",
    "data.tabular",
    "data.tabular_reading",
    "data.tabular_source",
    "data.tabular_view",
    "data.text",
    "data.text_encoders",
    "data.validation",
    "hub.loading",
    "hub.reference",
    "hub.run_folder",
    "modeling_embeddings",
    "modeling_impressions",
    "modeling_layers",
    "modeling_outputs",
    "modeling_ranking_losses",
    "modeling_retrieval",
    "modeling_sequence",
    "modeling_tabular",
    "modeling_target_attention",
    "modeling_tokens",
    "modeling_utils",
]


@pytest.fixture
def fresh():
    """Forgets old paths, so that each import is a first one."""
    for name in OLD:
        sys.modules.pop(f"lmctr.{name}", None)


@pytest.mark.parametrize("old", OLD)
@pytest.mark.usefixtures("fresh")
def test_an_old_path_is_the_module_of_today(old):
    new = _moved._new_path(f"lmctr.{old}")
    today = importlib.import_module(new)
    spec = today.__spec__
    with pytest.warns(DeprecationWarning, match=rf"lmctr\.{old} is now {new}"):
        found = importlib.import_module(f"lmctr.{old}")
    assert found is today
    assert found.__name__ == new
    assert found.__spec__ is spec
    assert spec.name == new


@pytest.mark.parametrize(
    ("package", "name", "module"),
    [
        ("features", "TabularFeatureProcessor", "features.processor"),
        ("impressions", "ImpressionBlock", "impressions.store"),
        ("impressions", "ImpressionCollator", "batches.impressions"),
        ("impressions", "ImpressionDataset", "batches.impressions"),
        ("impressions", "ImpressionSource", "impressions.store"),
        ("impressions", "ImpressionStore", "impressions.store"),
        ("impressions", "ImpressionView", "batches.impressions"),
        ("impressions", "load_impressions", "registry"),
        ("synthetic", "SyntheticTruth", "synthetic.log"),
        ("synthetic", "synthetic_log", "synthetic.log"),
    ],
)
def test_names_of_modules_that_are_packages_now(package, name, module):
    old = importlib.import_module(f"lmctr.data.{package}")
    with pytest.warns(DeprecationWarning, match=rf"lmctr\.data\.{package}\.{name} is now in lmctr\.data\.{module};"):
        found = getattr(old, name)
    assert found is getattr(importlib.import_module(f"lmctr.data.{module}"), name)
    assert found is getattr(lmctr.data, name, found)


def test_a_name_that_no_module_of_a_package_had():
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from lmctr.data.synthetic import nothing  # noqa: F401


def test_names_out_of_an_old_module_are_the_same():
    code = (
        "import warnings; warnings.simplefilter('ignore'); "
        "from lmctr.modeling_embeddings import FieldEmbedding as old; from lmctr.cli.views.text_build import scratch_text_config; "
        "import lmctr.data.sequence_processor; "
        "from lmctr.models.common.embeddings import FieldEmbedding as new; import lmctr; import sys; "
        "print(old is new, lmctr.data.sequence_processor.SequenceProcessor is lmctr.SequenceProcessor, "
        "[name for name in sys.modules if name.startswith('lmctr.cli.views')], 'lmctr.runs.inputs.text_build' in sys.modules)"
    )
    done = warm.fresh(code)
    assert done.stdout.split("\n")[0] == "True True ['lmctr.cli.views', 'lmctr.cli.views.text_build'] True", (
        done.stderr
    )


@pytest.mark.parametrize("name", ["lmctr.modeling_nothing", "lmctr.data.nothing", "lmctr.cli.scaling_nothing"])
def test_a_path_that_never_was_is_an_error(name):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        importlib.import_module(name)


def test_the_package_itself_uses_no_old_path():
    code = (
        "import importlib, pkgutil, warnings, lmctr; warnings.filterwarnings('error', message='lmctr')\n"
        "names = [module.name for module in pkgutil.walk_packages(lmctr.__path__, 'lmctr.')]\n"
        "print(all(map(importlib.import_module, names)), len(names) > 100)"
    )
    done = warm.fresh(code)
    assert done.stdout.strip() == "True True", done.stderr[-2000:]
