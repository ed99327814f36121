"""FLOPs and parameters counted from the modules that run: a text, a tabular and a sequence model."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from sequence_rows import sequence_log, sequence_view
from transformers import BertConfig, Qwen2Config

from lmctr import ASTROConfig, ASTROForCTR, CTRSinkConfig, CTRSinkForCTR, DNNConfig, DNNForCTR
from lmctr.models.families import families
from lmctr.scaling.flops import count_flops, count_parameters, mean_flops, measure_flops

HIDDEN, INNER, LAYERS, VOCAB = 16, 24, 2, 50


def text_model(backbone="bert", implementation="sdpa"):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    if backbone == "qwen2":
        sizes["num_key_value_heads"] = 2
    config = {"bert": BertConfig, "qwen2": Qwen2Config}[backbone](**sizes)
    model = CTRSinkForCTR(CTRSinkConfig(text_config=config.to_dict(), sink_kind="none"))
    model.set_attn_implementation(implementation)
    return model


def text_batch(rows=3, length=12):
    return {"input_ids": torch.randint(5, VOCAB, (rows, length)), "attention_mask": torch.ones(rows, length).long()}


def layers_by_hand(length):
    """Query, key, value, output; scores and values; the two products of the feed-forward network."""
    return LAYERS * (8 * HIDDEN**2 * length + 4 * HIDDEN * length**2 + 4 * HIDDEN * INNER * length)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_text_model(implementation):
    model = text_model(implementation=implementation)
    found = measure_flops(model, text_batch() | {"labels": torch.ones(3)})
    backbone = sum(flops for name, flops in found.modules.items() if "language_model" in name)
    pooler = 2 * HIDDEN**2 * 3 if getattr(model.model.language_model, "pooler", None) is not None else 0
    assert backbone == 3 * layers_by_hand(12) + pooler
    assert found.total >= backbone
    assert (found.num_samples, found.num_requests) == (3, 3)
    assert found.per_sample == found.per_request == found.total / 3
    tables = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    assert found.embedding_parameters == tables >= VOCAB * HIDDEN
    assert found.dense_parameters + tables == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("backbone", ["bert", "qwen2"])
def test_fused_attention_counts_as_much_as_eager(backbone):
    """Both passes; torch's own counter leaves the fused attention of the CPU out."""
    counts = []
    for implementation in ("sdpa", "eager"):
        model = text_model(backbone, implementation).eval()
        torch.manual_seed(1)
        batch = text_batch()
        counts.append((count_flops(model, batch), measure_flops(model, batch).total))
    assert counts[0] == counts[1]
    assert counts[0][0] == counts[0][1]


def test_tabular_model():
    config = DNNConfig(vocab_sizes=[7, 11], num_numeric=3, embedding_dim=4, hidden_units=[8, 6])
    model = DNNForCTR(config).train()
    batch = {"input_ids": torch.ones(5, 2).long(), "numeric_values": torch.rand(5, 3)}
    found = measure_flops(model, batch)
    assert found.per_sample == 2 * (5 * 4 * 8 + 8 * 6 + 6 * 1)
    assert found.total == 5 * found.per_sample == sum(found.modules.values()) - found.modules.get("model", 0)
    assert model.training
    assert found.embedding_parameters == (7 + 11) * 4
    assert measure_flops(model, batch, num_requests=1).per_request == found.total


def test_sequence_model_shares_the_history_between_candidates():
    config = ASTROConfig(
        hidden_size=16, num_hidden_layers=3, sequence_length=30, strategies=[{"name": "a"}, {"name": "b"}],
        task_names=["click", "like"],
    )  # fmt: skip
    model = ASTROForCTR(config)
    batches = []
    for candidates in (1, 7):
        batches.append(
            {
                "history_items": torch.randint(1, 50, (2, 40)),
                "candidate_items": torch.randint(1, 50, (2, candidates)),
                "history_times": torch.arange(40).expand(2, 40),
                "candidate_times": torch.full((2, candidates), 40),
            }
        )
    one, seven = (measure_flops(model, batch) for batch in batches)
    assert (one.num_samples, one.num_requests) == (2, 2)
    assert (seven.num_samples, seven.num_requests) == (14, 2)  # two tasks of a candidate are one sample
    assert one.per_sample == one.per_request
    assert seven.per_request < 7 * one.per_request
    assert seven.per_sample < one.per_sample


def test_a_tied_table_is_counted_once_and_as_embedding():
    table, output = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
    output.weight = table.weight
    assert count_parameters(torch.nn.Sequential(table, torch.nn.Linear(4, 4), output)) == (20, 40)


def test_bad_input():
    model = DNNForCTR(DNNConfig(vocab_sizes=[7], hidden_units=[4]))
    with pytest.raises(ValueError, match="inputs are empty"):
        measure_flops(model, {"labels": torch.ones(1)})
    with pytest.raises(ValueError, match="num_requests must be at least 1, got 0"):
        measure_flops(model, {"input_ids": torch.ones(1, 1).long()}, num_requests=0)


@pytest.mark.parametrize("name", [family.model_type for family in families("sequence")])
def test_the_mean_over_rows_of_each_sequence_family(name):
    view = sequence_view(sequence_log(num_users=8))
    family = next(family for family in families("sequence") if family.model_type == name)
    torch.manual_seed(0)
    model = family.load("ForCTR")(family.load("Config")(**view.processor.model_config_values())).train()
    rows = [view.batch(events) for events in np.array_split(view.log.sample_events(), 9)]
    model.eval()
    expected = sum(measure_flops(model, row).total for row in rows) / sum(len(row["labels"]) for row in rows)
    model.train()
    with mock.patch("lmctr.scaling.flops.measure_flops", side_effect=measure_flops) as whole:
        assert mean_flops(model, [(row, len(row["labels"])) for row in rows]) == expected
    assert whole.call_count == 1  # the others were counted by their shapes
    assert model.training


def test_products_that_no_function_shows_are_counted_all_the_same():
    class Direct(torch.nn.Module):
        def forward(self, x):
            return SimpleNamespace(logits=torch.ops.aten.mm.default(x, x.T)[:, 0])

    rows = [torch.ones(count, 3) for count in (2, 5, 4)]
    assert mean_flops(Direct(), [({"x": x}, len(x)) for x in rows]) == sum(6 * len(x) ** 2 for x in rows) / 11


def test_rows_of_the_same_shapes_run_twice_unless_a_model_reads_values():
    class Counted(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return SimpleNamespace(logits=(self.part(x) @ torch.ones(3, 2))[:, 0])

        def part(self, x):
            return x

    rows = [torch.full((2, 3), value) for value in (1.0, 1.0, 2.0, 1.0, 1.0)] + [torch.ones(4, 3)]
    pairs = [({"x": x}, len(x)) for x in rows]
    model = Counted()
    assert mean_flops(model, pairs) == 12
    assert model.calls == 4  # one is counted in full besides
    for part in (
        lambda x: x.repeat(int(x.max()), 1),
        lambda x: x.repeat(x[0, 0].long().tolist(), 1),
        lambda x: x[(x[:, 0] < 2) | (torch.arange(len(x)) == 0)],
        lambda x: x.new_ones(len(x[:, 0].unique()) + len((x[:, 0] > 1).nonzero()), 3),
    ):
        model = Counted()
        model.part = part
        expected = sum(measure_flops(model, inputs).total for inputs, _ in pairs) / 14
        model.calls = 0
        assert mean_flops(model, pairs) == expected
        assert model.calls == 7
