"""Elements of the layout "split" against the plain-Python reference, and from the processor through to a score."""

import numpy as np
import pytest
import torch
from ctr_sink_reference import sample
from test_processing import VARIANTS, as_input, history_of
from text_tokenizers import KINDS, make
from tiny_models import sink_config

from lmctr import AutoModelForCTR, CTRSinkForCTR
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.split_layout import FieldCache

BARE = {"name": "bare", "language": "en", "item": "{title}", "head": "", "separator": "", "target": "{item}?"}


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: make(kind) for kind in KINDS}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [*VARIANTS, {"max_length": 60}, {"prompt": BARE}], ids=str)
def test_field_ids_number_the_elements(tokenizers, kind, options, side):
    processor, single = (
        CTRSinkProcessor(tokenizers[kind], num_behaviors=4, layout=layout, **options) for layout in ("split", "single")
    )
    for one in (processor, single):
        one.tokenizer.padding_side = side
    rng = np.random.default_rng(0)
    histories = [history_of(rng, n, processor.feedback == "groups") for n in (0, 1, 3, 4, 5, 12)]
    targets = ["Heat (1995)", None, "Toy Story", "Alien", "Casino", "Heat"]
    times = [10**8 + i for i in range(6)]
    call = {"histories": [as_input(h) for h in histories], "targets": [{"text": t} for t in targets], "times": times}
    batch, plain = processor(**call), single(**call)
    assert sorted(batch) == sorted([*plain, "field_ids"]) == sorted(processor.model_input_names)
    assert all(torch.equal(batch[key], plain[key]) for key in plain)
    most = int(batch["field_ids"].max()) + 1
    assert processor.max_elements - most in (0, 1)  # 1: without a last sink, or without an opening
    assert single.max_elements is None
    for row in range(6):
        elements = []
        sample(
            processor.tokenizer,
            processor.prompt.to_dict(),
            histories[row],
            targets[row],
            times[row],
            sink_id=processor.settings.sink_id,
            num_behaviors=4,
            order=processor.sink_order,
            signals=processor.signals,
            num_buckets=processor.num_sink_buckets,
            feedback=processor.feedback,
            trailing_sink=processor.trailing_sink,
            max_length=processor.effective_max_length,
            elements=elements,
        )
        real = batch["attention_mask"][row].bool()
        expected = [number for number, length in enumerate(elements) for _ in range(length)]
        assert batch["field_ids"][row][real].tolist() == expected
        assert (batch["field_ids"][row][~real] == -1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"feedback": "groups"}, {"feedback": "inline"}], ids=str)
def test_texts_are_scored_alike_from_tokens_and_from_a_saved_processor_and_a_cache(
    tokenizers, kind, options, tmp_path
):
    backbone = {"bert": "bert", "roberta": "roberta", "qwen": "qwen2"}[kind]
    torch.manual_seed(0)
    config = sink_config(backbone, layout="split", num_sink_buckets=100)
    config.text_config.vocab_size, config.text_config.max_position_embeddings = 600, 400
    CTRSinkForCTR(config).save_pretrained(tmp_path)
    CTRSinkProcessor(tokenizers[kind], num_behaviors=4, layout="split", **options).save_pretrained(tmp_path)
    processor, model = CTRSinkProcessor.from_pretrained(tmp_path), AutoModelForCTR.from_pretrained(tmp_path)
    assert processor.layout == model.config.layout == "split"
    rng = np.random.default_rng(1)
    histories = [as_input(history_of(rng, n, known_feedback=True)) for n in (0, 2, 9)]
    batch = processor(histories=histories, targets=["Heat", "Alien", "Casino"], times=[10**8] * 3)
    with torch.no_grad():
        together = model(**batch).logits
        for row in range(3):
            alone = processor(
                histories=histories[row : row + 1], targets=[["Heat", "Alien", "Casino"][row]], times=[10**8]
            )
            torch.testing.assert_close(model(**alone).logits[0], together[row], atol=1e-5, rtol=0)
        cache = FieldCache(model)
        torch.testing.assert_close(model(**cache(**batch)).logits, together, atol=1e-5, rtol=0)
        known = len(cache)
        candidates = processor(histories=[histories[2]] * 3, targets=["Heat", "Alien", "Casino"], times=[10**8] * 3)
        assert len(set(model(**cache(**candidates)).logits.tolist())) == 3
        assert len(cache) == known  # every behaviour and candidate was encoded before


def test_unknown_layout(tokenizers):
    with pytest.raises(ValueError, match="layout='both' is not accepted; use one of single, split, fields"):
        CTRSinkProcessor(tokenizers["bert"], layout="both")
