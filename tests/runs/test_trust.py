"""What a folder made by others may do: run no code, reach no file outside, take no memory that its weights do not take."""

import json
import struct
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import lmctr
from lmctr.data.logs.text_encoders import TextRetriever
from lmctr.hub.model_card import write_card
from lmctr.runs.folder import open_run
from lmctr.runs.loading import load_run
from lmctr.utils.files import read_json, write_json
from lmctr.utils.integrity import sealed
from lmctr.utils.parquet import read_parquet


@pytest.fixture
def run(tmp_path):
    fields = [{"name": "ad", "type": "categorical"}, {"name": "price", "type": "numeric"}]
    processor = lmctr.TabularFeatureProcessor(fields, label=None)
    processor.fit([{"ad": f"a{number % 5}", "price": number} for number in range(50)])
    config = lmctr.DNNConfig(**processor.model_config_values(), embedding_dim=4, hidden_units=[8])
    path = tmp_path / "run"
    lmctr.DNNForCTR(config).save_pretrained(path)
    processor.save_pretrained(path)
    load_run(path)
    return path


def changed(path, **values):
    write_json(path, read_json(path) | values)


def test_weights_stay_in_the_folder(run, tmp_path):
    (run / "model.safetensors").rename(tmp_path / "outside.safetensors")
    names = load_file(tmp_path / "outside.safetensors")
    for place in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "weights.bin", 5):
        write_json(run / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(names, place)})
        with pytest.raises(ValueError, match=r"index.json: weight_map names .*same folder"):
            load_run(run)
    (run / "model.safetensors.index.json").unlink()
    (run / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is a link to .*outside.safetensors, outside the folder"):
        load_run(run)


def test_links_stay_in_the_folder(run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    for place in ("vocab.txt", "predictions/test.parquet", "retriever/encoder/config.json"):
        (run / place).parent.mkdir(parents=True, exist_ok=True)
        (run / place).symlink_to(secret)
        with pytest.raises(ValueError, match=r"is a link to .*secret"):
            open_run(run, "model")
        with pytest.raises(ValueError, match=r"is a link to .*secret"):
            open_run(run)  # which reports read
        (run / place).unlink()
    (run / "retriever" / "encoder").rmdir()
    (run / "retriever").rmdir()
    (run / "retriever").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="retriever is a link"):
        open_run(run, "model")
    (run / "retriever").unlink()
    (run / "inside").symlink_to(run / "config.json")
    (run / "checkpoints").symlink_to(tmp_path)  # the user's own disk for large files
    load_run(run)


def test_a_download_of_the_hub_is_links_to_its_blobs(run, tmp_path):
    blobs, snapshot = tmp_path / "models--u--n" / "blobs", tmp_path / "models--u--n" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(run.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    load_run(snapshot)
    (snapshot / "vocab.txt").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="outside the folder"):
        load_run(snapshot)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("preprocessor_config.json", "processor_class", "evil.Evil"),
        ("preprocessor_config.json", "feature_extractor_type", "SequenceProcessor"),
        ("config.json", "processor_class", "BertTokenizer"),
    ],
)
def test_processors_are_the_families_own(run, name, key, value):
    changed(run / name, **{key: value})
    with pytest.raises(ValueError, match=rf"{name}: {key} is '{value}'.*'TabularFeatureProcessor'"):
        load_run(run)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_sizes": [10**12]}, "describes a model of"),
        ({"embedding_dim": 10**9}, "describes a model of"),
        ({"hidden_units": [10**7, 10**7]}, "describes a model of"),
        ({"hidden_units": [8] * 300_000}, "more than .* modules"),
        ({"hidden_units": [10**15, 10**15]}, "config.json"),
        ({"hidden_units": []}, "config.json|weights"),
        ({"embedding_dim": "x"}, "config.json"),
    ],
)
def test_sizes_are_those_of_the_weights_before_memory_is_taken(run, values, message):
    changed(run / "config.json", **values)
    with pytest.raises(ValueError, match=message):
        load_run(run)


def test_a_card_tells_of_valid_configurations_alone(run):
    trees = {"trees": 1, "leaves": 2, "share": "x"}
    changed(run / "config.json", boosted_trees=trees)
    with pytest.raises(ValueError, match=r"config.json is no valid configuration: .*boosted_trees"):
        write_card(run)


def test_a_tokenizer_that_its_library_gives_up_is_an_error_of_the_folder(run, monkeypatch):
    """BPE merges that do not fit the vocabulary's prefix, for one, which Rust ends with an exception that is no `Exception`."""

    def merges(*args, **kwargs):
        tokenizer = {
            "model": {"type": "BPE", "continuing_subword_prefix": "xxxxxxxx", "vocab": {"a": 0, "b": 1, "ab": 2}}
        }
        tokenizer["model"]["merges"] = [["a", "b"]]
        return Tokenizer.from_str(json.dumps(tokenizer))

    monkeypatch.setattr("lmctr.runs.loading.AutoProcessor.from_pretrained", merges)
    with pytest.raises(ValueError, match="AutoProcessor cannot load the processor: range "):
        load_run(run)


def test_headers_are_bounded_and_agree(run):
    file = run / "model.safetensors"
    with open(file, "wb") as stream:
        stream.write(struct.pack("<Q", 10**9))
        stream.truncate(8 + 10**9)
    with pytest.raises(ValueError, match="a header of 1,000,000,000 bytes"):
        load_run(run)
    for shape in ([10**6], [-1], [1, 2]):
        header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        with pytest.raises(ValueError, match="the shape and the place of w in its header do not agree"):
            load_run(run)
    save_file({"w": np.zeros((0, 3), np.float16), "b": np.zeros(3, bool), "i": np.int64(3)[None]}, file)
    assert open_run(run, "model").num_parameters == {"w": 0, "b": 3, "i": 1}


@pytest.mark.parametrize(
    ("name", "entry"), [("../x", {"size": 1, "sha256": "0"}), ("/etc/passwd", 5), ("config.json", [])]
)
def test_lists_of_files_name_files_of_the_folder(run, name, entry):
    write_json(run / "lmctr_manifest.json", sealed({"files": {name: entry}}))
    with pytest.raises(ValueError, match=r"lmctr_manifest.json lists .*a file of the folder"):
        load_run(run)


def test_parquet_is_read_within_a_budget(tmp_path):
    path = tmp_path / "table.parquet"
    table = pa.table({"word": ["a", None, "bb"], "number": [1, 2, None], "list": [[1], [], None]})
    pq.write_table(table.replace_schema_metadata({"key": "value"}), path, row_group_size=2)
    assert read_parquet(path).equals(table)
    assert read_parquet(path).schema.metadata[b"key"] == b"value"
    pq.write_table(table.slice(0, 0), path)
    assert read_parquet(path).equals(table.slice(0, 0))
    word = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3000, np.int32)), ["x" * 10**6])  # 3 GB, written out
    pq.write_table(pa.table({"word": word}), path, store_schema=False)  # a column of texts for its reader
    assert path.stat().st_size < 2 * 10**6
    with pytest.raises(ValueError, match=r"table.parquet: its .* bytes stand for 3,000,000,000 or more"):
        read_parquet(path)
    pq.write_table(pa.table({"zero": pa.array(np.zeros(50_000_000, np.int8))}), path)
    with pytest.raises(ValueError, match=r"stand for 400,000,000 or more"):
        read_parquet(path)


def retriever(tmp_path, modules, **files):
    folder = tmp_path / "retriever"
    (folder / "encoder").mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "retriever.json",
        {"format_version": 1, "kind": "sentence-transformers", "batch_size": 8, "encoder": None},
    )
    (folder / "encoder" / "modules.json").write_text(json.dumps(modules))
    for name, text in files.items():
        (folder / "encoder" / name.replace("_py", ".py").replace("_json", ".json")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            [{"type": "evil.Evil", "path": ""}],
            r"modules.json: a module of the type 'evil.Evil'; accepted: Transformer",
        ),
        ([{"type": "sentence_transformers.util.evil", "path": ""}], "of the type 'sentence_transformers.util.evil'"),
        ([{"type": "sentence_transformers.models.Pooling", "path": "../../.."}], "of a module leaves the folder"),
        (["evil"], "a module of the type None"),
    ],
)
def test_encoders_are_of_the_librarys_modules(tmp_path, monkeypatch, modules, message):
    mark = tmp_path / "executed"
    folder = retriever(tmp_path, modules, evil_py=f"open({str(mark)!r}, 'w')\nclass Evil: pass")
    monkeypatch.syspath_prepend(str(folder / "encoder"))
    with pytest.raises(ValueError, match=message):
        TextRetriever.from_pretrained(folder)
    assert not mark.exists()
    assert "evil" not in sys.modules


def test_encoders_bring_no_code_and_lie_in_the_folder(tmp_path):
    module = {"type": "sentence_transformers.models.Transformer", "path": ""}
    folder = retriever(tmp_path, [module], config_json='{"auto_map": {"AutoModel": "evil.Evil"}}')
    with pytest.raises(ValueError, match=r"config.json: auto_map asks for code from the folder"):
        TextRetriever.from_pretrained(folder)
    for place in ("/etc", "../outside", "~/model", str(tmp_path)):
        changed(folder / "retriever.json", encoder=place)
        with pytest.raises(ValueError, match=r"retriever.json: encoder is .*outside the folder"):
            TextRetriever.from_pretrained(folder)


def test_older_encoders_libraries_are_refused(tmp_path, monkeypatch):
    library = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(library, "__version__", "5.1.2")
    folder = retriever(tmp_path, [{"type": "sentence_transformers.models.Transformer", "path": ""}])
    with pytest.raises(ValueError, match="sentence-transformers 6 or later, found 5"):
        TextRetriever.from_pretrained(folder)
