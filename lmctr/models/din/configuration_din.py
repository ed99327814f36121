"""Configuration of DIN (arXiv 1706.06978)."""

from lmctr.models.common.configuration import SequenceCTRConfig

__all__ = ["DINConfig"]


class DINConfig(SequenceCTRConfig):
    r"""Configuration of [`DINModel`] and [`DINForCTR`]; see [`SequenceCTRConfig`] for the keys of the data.

    Args:
        embedding_dim (`int`, defaults to 16): width of the vector of an item and of each of its features.
        attention_hidden_sizes (`list[int]`, *optional*): hidden layers of the local activation unit; default `[36]` (Fig. 2).
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the final network; default `[200, 80]` (Fig. 2).
        use_dice (`bool`, defaults to `True`): Dice (Eq. 9) in both networks; `False`: PReLU (Eq. 8).
        use_softmax (`bool`, defaults to `False`): normalise the weights over the events that a candidate sees. The paper gives
            that up, to keep the intensity of an interest (4.3).
        use_field_attention (`bool`, defaults to `True`): an activation unit for the item and one for each item feature; `False`:
            one unit on all of an event's vectors, concatenated.
        dropout (`float`, defaults to 0.0): after each hidden layer of the final network, in training.
    """

    model_type = "din"
    default_head_sizes = (200, 80)

    embedding_dim: int = 16
    attention_hidden_sizes: list[int] | None = None
    head_hidden_sizes: list[int] | None = None
    use_dice: bool = True
    use_softmax: bool = False
    use_field_attention: bool = True
    dropout: float = 0.0

    def __post_init__(self, **kwargs):
        if self.attention_hidden_sizes is None:
            self.attention_hidden_sizes = [36]
        super().__post_init__(**kwargs)

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_layers(("embedding_dim",), ("attention_hidden_sizes", "head_hidden_sizes"))
