"""Configuration of RankElastor."""

from lmctr.models.common.tokens import TokenMixerConfig

__all__ = ["RankElastorConfig"]


class RankElastorConfig(TokenMixerConfig):
    r"""Configuration of a RankElastor model. [`TokenMixerConfig`] has the keys of the tokens,
    [`TabularCTRConfig`] those of the fields.

    Args:
        num_tokens (`int`, defaults to 15): T.
        token_dim (`int`, defaults to 26): D.
        variant (`str`, defaults to `"paper"`): `"paper"`: Eq. 3 and 4. `"reference"`: the authors' code, which has an RMS norm
            before tokenizer and mixing, biases, a plain residual, stacked gated layers behind RMS norms and an identity
            residual.
        mixing (`str`, defaults to `"full"`): `"full"`: a learned TD x TD matrix (Eq. 3); `"kron"`: W kron I of grain
            `mixing_grain` (Theorem 3.1); `"transpose"`: RankMixer's block transpose (Eq. 2), for the ablation of Tab. 3.
        mixing_grain (`int`, defaults to 1): d* of `"kron"`; divides T D. 1 is full mixing.
        mixing_norm (`str`, *optional*): layer norm after the mixing in `variant="paper"`, over the whole vector of T D numbers
            (`"flat"`) or over each token (`"token"`). Decided: `"flat"` for `"full"` and `"kron"`, the letter of Eq. 3;
            `"token"` for `"transpose"`, as in RankMixer.
        ffn (`str`, defaults to `"glu"`): per-token network: `"glu"` (Eq. 4), or two-layer `"gelu"` or `"relu"` as in RankMixer.
        ffn_ratio (`float`, *optional*): hidden width over D; default 3 for `"glu"`, 1 for the others (the paper's Sec. 4.1).
        ffn_hidden_sizes (`list[int]`, *optional*): `variant="reference"` only: the widths after each stacked layer; default
            `[64, 64]`. `ffn_ratio` then widens each gated layer.
        ffn_norm (`bool`, defaults to `True`): `variant="reference"` only: the RMS norms inside the per-token network and the tokenizer.
        head (`str`, defaults to `"mlp"`): `"mean"`, `"flatten"` or `"mlp"` (TD -> 2TD, ReLU, 1).
    """

    model_type = "rank_elastor"

    num_tokens: int = 15
    token_dim: int = 26
    mixing: str = "full"
    mixing_grain: int = 1
    mixing_norm: str | None = None
    ffn: str = "glu"
    ffn_ratio: float | int | None = None
    ffn_norm: bool = True
    head: str = "mlp"

    def __post_init__(self, **kwargs):
        if self.ffn_ratio is None:
            self.ffn_ratio = 3 if self.ffn == "glu" else 1
        if self.variant == "reference" and self.ffn_hidden_sizes is None:
            self.ffn_hidden_sizes = [64, 64]
        if self.mixing_norm is None and self.variant == "paper":
            self.mixing_norm = "token" if self.mixing == "transpose" else "flat"
        super().__post_init__(**kwargs)

    def validate_values(self) -> None:
        super().validate_values()
        self._require_choice("mixing", ("full", "transpose", "kron"))
        self._require_choice("ffn", ("glu", "gelu", "relu"))
        tokens, size = self.num_tokens, self.token_dim
        if self.mixing == "transpose" and size % tokens:
            raise ValueError(
                f"RankElastorConfig: mixing='transpose' cuts token_dim={size} into num_tokens={tokens} blocks, and {tokens} "
                f"does not divide {size}; use a multiple of {tokens} as token_dim, or mixing='full'"
            )
        if self.mixing == "kron":
            fits = self.mixing_grain >= 1 and tokens * size % self.mixing_grain == 0
            self._require(
                fits, "mixing_grain", f"a divisor of num_tokens * token_dim = {tokens} * {size} = {tokens * size}"
            )
        elif self.mixing_grain != 1:
            raise ValueError(
                f"RankElastorConfig: mixing_grain={self.mixing_grain} is read by mixing='kron' only, not by {self.mixing!r}"
            )
        if self.variant == "paper":
            self._require_choice("mixing_norm", ("flat", "token"))
        else:
            self._require(self.mixing_norm is None, "mixing_norm", "None: variant='reference' has norms of its own")
            self._require_widths("ffn_hidden_sizes")
