"""Tiny tables for the tests of the tabular families, and what they have in common."""

import math

import numpy as np
import pytest
import torch

from lmctr.models.common.embeddings import FieldEmbedding

VOCAB_SIZES = [7, 5, 9]
OWN_SEQUENCE_VOCAB = 6
LENGTH = 4

FIELDS = {
    "vocab_sizes": VOCAB_SIZES,
    "num_numeric": 2,
    "embedding_dim": 4,
    "num_sequences": 2,
    "sequence_tables": [2, 3],  # the first shares categorical field 2, the second has a vocabulary of its own
    "sequence_vocab_sizes": [OWN_SEQUENCE_VOCAB],
    "initializer_range": 0.5,
}
"""Config values of every kind of field: 3 categorical, 2 numeric, 2 sequences; wide initial vectors, so that rows differ."""

MIXED_DIMS = [4, 2, 6, 4, 2, 6, 4]


def make_batch(config, seed=0, rows=6, length=LENGTH):
    """A batch that fits any tabular config: padding on both sides, an empty sequence, balanced labels."""
    rng = np.random.default_rng(seed)
    batch = {}
    if config.vocab_sizes:
        batch["input_ids"] = torch.from_numpy(
            np.stack([rng.integers(0, size, rows) for size in config.vocab_sizes], 1).astype(np.int64)
        )
    if config.num_numeric:
        batch["numeric_values"] = torch.from_numpy(rng.normal(size=(rows, config.num_numeric)).astype(np.float32))
    if config.num_sequences:
        sizes = config.vocab_sizes + config.sequence_vocab_sizes
        ids = np.stack([rng.integers(1, sizes[t], (rows, length)) for t in config.sequence_tables], 1)
        for row in range(rows):
            for sequence in range(config.num_sequences):
                kept = (row + sequence) % (length + 1)
                padding = slice(kept, None) if row % 2 else slice(0, length - kept)
                ids[row, sequence, padding] = 0
        batch["sequence_ids"] = torch.from_numpy(ids)
        times = rng.uniform(1.0, 1e5, ids.shape).astype(np.float32)
        batch["sequence_times"] = torch.from_numpy(times * (ids != 0))
    batch["labels"] = torch.tensor([1.0, 0.0] * ((rows + 1) // 2))[:rows]
    return batch


def reference_vectors(model, batch):
    """Float64 vectors of each field, by loops: a list over rows of lists over fields of (d_f,) arrays."""
    config, embedding = model.config, model.base_model.embedding
    return vectors_by_loops(config, embedding, batch)


def vectors_by_loops(config, embedding, batch):
    """As `reference_vectors`, for one FieldEmbedding (or LinearTerm) and its own widths."""
    dims = embedding.dims
    sizes = config.vocab_sizes + config.sequence_vocab_sizes
    num_categorical, first = len(config.vocab_sizes), len(config.vocab_sizes) + config.num_numeric
    width_of = {field: dims[field] for field in range(num_categorical)}
    width_of |= {table: dims[first + s] for s, table in enumerate(config.sequence_tables)}
    tables, used = {}, {}
    for vocabulary in sorted(width_of):  # the fused layout: vocabularies in order, one table per width
        width = width_of[vocabulary]
        start = used.get(width, 0)
        weight = embedding.groups[str(width)].table.weight.detach().double().numpy()
        tables[vocabulary] = weight[start : start + sizes[vocabulary]]
        used[width] = start + sizes[vocabulary]
    result, seen = [], {}
    for row in range(len(batch["labels"])):
        vectors = [tables[f][int(batch["input_ids"][row, f])] for f in range(num_categorical)]
        seen.clear()
        for number in range(config.num_numeric):
            width = dims[num_categorical + number]
            encoding = embedding.groups[str(width)].numeric
            at = seen.setdefault(width, 0)
            seen[width] += 1
            vector = float(batch["numeric_values"][row, number]) * encoding.weight[at].detach().double().numpy()
            if encoding.bias is not None:
                vector = vector + encoding.bias[at].detach().double().numpy()
            vectors.append(vector)
        for sequence, table in enumerate(config.sequence_tables):
            entries = [int(i) for i in batch["sequence_ids"][row, sequence] if int(i) != 0]
            total = np.zeros(dims[first + sequence])
            for entry in entries:
                total = total + tables[table][entry] / len(entries)
            vectors.append(total)
        result.append(vectors)
    return result


def linear(module, x):
    """A linear layer in float64."""
    result = np.asarray(x) @ module.weight.detach().double().numpy().T
    return result if module.bias is None else result + module.bias.detach().double().numpy()


def mlp(module, x):
    """An MLP with ReLU, in float64."""
    for layer in module.layers:
        x = np.maximum(linear(layer.linear, x), 0.0)
    return x


def project(module, vectors):
    """What `project_fields` gives, in float64: fields of one width."""
    if isinstance(module, torch.nn.Identity):
        return vectors
    sizes = sorted({len(vector) for vector in vectors})
    seen, result = dict.fromkeys(sizes, 0), []
    for field, vector in enumerate(vectors):
        size = len(vector)
        weight = array(module.weights[sizes.index(size)])[seen[size]]
        seen[size] += 1
        result.append(vector @ weight + array(module.bias)[field])
    return result


def softmax(x):
    weights = np.exp(x - np.max(x))
    return weights / weights.sum()


def layer_norm(module, x):
    normed = (x - np.mean(x)) / np.sqrt(np.var(x) + module.eps)
    return normed * array(module.weight) + array(module.bias)


def gelu(x):
    return np.array([0.5 * value * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x])


def randomise_vectors(model):
    """Values other than 0 and 1 for biases and norms, so that a test sees where they go."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or (parameter == 0).all():
                parameter.add_(0.3 * torch.randn(parameter.shape))


def array(parameter):
    return parameter.detach().double().numpy()


def logits_of(model, batch):
    with torch.no_grad():
        return model(**{k: v for k, v in batch.items() if k != "labels"}).logits.double().numpy()


class TabularSuite:
    """What the common suite needs, and what every tabular family promises besides. Mix in before CTRModelTesterMixin."""

    values = {}  # the family's own tiny values
    trace_shapes = None

    def make_config(self, **values):
        return self.config_class(**(FIELDS | self.values | values))

    def make_batch(self, config, seed=0):
        return make_batch(config, seed)

    def test_diagnostic_points_give_tensors_per_row(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        points = model.diagnostic_points()
        assert next(iter(points)) == "embedding"
        assert points == model.model.diagnostic_points()
        modules, seen = dict(model.named_modules()).values(), {}
        for label, module in points.items():
            assert any(module is other for other in modules), label
            module.register_forward_hook(lambda m, args, out, label=label: seen.setdefault(label, out))
        self.logits(model, batch)
        assert list(seen) == list(points)
        for label, out in seen.items():
            out = out[0] if isinstance(out, tuple) else out
            assert out.shape[0] == len(batch["labels"]), label
            assert out.dim() in (2, 3), label

    def test_hidden_states_start_with_the_fields(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        output = model(**batch, output_hidden_states=True)
        inputs = {k: v for k, v in batch.items() if k != "labels"}
        torch.testing.assert_close(output.hidden_states[0], model.model.embedding(**inputs))
        assert len(output.hidden_states) > 1
        assert all(s.shape[0] == len(batch["labels"]) and s.dim() in (2, 3) for s in output.hidden_states)
        assert model(**batch).hidden_states is None

    def test_every_field_counts(self):
        """Another value in one field, of any kind, changes the logit."""
        model = self.make_model()
        batch = self.make_batch(model.config)
        before = self.logits(model, batch)
        for key, kinds in (("input_ids", 3), ("numeric_values", 2), ("sequence_ids", 2)):
            for field in range(kinds):
                changed = {**batch, key: batch[key].clone()}
                if key == "sequence_ids":
                    changed[key][:, field, -1] = 1 + (changed[key][:, field, -1] % 4)
                else:
                    changed[key][:, field] = (changed[key][:, field] + 1) % 5
                assert (self.logits(model, changed) != before).any(), (key, field)

    def test_id_outside_its_table(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        batch["input_ids"][2, 1] = 5
        with pytest.raises(ValueError, match=r"'C1' has id 5.*to 4"):
            model(**batch)

    def test_compiles_to_the_same_logits(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        torch._dynamo.reset()  # all families share a forward, and a process recompiles one a few times only
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(self.logits(compiled, batch), self.logits(model, batch), atol=1e-5, rtol=1e-5)

    def test_the_penalty_of_training(self):
        """Half the strength times each row's squared norms, averaged over the rows, in training mode only."""
        strength = 0.1
        model = self.make_model(embedding_regularization=strength)
        batch = self.make_batch(model.config)
        plain = self.make_model()
        penalty = model.model(**{k: v for k, v in batch.items() if k != "labels"}).embedding_penalty
        batch["labels"][0] = -100
        losses = []
        for module in (model, plain):
            torch.manual_seed(5)  # the same dropout
            losses.append(module.train()(**batch).loss)
        found = losses[0] - losses[1]
        torch.testing.assert_close(found, penalty[1:].mean())
        expected = 0.0
        for embedding in self.embeddings(plain):
            for vectors in vectors_by_loops(plain.config, embedding, batch)[1:]:
                expected += 0.5 * strength * sum((vector**2).sum() for vector in vectors) / (len(batch["labels"]) - 1)
        assert abs(found.item() - expected) < 1e-4 * (1 + expected)
        torch.testing.assert_close(model.eval()(**batch).loss, plain.eval()(**batch).loss)

    def embeddings(self, model):
        return [module for module in model.modules() if isinstance(module, FieldEmbedding)]

    def test_sparse_gradients_equal_dense_ones(self):
        dense, sparse = self.make_model().train(), self.make_model(sparse_embedding_grad=True).train()
        batch = self.make_batch(dense.config)
        for model in (dense, sparse):
            torch.manual_seed(5)
            model(**batch).loss.backward()
        is_sparse = []
        for (name, one), (_, two) in zip(dense.named_parameters(), sparse.named_parameters(), strict=True):
            is_sparse.append(two.grad.is_sparse)
            torch.testing.assert_close(two.grad.to_dense(), one.grad, atol=1e-7, rtol=1e-5, msg=name)
        assert any(is_sparse)
