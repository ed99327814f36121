"""DLRMTwin: the common suite, and its equations against a plain float64 reference."""

import numpy as np
import pytest
import torch
from sequence_rows import random_batch, statistics_logits
from sequence_tester import SequenceModelTesterMixin
from twin_reference import context, mlp, query_of, twin_interest, visible, weights_of

from lmctr import DLRMTwinConfig, DLRMTwinForCTR, DLRMTwinModel
from lmctr.models.common.sequence import sequence_inputs
from lmctr.models.dlrm_twin.modeling_dlrm_twin import history_statistics


class DLRMTwinTester(SequenceModelTesterMixin):
    config_class, model_class, base_class = DLRMTwinConfig, DLRMTwinForCTR, DLRMTwinModel
    changing_key = ("statistics_hidden_sizes", [7])
    tiny = {"hidden_size": 16, "num_attention_heads": 2, "cross_dim": 4, "num_time_buckets": 6, "num_selected": 50,
            "statistics_hidden_sizes": [8], "head_hidden_sizes": [12, 8]}  # fmt: skip


class TestDLRMTwin(DLRMTwinTester):
    pass


class TestWithFeatures(DLRMTwinTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "user_feature_vocab_sizes": [3], "num_statistics": 2,
                "use_history_statistics": False, "num_selected": 4}  # fmt: skip
    processor_options = {"item_features": ["genres", "year"], "user_features": ["country"]}

    def test_shapes(self):  # every visible event has a weight where all are kept
        self.switches = self.switches | {"num_selected": 50, "num_statistics": 0, "use_history_statistics": True}
        super().test_shapes()


def counted(batch, row, candidate, num_behaviors):
    seen, same = [0] * num_behaviors, [0] * num_behaviors
    item = int(batch["candidate_items"][row, candidate])
    for n in range(int(batch["dependence"][row, candidate])):
        kind = int(batch["history_behaviors"][row, n])
        seen[kind] += 1
        same[kind] += item != 1 and item == int(batch["history_items"][row, n])
    return seen + same


def many_repeats(config, **values):
    """A batch in which candidates occur in the histories, one of them out of vocabulary."""
    batch = random_batch(config, num_candidates=3, **values)
    batch["history_items"] = torch.where(batch["history_items"] > 0, batch["history_items"] % 3 + 1, 0)
    batch["candidate_items"][:] = torch.tensor([1, 2, 3])
    batch["dependence"][:] = torch.tensor([[9, 5, 9], [6, 1, 3], [1, 0, 1]])
    return batch


def test_a_reentrant_checkpoint_of_inputs_alone_trains_its_layer():
    """The network of statistics reads no vector: torch's reentrant checkpoint would leave its weights without a gradient."""
    models = [TestDLRMTwin().make_model().train() for _ in range(2)]
    models[1].gradient_checkpointing_enable({"use_reentrant": True})
    for model in models:
        model(**random_batch(model.config)).loss.backward()
    for (name, one), two in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-6, rtol=1e-4, msg=name)


def test_statistics_of_the_history():
    config = DLRMTwinTester().make_config()
    batch = many_repeats(config)
    expected = [[counted(batch, row, c, 3) for c in range(3)] for row in range(3)]
    del batch["labels"]
    found = history_statistics(sequence_inputs(config, **batch), 3)
    assert found.tolist() == expected
    assert found[:, 0, 3:].sum() == 0
    assert found[:, 1:, 3:].sum() > 3


@pytest.mark.parametrize("switches", [
    {}, TestWithFeatures.switches, TestWithFeatures.switches | {"use_history_statistics": True, "num_selected": 2},
], ids=str)  # fmt: skip
def test_against_the_reference(switches):
    model = DLRMTwinTester().make_model(task_names=["click", "like"], **switches)
    config, w = model.config, weights_of(model)
    batch = many_repeats(config)
    expected = []
    for row in range(3):
        for c in range(3):
            query = query_of(batch, w, row, c)
            interest, _ = twin_interest(
                w, config, query, visible(batch, w, row, c), int(batch["candidate_times"][row, c])
            )
            values = batch["statistics"][row, c].double().tolist() if "statistics" in batch else []
            values += counted(batch, row, c, 3) if config.use_history_statistics else []
            values = np.array([np.sign(x) * np.log(1 + abs(x)) for x in values])
            values = mlp(w, "model.statistics", values, len(config.statistics_hidden_sizes) + 1)
            x = np.concatenate([interest, query, values, *context(batch, w, row, c)])
            x = mlp(w, "model.mlp", x, len(config.head_hidden_sizes))
            expected.append(w["head.weight"] @ x + w["head.bias"] + statistics_logits(w, batch, row, c))
    found = DLRMTwinTester().logits(model.double(), batch).double()
    torch.testing.assert_close(found, torch.tensor(np.array(expected)).view(3, 3, 2), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("values", [
    {"use_history_statistics": False}, {"statistics_hidden_sizes": [0]}, {"cross_dim": 0}, {"hidden_act": "rel"},
])  # fmt: skip
def test_bad_configurations(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        DLRMTwinConfig(**values)
