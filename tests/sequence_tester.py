"""What every rival sequence family passes on top of the common suite."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from sequence_rows import random_batch, sequence_log, sequence_view, single_batches

from lmctr.data import SequenceDataset

CONFIG = {
    "item_vocab_size": 30,
    "behavior_names": ["unknown", "full-play", "like"],
    "num_scenarios": 3,
    "scenario_names": ["home", "search", "radio"],
    "initializer_range": 0.3,
}


class SequenceModelTesterMixin(CTRModelTesterMixin):
    """Subclasses give `tiny` (config values) and `switches`; `attention_heads(config)` is the second axis of the attentions."""

    tiny: dict = {}
    switches: dict = {}
    processor_options: dict = {}  # of the processor for the features in `switches`

    def make_config(self, **values):
        return self.config_class(**(CONFIG | self.tiny | self.switches | values))

    def make_batch(self, config, seed=0):
        batch = random_batch(config, seed)
        batch["labels"] = torch.tensor([1.0, 0.0, 1.0])
        return batch

    def attention_heads(self, config):
        return config.num_attention_heads

    def make_model(self, **values):
        """Parameters that start at 0 or 1 are moved, so that tests see them."""
        model = super().make_model(**values)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1 or not parameter.any():
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return model

    def check_loops(self, logit, **values):
        """The logits of three rows of three candidates against `logit(model, weights, batch, row, candidate)`; gives model and batch."""
        model = self.make_model(task_names=["click", "like"], **values)
        w = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
        batch = random_batch(model.config, num_candidates=3)
        batch["dependence"][:] = torch.tensor([[9, 5, 0], [6, 1, 3], [1, 0, 1]])
        expected = np.array([[logit(model, w, batch, row, c) for c in range(3)] for row in range(3)])
        found = self.logits(model.double(), batch).double()
        torch.testing.assert_close(found, torch.tensor(expected), atol=2e-6, rtol=1e-5)
        return model, batch

    @pytest.mark.parametrize("name", ["history_items", "candidate_items"])
    def test_items_that_are_missing(self, name):
        model = self.make_model()
        with pytest.raises(ValueError, match=f"{name} is missing"):
            model(**self.make_batch(model.config) | {name: None})

    def test_small_integers(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        names = [name for name in batch if name.endswith("features")] + [
            "dependence",
            "history_items",
            "candidate_items",
        ]
        small = {name: batch[name].to(torch.uint8) for name in names}
        assert torch.equal(self.logits(model, batch | small), self.logits(model, batch))

    def test_sumi_rows_equal_single_rows(self):
        """A candidate's logit equals that of its own row: the row's start, the history cut at the candidate's dependence."""
        for seed in range(6):
            log = sequence_log(seed, most_events=12)
            view = sequence_view(log, max_history_length=[None, 5][seed % 2], **self.processor_options)
            sizes = {key: value for key, value in view.processor.model_config_values().items() if "vocab_size" in key}
            model = self.make_model(**sizes)
            batch = view.batch(SequenceDataset(view, log.sample_events(), 4).rows)
            del batch["labels"]
            if model.config.num_statistics:
                batch["statistics"] = torch.randn(*batch["candidate_items"].shape, model.config.num_statistics)
            together = self.logits(model, batch)
            for rows, candidates, singles in single_batches(batch):
                alone = self.logits(model, singles)
                torch.testing.assert_close(alone, together[rows, candidates], atol=1e-5, rtol=0)

    def test_statistics_reach_the_logits_past_the_network_too(self, tmp_path):
        """The skip adds its product; it starts at zero, so that a checkpoint of a model without it is the same model."""
        values = {"num_statistics": 2, "task_names": ["click", "like"]}
        without = self.make_model(**values, use_statistics_skip=False)
        assert not any("statistics_skip" in name for name, _ in without.named_parameters())
        without.config.use_statistics_skip = True
        without.save_pretrained(tmp_path)
        model, info = type(without).from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"]
        assert not model.eval().statistics_skip.weight.any()
        batch = random_batch(model.config, num_candidates=4)
        del batch["labels"]
        before = self.logits(without, batch)
        assert torch.equal(self.logits(model, batch), before)
        weight = torch.tensor([[0.5, -2.0], [3.0, 0.25]])
        with torch.no_grad():
            model.statistics_skip.weight.copy_(weight)
        added = (batch["statistics"].double() @ weight.double().T).float()
        torch.testing.assert_close(self.logits(model, batch), before + added, atol=1e-5, rtol=0)

    def test_no_candidate_sees_another(self):
        model = self.make_model()
        batch = random_batch(model.config, num_candidates=4)
        changed = {k: v.clone() for k, v in batch.items()}
        changed["candidate_items"][:, 1] = (changed["candidate_items"][:, 1] + 3) % 20 + 2
        before, after = self.logits(model, batch), self.logits(model, changed)
        assert (before[:, 1] != after[:, 1]).all()
        torch.testing.assert_close(before[:, [0, 2, 3]], after[:, [0, 2, 3]], atol=1e-6, rtol=0)

    @pytest.mark.parametrize("key", ["history_items", "history_behaviors", "history_times"])
    def test_only_events_within_the_dependence_count(self, key):
        model = self.make_model()
        batch = random_batch(model.config, num_rows=1, num_candidates=2)
        batch["dependence"][:] = torch.tensor([[4, 9]])
        changed = {k: v.clone() for k, v in batch.items()}
        move = {"history_items": lambda x: x % 20 + 3, "history_behaviors": lambda x: (x + 1) % 3}
        changed[key][:, 4:] = move.get(key, lambda x: x.max().expand_as(x))(changed[key][:, 4:])
        before, after = self.logits(model, batch), self.logits(model, changed)
        torch.testing.assert_close(before[:, 0], after[:, 0], atol=1e-6, rtol=0)
        if key in self.reads:
            assert before[0, 1] != after[0, 1]
        else:
            assert before[0, 1] == after[0, 1]

    reads = ("history_items", "history_behaviors", "history_times")

    def test_padding_changes_nothing(self):
        model = self.make_model()
        batch = random_batch(model.config, num_candidates=3)
        padded = {
            k: torch.cat([v, v[:, :1].repeat(1, 4, *[1] * (v.dim() - 2)) * 0], 1) if k.startswith("history") else v
            for k, v in batch.items()
        }
        torch.testing.assert_close(self.logits(model, padded), self.logits(model, batch), atol=1e-5, rtol=0)

    def test_rows_without_events(self):
        model = self.make_model()
        batch = random_batch(model.config, num_candidates=3)
        batch["dependence"][:] = 0
        expected = self.logits(model, batch)
        assert torch.isfinite(expected).all()
        for width in (0, 2):
            empty = {k: v[:, :width] * 0 if k.startswith("history") else v for k, v in batch.items()}
            torch.testing.assert_close(self.logits(model, empty), expected, atol=1e-5, rtol=0)
        model.train()
        model(**empty).loss.backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())

    def test_shapes(self):
        model = self.make_model(task_names=["click", "like"])
        batch = random_batch(model.config, num_candidates=4)
        batch["labels"] = batch["labels"][..., None].expand(-1, -1, 2)
        output = model(**batch, output_hidden_states=True, output_attentions=True)
        assert output.logits.shape == (3, 4, 2)
        assert torch.isfinite(output.loss)
        for states in output.hidden_states:
            assert states.shape[:2] == (3, 4)
        batch["dependence"][:] = torch.tensor([0, 2, 4, 9])[None].minimum(
            (batch["history_items"] != 0).sum(1)[:, None]
        )
        del batch["labels"]
        output = model(**batch, output_attentions=True)
        for attention in output.attentions:
            assert attention.shape == (3, self.attention_heads(model.config), 4, 10)
            place = torch.arange(9)
            hidden = (place >= batch["dependence"][..., None])[:, None].expand_as(attention[..., :-1])
            assert (attention[..., :-1][hidden] == 0).all()
            assert (attention[:, :, 2, :2] != 0).any()
