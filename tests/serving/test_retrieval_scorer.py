"""`lmctr.serving.score` of the retrieval families: from columns of a user and of ads to the model's logits."""

import gc

import pytest
import torch

from lmctr import RetrievalMLPConfig, RetrievalMLPForCTR, TwoTowerConfig, TwoTowerForCTR
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.synthetic.cascade import synthetic_cascade
from lmctr.serving import UserState, score
from lmctr.serving.retrieval import _SPLITS

FAMILIES = {
    "retrieval_mlp": (RetrievalMLPConfig, RetrievalMLPForCTR),
    "two_tower": (TwoTowerConfig, TwoTowerForCTR),
}


@pytest.fixture(scope="module")
def cascade():
    sizes = {"num_matched": 30, "num_preranked": 20, "num_ranked": 8, "ads_per_impression": 6}
    source = synthetic_cascade(40, 20, 60, **sizes)
    processor = ImpressionProcessor(source.user_fields, source.ad_fields).fit(source)
    block = next(iter(source.blocks("train")))
    return processor, block.users.to_pylist(), block.ads.to_pylist()


@pytest.fixture(params=FAMILIES)
def model(request, cascade):
    config, model = FAMILIES[request.param]
    torch.manual_seed(0)
    values = cascade[0].model_config_values()
    return model(config(**values, embedding_dim=4, hidden_units=[12, 8], initializer_range=0.5)).train()


def logits_of(model, processor, user, ads):
    with torch.no_grad():
        return model.eval()(**processor(users=[user], ads=[ads])).logits[0]


def test_scores_are_the_models(model, cascade):
    processor, users, ads = cascade
    ads = ads[:9]
    found = score(model, processor, [users[0]], ads, time=0)
    assert model.training
    expected = logits_of(model, processor, users[0], ads)
    assert expected.std() > 0.03
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for size in (1, 4, 9):
        blocks = score(model, processor, [users[0]], ads, time=0, max_tokens=size)
        torch.testing.assert_close(blocks, expected, atol=1e-5, rtol=0)
    assert score(model, processor, [users[0]], [], time=0).shape == (0,)


def test_it_follows_the_model(model, cascade):
    """After a training step (weights), a forward pass in training mode (running statistics only), and a change of the table."""
    processor, users, ads = cascade
    user, ads = users[1], ads[:5]
    inputs = processor(users=users[:4], ads=[ads] * 4)
    seen = [score(model, processor, [user], ads, time=0)]
    held = _SPLITS[model][1]
    assert torch.equal(score(model, processor, [user], ads, time=0), seen[0])
    assert _SPLITS[model][1] is held
    with torch.no_grad():
        next(iter(model.head.parameters())).mul_(1.5)
    seen.append(score(model, processor, [user], ads, time=0))
    with torch.no_grad():
        model.train()(**inputs)
    seen.append(score(model, processor, [user], ads, time=0))
    with torch.no_grad():
        model.model.embedding.table.weight.add_(torch.randn_like(model.model.embedding.table.weight))
    seen.append(score(model, processor, [user], ads, time=0))
    for one, two in zip(seen, seen[1:]):  # noqa: RUF007
        assert (one != two).any()
    torch.testing.assert_close(seen[-1], logits_of(model, processor, user, ads), atol=1e-5, rtol=0)


def test_a_forgotten_model_is_freed(cascade):
    processor, users, ads = cascade
    model = RetrievalMLPForCTR(RetrievalMLPConfig(**processor.model_config_values(), hidden_units=[4]))
    gc.collect()
    before = len(_SPLITS)
    score(model, processor, [users[0]], ads[:2], time=0)
    assert len(_SPLITS) == before + 1
    del model
    gc.collect()
    assert len(_SPLITS) == before


def test_bad_requests(model, cascade):
    processor, users, ads = cascade
    for history, candidates, options, message in (
        ([], ads[:2], {}, "history: expected one dict, the user's columns, got 0"),
        (users[:2], ads[:2], {}, "got 2 entries"),
        (users[:1], ["17"], {}, r"candidates\[0\]: expected a dict of the ad's columns, got '17'"),
        (users[:1], ads[:1], {"similarity": [[1.0]]}, "similarity: "),
    ):
        with pytest.raises(ValueError, match=message):
            score(model, processor, history, candidates, time=0, **options)
    with pytest.raises(ValueError, match="no state to keep of a user"):
        UserState(model, processor, users[:1])
