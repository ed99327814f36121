"""Configuration of RankMixer."""

from lmctr.models.common.configuration import TabularCTRConfig
from lmctr.models.common.tokens import check_token_keys

__all__ = ["RankMixerConfig"]


class RankMixerConfig(TabularCTRConfig):
    r"""Configuration of a RankMixer model. The keys of the fields and their embeddings are those of [`TabularCTRConfig`].

    Args:
        num_tokens (`int`, defaults to 16): T, also the number of heads H; divides `token_dim`.
        token_dim (`int`, defaults to 32): D.
        num_hidden_layers (`int`, defaults to 2): blocks.
        variant (`str`, defaults to `"paper"`): `"paper"`: LN(X + T(X)), then LN(M + PFFN(M)). `"reference"`: RankMixer as the
            authors of RankElastor built it: an RMS norm before the tokenizer and after each mixing, no norm after PFFN.
        tokenizer (`str`, defaults to `"chunk"`): `"chunk"`: the field embeddings cut into T pieces, one projection; `"groups"`:
            given groups of fields, a projection each; `"dense"`: one network over everything; `"none"`: cut into T x D.
        token_groups (`list[list[str]]`, *optional*): field names of each token, for `"groups"`; default: equally many, in order.
        tokenizer_hidden_size (`int`, *optional*): hidden ReLU layer of the projection; default none (`"dense"`: T D).
        tokenizer_dropout (`float`, defaults to 0): dropout after that layer.
        ffn (`str`, defaults to `"gelu"`): activation of the per-token networks, `"gelu"` or `"relu"`.
        ffn_ratio (`float`, defaults to 4): k, their hidden width over D. The RankElastor paper compares with 1.
        ffn_hidden_sizes (`list[int]`, *optional*): `variant="reference"` only: the widths of their hidden layers; default
            `[ffn_ratio * token_dim]`.
        ffn_norm (`bool`, defaults to `False`): `variant="reference"` only: an RMS norm before each activation.
        ffn_dropout (`float`, defaults to 0): dropout in the per-token networks.
        num_experts (`int`, defaults to 1): per-token experts; from 2 on a sparse mixture takes the network's place
            (`variant="paper"` only).
        router_regularization (`float`, defaults to 0.01): lambda, the weight of the routers' L1 penalty in the loss; the first
            value where `active_expert_ratio` steers it.
        active_expert_ratio (`float`, *optional*): share of active experts that lambda is steered to during training; `None`:
            lambda stays.
        head (`str`, defaults to `"mean"`): `"mean"`, `"flatten"` or `"mlp"` (TD -> 2TD, ReLU, 1).
        layer_norm_eps (`float`, defaults to 1e-5): epsilon of the layer norms.
    """

    model_type = "rank_mixer"

    num_tokens: int = 16
    token_dim: int = 32
    num_hidden_layers: int = 2
    variant: str = "paper"
    tokenizer: str = "chunk"
    token_groups: list[list[str]] | None = None
    tokenizer_hidden_size: int | None = None
    tokenizer_dropout: float = 0.0
    ffn: str = "gelu"
    ffn_ratio: float | int = 4
    ffn_hidden_sizes: list[int] | None = None
    ffn_norm: bool = False
    ffn_dropout: float = 0.0
    num_experts: int = 1
    router_regularization: float = 0.01
    active_expert_ratio: float | None = None
    head: str = "mean"
    layer_norm_eps: float = 1e-5

    def validate_values(self) -> None:
        super().validate_values()
        check_token_keys(self)
        tokens, size = self.num_tokens, self.token_dim
        if size % tokens:
            raise ValueError(
                f"RankMixerConfig: the block transpose cuts token_dim={size} into num_tokens={tokens} blocks, and {tokens} "
                f"does not divide {size}; use a multiple of {tokens} as token_dim, or the family 'rank_elastor'"
            )
        self._require(
            self.ffn in ("gelu", "relu"), "ffn", "'gelu' or 'relu'; gated networks are the family 'rank_elastor'"
        )
        self._require(self.ffn_ratio > 0, "ffn_ratio", "a number above 0")
        self._require(0.0 <= self.ffn_dropout < 1.0, "ffn_dropout", "a number from 0 to below 1")
        self._require(self.num_experts >= 1, "num_experts", "a whole number of at least 1")
        self._require(self.router_regularization >= 0, "router_regularization", "a number of at least 0")
        ratio = self.active_expert_ratio
        self._require(
            ratio is None or 0.0 < ratio <= 1.0, "active_expert_ratio", "a share above 0 and at most 1, or None"
        )
        if ratio is not None and self.num_experts > 1 and self.router_regularization == 0:
            raise ValueError(
                "RankMixerConfig: active_expert_ratio steers router_regularization by factors, which stays 0 from 0; use a "
                "router_regularization above 0"
            )
        if self.variant == "paper":
            self._require(
                self.ffn_hidden_sizes is None, "ffn_hidden_sizes", "None: only variant='reference' stacks layers"
            )
            self._require(not self.ffn_norm, "ffn_norm", "False: only variant='reference' has norms inside")
        else:
            sizes = self.ffn_hidden_sizes
            self._require(
                sizes is None or (bool(sizes) and min(sizes) >= 1), "ffn_hidden_sizes", "a list of whole numbers"
            )
            self._require(self.num_experts == 1, "num_experts", "1: the authors of RankElastor built no experts")
