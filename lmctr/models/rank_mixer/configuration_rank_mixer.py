"""Configuration of RankMixer."""

from lmctr.models.common.tokens import TokenMixerConfig

__all__ = ["RankMixerConfig"]


class RankMixerConfig(TokenMixerConfig):
    r"""Configuration of a RankMixer model. [`TokenMixerConfig`] has the keys of the tokens,
    [`TabularCTRConfig`] those of the fields.

    Args:
        num_tokens (`int`, defaults to 16): T, also the number of heads H; divides `token_dim`.
        token_dim (`int`, defaults to 32): D.
        variant (`str`, defaults to `"paper"`): `"paper"`: LN(X + T(X)), then LN(M + PFFN(M)). `"reference"`: RankMixer as the
            authors of RankElastor built it: an RMS norm before the tokenizer and after each mixing, no norm after PFFN.
        ffn (`str`, defaults to `"gelu"`): activation of the per-token networks, `"gelu"` or `"relu"`.
        ffn_ratio (`float`, defaults to 4): k, their hidden width over D. The RankElastor paper compares with 1.
        ffn_hidden_sizes (`list[int]`, *optional*): `variant="reference"` only: the widths of their hidden layers; default
            `[ffn_ratio * token_dim]`.
        ffn_norm (`bool`, defaults to `False`): `variant="reference"` only: an RMS norm before each activation, the
            tokenizer's too. The authors' RankMixer has none.
        num_experts (`int`, defaults to 1): per-token experts; from 2 on a sparse mixture takes the network's place
            (`variant="paper"` only).
        router_regularization (`float`, defaults to 0.01): lambda, the weight of the routers' L1 penalty in the loss; the first
            value where `active_expert_ratio` steers it.
        active_expert_ratio (`float`, *optional*): share of active experts that lambda is steered to during training; `None`:
            lambda stays.
        head (`str`, defaults to `"mean"`): `"mean"`, `"flatten"` or `"mlp"` (TD -> 2TD, ReLU, 1).
    """

    model_type = "rank_mixer"

    ffn: str = "gelu"
    ffn_ratio: float | int = 4
    ffn_norm: bool = False
    num_experts: int = 1
    router_regularization: float = 0.01
    active_expert_ratio: float | None = None
    head: str = "mean"

    def validate_values(self) -> None:
        super().validate_values()
        tokens, size = self.num_tokens, self.token_dim
        if size % tokens:
            raise ValueError(
                f"RankMixerConfig: the block transpose cuts token_dim={size} into num_tokens={tokens} blocks, and {tokens} "
                f"does not divide {size}; use a multiple of {tokens} as token_dim, or the family 'rank_elastor'"
            )
        self._require(
            self.ffn in ("gelu", "relu"), "ffn", "'gelu' or 'relu'; gated networks are the family 'rank_elastor'"
        )
        self._require_whole("num_experts")
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
            self._require(not self.ffn_norm, "ffn_norm", "False: only variant='reference' has norms inside")
        else:
            if self.ffn_hidden_sizes is not None:
                self._require_widths("ffn_hidden_sizes")
            self._require(self.num_experts == 1, "num_experts", "1: the authors of RankElastor built no experts")
