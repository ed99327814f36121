"""Float64 loops for what RankMixer and RankElastor share: tokenizers, block transpose, per-token products, heads."""

import numpy as np
from tabular_inputs import array, linear


def rms_norm(weight, x, eps=1e-12):
    return x / np.sqrt(np.mean(x**2) + eps) * array(weight).reshape(-1)


def token_linear(module, token, x):
    """One token's own linear layer."""
    return x @ array(module.weight)[token] + array(module.bias)[token, 0]


def transpose(x):
    """(T(X))_ij = X_ji over the blocks of T x D."""
    tokens, size = x.shape
    width = size // tokens
    result = np.zeros_like(x)
    for i in range(tokens):
        for j in range(tokens):
            result[i, j * width : (j + 1) * width] = x[j, i * width : (i + 1) * width]
    return result


def tokens_of(module, config, vectors):
    """The tokens (T, D) of one row, from its fields' vectors."""
    flat = np.concatenate(vectors)
    if module.norm is not None:
        flat = rms_norm(module.norm.weight, flat)
    count, size = config.num_tokens, config.token_dim
    if config.tokenizer == "none":
        return flat.reshape(count, size)

    def through(x, token=None):
        def apply(layer, x):
            return linear(layer, x) if token is None else token_linear(layer, token, x)

        if module.first is not None:
            x = apply(module.first, x)
            if module.hidden_norm is not None:
                weight = module.hidden_norm.weight
                x = rms_norm(weight if token is None else weight[token], x)
            x = np.maximum(x, 0)
        return apply(module.last, x)

    if config.tokenizer == "dense":
        return through(flat).reshape(count, size)
    if config.tokenizer == "chunk":
        width = len(flat) // count
        return np.array([through(flat[t * width : (t + 1) * width]) for t in range(count)])
    ends = np.cumsum([0, *config.field_dims])
    groups = config.token_groups
    pieces = [
        np.concatenate([flat[ends[f] : ends[f + 1]] for f in map(config.field_names.index, group)]) for group in groups
    ]
    longest = max(map(len, pieces))
    return np.array([through(np.pad(p, (0, longest - len(p))), token) for token, p in enumerate(pieces)])


def head_logit(module, config, tokens):
    if config.head == "mean":
        return tokens.mean() if module.output is None else linear(module.output, tokens.mean(0))[0]
    flat = tokens.reshape(-1)
    if config.head == "mlp":
        flat = np.maximum(linear(module.hidden, flat), 0)
    return linear(module.output, flat)[0]
