"""Configuration of FFM."""

from lmctr.models.common.configuration import TabularCTRConfig

__all__ = ["FFMConfig"]


class FFMConfig(TabularCTRConfig):
    r"""Configuration of [`FFMModel`] and [`FFMForCTR`]; [`TabularCTRConfig`] has the keys of the fields.

    Every feature has a vector for each field that it may meet: n features, F fields and width k make n x F x k numbers
    (a million features in 39 fields with k = 4: 156 million numbers, 0.6 GB in float32, and as much again for each
    statistic that an optimiser keeps).

    Args:
        embedding_dim (`int`, defaults to 4): the width k, the same for all fields (the paper's best: 4).
        numeric_encoding (`str`, defaults to `"vector"`): the paper's terms x_1 x_2 <w_1, w_2>.
        max_parameters (`int`, defaults to 1e9): refuse to build larger models; the message tells the count.
    """

    model_type = "ffm"
    least_numeric_range = 0.08

    embedding_dim: int | list[int] = 4
    numeric_encoding: str = "vector"
    max_parameters: int = 1_000_000_000

    @property
    def num_latent_parameters(self) -> int:
        """n x F x k, with n the ids of all vocabularies and the numeric fields."""
        features = sum(self.vocab_sizes) + sum(self.sequence_vocab_sizes) + self.num_numeric
        return features * self.num_fields * max(self.field_dims, default=0)

    def validate_values(self) -> None:
        super().validate_values()
        self._require(
            len(set(self.field_dims)) <= 1, "embedding_dim", "one width: the vectors of two fields meet in a product"
        )
        count = self.num_latent_parameters
        if count > self.max_parameters:
            features = count // (self.num_fields * self.field_dims[0])
            raise ValueError(
                f"FFMConfig: {features:,} features x {self.num_fields} fields x embedding_dim={self.field_dims[0]} are {count:,} "
                f"parameters, more than max_parameters={self.max_parameters:,}; raise max_parameters, take a smaller "
                "embedding_dim, or vocabularies with a higher minimum count or hash buckets"
            )
