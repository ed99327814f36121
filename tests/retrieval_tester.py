"""What every retrieval family passes on top of the common suite, with impressions as inputs; plain float64 references."""

import math

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin

FIELDS = {
    "user_vocab_sizes": [6, 4],
    "user_num_numeric": 2,
    "user_num_sequences": 2,
    "user_sequence_tables": [2, 4],  # the first field of the ad, a vocabulary of its own
    "user_sequence_vocab_sizes": [7],
    "ad_vocab_sizes": [8, 5],
    "ad_num_numeric": 3,
    "embedding_dim": 3,
    "hidden_units": [8, 6],
    "initializer_range": 0.5,
    "arf_top_m": 3,
    "positive_from": 3,
}
LOSSES = ("arf", "bce", "pairwise", "list")
COUNTS = (5, 2, 1, 4)


def make_batch(config, seed=0, counts=COUNTS):
    """Impressions of different numbers of ads; v is a permutation of 0 to the number less 1, so that nothing is tied."""
    rng = torch.Generator().manual_seed(seed)
    size, most = len(counts), max(counts)

    def ids(vocab_sizes, *shape):
        columns = [torch.randint(0, size, shape, generator=rng) for size in vocab_sizes]
        return torch.stack(columns, -1)

    sizes = config.user_vocab_sizes + config.ad_vocab_sizes + config.user_sequence_vocab_sizes
    sequences = [ids([sizes[table]] * 4, size) for table in config.user_sequence_tables]
    mask = torch.arange(most) < torch.tensor(counts).unsqueeze(1)
    labels = torch.rand(size, most, generator=rng).masked_fill(~mask, 2).argsort(1).argsort(1).float()
    return {
        "user_input_ids": ids(config.user_vocab_sizes, size),
        "user_numeric_values": torch.randn(size, config.user_num_numeric, generator=rng),
        "user_sequence_ids": torch.stack(sequences, 1),
        "ad_input_ids": ids(config.ad_vocab_sizes, size, most),
        "ad_numeric_values": torch.randn(size, most, config.ad_num_numeric, generator=rng),
        "ad_mask": mask,
        "labels": labels.masked_fill(~mask, -100),
        "ecpm": torch.rand(size, most, generator=rng) * mask,
    }


def array(tensor):
    return tensor.detach().double().numpy()


def reference_inputs(model, batch):
    """For each impression the user's input and those of its ads, by loops in float64."""
    config, table = model.config, array(model.model.embedding.table.weight)
    sizes = config.user_vocab_sizes + config.ad_vocab_sizes + config.user_sequence_vocab_sizes
    tables, start = [], 0
    for size in sizes:
        tables.append(table[start : start + size])
        start += size
    first_ad = len(config.user_vocab_sizes)
    users, ads = [], []
    for row in range(len(batch["ad_mask"])):
        parts = [tables[field][int(batch["user_input_ids"][row, field])] for field in range(first_ad)]
        for sequence, vocabulary in enumerate(config.user_sequence_tables):
            entries = [int(i) for i in batch["user_sequence_ids"][row, sequence] if int(i) != 0]
            total = np.zeros(config.embedding_dim)
            for entry in entries:
                total = total + tables[vocabulary][entry] / len(entries)
            parts.append(total)
        users.append(np.concatenate([*parts, array(batch["user_numeric_values"][row])]))
        ads.append({})
        for ad in batch["ad_mask"][row].nonzero().flatten().tolist():
            parts = [
                tables[first_ad + f][int(batch["ad_input_ids"][row, ad, f])] for f in range(len(config.ad_vocab_sizes))
            ]
            ads[-1][ad] = np.concatenate([*parts, array(batch["ad_numeric_values"][row, ad])])
    return users, ads


def reference_mlp(mlp, states, output=None):
    """Eval mode of a foundation MLP on one row, in float64."""
    for layer in mlp.layers:
        norm = layer.norm
        states = (states - array(norm.running_mean)) / np.sqrt(array(norm.running_var) + norm.eps)
        states = states * array(norm.weight) + array(norm.bias)
        states = array(layer.linear.weight) @ states + array(layer.linear.bias)
        states = np.array([x if x > 0 else layer.activation.weight.item() * x for x in states])
    output = mlp.output if output is None else output
    return array(output.weight) @ states + array(output.bias)


def reference_sort(values, tau):
    """NeuralSort of one list (Grover et al., Eq. 5)."""
    n = len(values)
    rows = []
    for i in range(1, n + 1):
        logits = [(n + 1 - 2 * i) * s - sum(abs(s - other) for other in values) for s in values]
        weights = [math.exp((x - max(logits)) / tau) for x in logits]
        rows.append([w / sum(weights) for w in weights])
    return np.array(rows)


def reference_loss(config, scores, ranks, alpha=1.0):
    """The loss of one impression from the lists of its ads, or None where it is not defined."""
    n = len(scores)
    if not n:
        return None
    if config.loss == "arf":
        tau = config.arf_tau
        model = reference_sort(scores, tau)
        target = reference_sort(ranks, tau if config.arf_target_tau is None else config.arf_target_tau)
        m = min(config.arf_top_m, n)
        k = min(config.arf_top_k or config.arf_top_m, n)
        relax = whole = 0.0
        for j in range(n):
            passed = sum(model[i][j] for i in range(m)) / m
            relax -= sum(target[i][j] for i in range(k)) * math.log(max(passed, 1e-8))
            for h in range(n):
                whole -= target[j][h] * math.log(max(model[j][h], 1e-8))
        return relax + whole / (2 * alpha**2) + math.log(abs(alpha))
    positive = [float(v >= config.positive_from) for v in ranks]
    if config.loss == "bce":
        return sum(math.log1p(math.exp(-s if p else s)) for s, p in zip(scores, positive)) / n
    if config.loss == "pairwise":
        pairs = [(a, b) for a in range(n) for b in range(n) if ranks[a] > ranks[b]]
        return sum(math.log1p(math.exp(scores[b] - scores[a])) for a, b in pairs) / len(pairs) if pairs else None
    if not sum(positive):
        return None
    total = math.log(sum(math.exp(s) for s in scores))
    return sum(p * (total - s) for s, p in zip(scores, positive)) / sum(positive)


def reference_mean(config, logits, labels, weights=None, alpha=1.0):
    """The weighted mean of `reference_loss` over the impressions that it is defined on."""
    found = []
    for row in range(len(labels)):
        real = [ad for ad in range(labels.shape[1]) if labels[row, ad] != -100]
        scores, ranks = ([x[row, ad].item() for ad in real] for x in (logits, labels))
        loss = reference_loss(config, scores, ranks, alpha)
        if loss is not None:
            found.append((loss, 1.0 if weights is None else float(weights[row])))
    return sum(loss * weight for loss, weight in found) / sum(weight for _, weight in found)


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


class RetrievalModelTesterMixin(CTRModelTesterMixin):
    """Subclasses give `values` (their own tiny configuration) and `reference_score(model, user, ad)`."""

    # Labels are rank indices here: any number.
    test_what_is_no_label_is_refused = test_soft_labels_are_a_choice = None

    def test_what_calibrates_moves_the_logits_alone(self):
        with pytest.raises(ValueError, match=r"calibration=\[0\.5\] is not accepted; use None: the logits rank ads"):
            self.make_config(calibration=[0.5])

    changing_key = ("hidden_units", [7, 5])
    values: dict = {}

    def reference_score(self, model, user, ad):
        raise AssertionError("a family's test class must give its equations")

    def make_config(self, **values):
        return self.config_class(**(FIELDS | self.values | values))

    def make_batch(self, config, seed=0):
        return make_batch(config, seed)

    def make_model(self, **values):
        """Parameters and running statistics are moved from 0 and 1, so that tests see them."""
        model = super().make_model(**values)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() <= 1 and "impression_loss" not in name:
                    parameter.add_(0.1 * torch.randn_like(parameter))
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm1d):
                    module.running_mean.normal_(std=0.3)
                    module.running_var.uniform_(0.5, 2)
        return model

    # ---- the common suite's tests that know rows of one label ------------------------------------------------------

    @pytest.mark.parametrize("loss", LOSSES)
    def test_output_contract(self, loss):
        """Losses through the model against float64 loops."""
        model = self.make_model(loss=loss, arf_top_k=2, arf_tau=0.7, arf_target_tau=0.4)
        if loss == "arf":
            torch.nn.init.constant_(model.impression_loss.arf.alpha, 0.8)
        batch = self.make_batch(model.config)
        output = model(**batch)
        assert output.logits.shape == batch["labels"].shape
        assert output.logits.dtype == torch.float32
        assert not output.logits[~batch["ad_mask"]].any()
        expected = reference_mean(model.config, output.logits, batch["labels"], alpha=0.8)
        assert output.loss.item() == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("loss", LOSSES)
    def test_ignored_rows_and_weights_in_the_loss(self, loss):
        model = self.make_model(loss=loss)
        batch = self.make_batch(model.config)
        batch["labels"][0] = -100  # an impression that is a filler
        batch["labels"][3, 1] = -100  # one ad without a label
        weights = torch.tensor([9.0, 0.5, 2.0, 1.5])
        expected = reference_mean(model.config, self.logits(model, batch), batch["labels"], weights)
        assert model(**batch, sample_weight=weights).loss.item() == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("loss", LOSSES)
    def test_overfits_one_batch(self, loss):
        """The order of the ads is learned: it is no matter of the loss, which ARF's alpha also lowers."""
        model = self.make_model(loss=loss, positive_from=2).train()
        batch = self.make_batch(model.config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(100):
            output = model(**batch)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            losses.append(output.loss.item())
        assert losses[-1] < losses[0]  # two positives leave an entropy in the list loss, soft targets in ARF
        right = pairs = 0
        for scores, ranks, mask in zip(output.logits, batch["labels"], batch["ad_mask"]):
            scores, ranks = scores[mask], ranks[mask]
            if loss in ("bce", "list"):
                ranks = (ranks >= 2).float()
            better = ranks.unsqueeze(1) > ranks.unsqueeze(0)
            pairs += better.sum().item()
            right += ((scores.unsqueeze(1) > scores.unsqueeze(0)) & better).sum().item()
        assert right >= 0.9 * pairs > 0

    # ---- equations -------------------------------------------------------------------------------------------------

    def test_scores_against_loops(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        batch["user_sequence_ids"][0, 0] = 0  # a sequence without entries
        logits = self.logits(model, batch).double().numpy()
        users, ads = reference_inputs(model, batch)
        for row, user in enumerate(users):
            for ad, values in ads[row].items():
                assert logits[row, ad] == pytest.approx(self.reference_score(model, user, values), abs=1e-5)

    def test_hidden_states(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        states = model(**batch, output_hidden_states=True, output_attentions=True)
        assert states.attentions == ()
        assert model(**batch).hidden_states is None
        users, ads = reference_inputs(model, batch)
        self.check_hidden_states(states.hidden_states, users, ads, model.config)

    def check_hidden_states(self, states, users, ads, config):
        raise AssertionError("a family's test class must say what they hold")

    # ---- padding ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("seed", range(3))
    def test_padded_ads_never_matter(self, loss, seed):
        """Whatever stands in padding, and however much of it: the same logits, loss, gradients and running statistics."""
        rng = np.random.default_rng(seed)
        results = []
        for extra, garbage in ((0, False), (int(rng.integers(1, 4)), True)):
            model = self.make_model(loss=loss).train()
            batch = make_batch(model.config, seed)
            padding = ~batch["ad_mask"]
            if garbage:
                for name in ("ad_input_ids", "ad_numeric_values", "labels", "ecpm", "ad_mask"):
                    wider = torch.zeros(len(padding), extra, *batch[name].shape[2:], dtype=batch[name].dtype)
                    batch[name] = torch.cat((batch[name], wider), 1)
                padding = ~batch["ad_mask"]
                batch["ad_input_ids"][padding] = int(rng.integers(100, 1000))
                batch["ad_numeric_values"][padding] = float("nan")
                batch["labels"][padding] = [float("nan"), 7.0, -100.0][seed]
            output = model(**batch)
            output.loss.backward()
            results.append((output, model, batch["labels"].shape[1] - extra))
        (one, plain, width), (two, padded, _) = results
        torch.testing.assert_close(one.loss, two.loss)
        assert torch.equal(one.logits, two.logits[:, :width])
        assert not two.logits[:, width:].any()
        for (name, first), (_, second) in zip(plain.named_parameters(), padded.named_parameters(), strict=True):
            torch.testing.assert_close(first.grad, second.grad, atol=1e-5, rtol=1e-4, msg=name)
        for (name, first), (_, second) in zip(plain.named_buffers(), padded.named_buffers(), strict=True):
            assert torch.equal(first, second), name

    @pytest.mark.parametrize("loss", LOSSES)
    def test_impressions_without_ads(self, loss):
        """They change nothing for the others; a batch of them only has loss 0 and zero gradients of all parameters."""
        plain, model = self.make_model(loss=loss).train(), self.make_model(loss=loss).train()
        batch = self.make_batch(model.config)
        more = {name: torch.cat((values[2:3], values)) for name, values in batch.items()}
        more["ad_mask"][0] = False
        more["user_numeric_values"][0] = float("nan")
        expected, found = plain(**batch), model(**more)
        assert torch.equal(found.logits[1:], expected.logits)
        assert not found.logits[0].any()
        torch.testing.assert_close(found.loss, expected.loss)
        for (name, first), (_, second) in zip(plain.named_buffers(), model.named_buffers(), strict=True):
            assert torch.equal(first, second), name
        before = {name: values.clone() for name, values in model.named_buffers()}
        for batch in ({**more, "ad_mask": torch.zeros_like(more["ad_mask"])}, self.no_places(more)):
            model.zero_grad()
            output = model(**batch)
            assert output.loss.item() == 0
            assert not output.logits.any()
            output.loss.backward()
            assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
            assert all(torch.equal(before[name], values) for name, values in model.named_buffers())

    def no_places(self, batch):
        per_ad = ("ad_input_ids", "ad_numeric_values", "ad_mask", "labels", "ecpm")
        return {name: values[:, :0] if name in per_ad else values for name, values in batch.items()}

    def test_statistics_of_the_first_layer_are_those_of_real_ads(self):
        model = self.make_model().train()
        batch = self.make_batch(model.config)
        layers = self.first_layers(model)
        before = [(array(norm.running_mean), array(norm.running_var)) for norm, _ in layers]
        users, ads = reference_inputs(model, batch)
        model(**batch)
        for (norm, rows), (mean, var) in zip(layers, before, strict=True):
            rows = np.array(rows(users, ads))
            np.testing.assert_allclose(array(norm.running_mean), 0.9 * mean + 0.1 * rows.mean(0), atol=1e-5)
            np.testing.assert_allclose(array(norm.running_var), 0.9 * var + 0.1 * rows.var(0, ddof=1), atol=1e-5)

    def test_one_ad_in_training_is_normalised_by_the_running_statistics(self):
        model = self.make_model()
        batch = make_batch(model.config, counts=(1,))
        expected = self.logits(model, batch)
        before = {name: values.clone() for name, values in model.named_buffers()}
        assert torch.equal(self.logits(model.train(), batch), expected)
        assert all(torch.equal(before[name], values) for name, values in model.named_buffers())

    # ---- training --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("loss", LOSSES)
    def test_parts_of_a_batch_add_up(self, loss):
        """With the count of the whole batch, losses and gradients of its parts sum to the whole's, whatever each part holds."""
        model = self.make_model(loss=loss)
        batch = self.make_batch(model.config)
        batch["sample_weight"] = torch.tensor([1.0, 3.0, 0.5, 2.0])
        whole = model(**batch).loss
        whole.backward()
        expected = gradients(model)
        model.zero_grad()
        total, items = 0.0, model.count_items(batch)
        for rows in (slice(0, 1), slice(1, 3), slice(3, 4)):
            loss = model(**{name: values[rows] for name, values in batch.items()}, num_items_in_batch=items).loss
            loss.backward()
            total += loss.item()
        assert total == pytest.approx(whole.item(), rel=1e-5)
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=name)

    def test_alpha_is_trained_and_saved(self, tmp_path):
        model = self.make_model()
        alpha = model.impression_loss.arf.alpha
        assert alpha.item() == 1
        assert any(parameter is alpha for parameter in model.parameters())
        torch.nn.init.constant_(alpha, 0.6)
        model.save_pretrained(tmp_path / "whole")
        loaded = self.model_class.from_pretrained(tmp_path / "whole")
        assert loaded.impression_loss.arf.alpha.item() == pytest.approx(0.6)
        model.model.save_pretrained(tmp_path / "base")
        assert self.model_class.from_pretrained(tmp_path / "base").impression_loss.arf.alpha.item() == 1
        assert self.make_model(loss="bce").impression_loss.arf is None

    def test_initialisation(self):
        """He for PReLU in the linear layers, slopes of 1/4, plain norms."""
        torch.manual_seed(0)
        model = self.model_class(self.make_config(hidden_units=[300, 200]))
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and module.weight.numel() > 5000:
                expected = (2 / (1 + 0.25**2) / module.in_features) ** 0.5
                assert module.weight.std().item() == pytest.approx(expected, rel=0.05), name
                assert not module.bias.any(), name
            if isinstance(module, torch.nn.PReLU):
                assert module.weight.item() == 0.25
            if isinstance(module, torch.nn.BatchNorm1d):
                assert (module.weight == 1).all()
                assert not module.bias.any()
        assert model.model.embedding.table.weight.std().item() == pytest.approx(0.5, rel=0.25)

    def test_sparse_gradients_equal_dense_ones(self):
        dense, sparse = self.make_model().train(), self.make_model(sparse_embedding_grad=True).train()
        batch = self.make_batch(dense.config)
        for model in (dense, sparse):
            model(**batch).loss.backward()
        found = sparse.model.embedding.table.weight.grad
        assert found.is_sparse
        torch.testing.assert_close(found.to_dense(), dense.model.embedding.table.weight.grad, atol=1e-6, rtol=1e-5)

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def test_every_field_counts(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        before = self.logits(model, batch)
        for key in ("user_input_ids", "user_numeric_values", "user_sequence_ids", "ad_input_ids", "ad_numeric_values"):
            fields = batch[key].shape[1] if key == "user_sequence_ids" else batch[key].shape[-1]
            for field in range(fields):
                changed = {**batch, key: batch[key].clone()}
                place = changed[key][:, field] if key == "user_sequence_ids" else changed[key][..., field]
                place.copy_((place + 1) % 4)
                after = self.logits(model, changed)
                assert (after != before)[batch["ad_mask"]].any(), (key, field)

    def test_a_sequence_of_ads_reads_the_ads_table(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        batch["user_sequence_ids"][:, 0] = torch.tensor([0, 0, 0, 3])
        user = model.model.embedding.user(
            *(batch[f"user_{kind}"] for kind in ("input_ids", "numeric_values", "sequence_ids"))
        )
        start = sum(model.config.user_vocab_sizes)
        dim = model.config.embedding_dim
        place = slice(2 * dim, 3 * dim)
        expected = model.model.embedding.table.weight[start + 3].expand(len(user), dim)
        torch.testing.assert_close(user[:, place], expected)

    @pytest.mark.parametrize(
        ("key", "change", "message"),
        [
            ("user_input_ids", lambda x: x + 100, r"user_input_ids: field 'user_C0' has id 10\d.*to 5"),
            ("ad_input_ids", lambda x: x - 1, r"ad_input_ids: field 'ad_C\d' has id -1"),
            ("user_sequence_ids", lambda x: x + 50, r"user_sequence_ids: field 'user_S0'"),
            ("ad_input_ids", lambda x: x[:, :3], r"ad_input_ids: shape \(4, 3, 2\).*\(4, 5, fields\)"),
            ("ad_input_ids", lambda x: x.float(), r"ad_input_ids: torch.float32"),
            ("ad_numeric_values", lambda x: x / 0, r"ad_numeric_values: field 'ad_N0' has (-)?inf"),
            ("ad_numeric_values", lambda x: x[..., :2], r"ad_numeric_values: shape .*\(rows, 3\)"),
            ("ad_numeric_values", lambda x: None, r"ad_numeric_values: the model has 3 fields.*got none"),
            ("user_numeric_values", lambda x: x[:2], r"user_numeric_values: 2 users for 4 impressions"),
            ("ad_mask", lambda x: x.float(), r"ad_mask: expected a bool"),
            ("labels", lambda x: x[:, :2], r"labels: shape \(4, 2\) does not fit"),
            ("labels", lambda x: x * float("nan"), r"labels: nan at \[0, 0\] is no label; accepted: the rank index"),
        ],
    )
    def test_bad_inputs(self, key, change, message):
        model = self.make_model()
        batch = self.make_batch(model.config)
        with pytest.raises(ValueError, match=message):
            model(**{**batch, key: change(batch[key])})

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"loss": "mse"}, "loss='mse'.*arf, bce, pairwise, list"),
            ({"loss": "bce", "positive_from": None}, "positive_from"),
            ({"loss": "list", "positive_from": float("nan")}, "positive_from"),
            ({"arf_top_k": 4}, "arf_top_k=4.*from 1 to arf_top_m=3"),
            ({"arf_tau": 0}, "arf_tau"),
            ({"hidden_units": []}, "hidden_units"),
            ({"embedding_dim": 0}, "embedding_dim"),
            ({"user_sequence_tables": [2, 5]}, "user_sequence_tables"),
            ({"user_sequence_tables": [2, 2]}, "every own vocabulary"),
            (
                {
                    "ad_vocab_sizes": [],
                    "ad_num_numeric": 0,
                    "user_num_sequences": 0,
                    "user_sequence_tables": [],
                    "user_sequence_vocab_sizes": [],
                },
                "no fields of the ad; set ad_vocab_sizes",
            ),
            ({"ad_field_names": ["a"]}, "ad_field_names.*5 different names"),
            ({"user_vocab_sizes": [1]}, "user_vocab_sizes"),
        ],
    )
    def test_bad_configurations(self, values, message):
        with pytest.raises(ValueError, match=message):
            self.model_class(self.make_config(**values))
