"""Configuration of xDeepFM."""

from dataclasses import field

from lmctr.models.common.configuration import MLPTabularConfig

__all__ = ["XDeepFMConfig"]


class XDeepFMConfig(MLPTabularConfig):
    r"""Configuration of [`XDeepFMModel`] and [`XDeepFMForCTR`]; [`TabularCTRConfig`] has the keys of the fields, [`MLPTabularConfig`]
    those of the MLP.

    Fields of different widths go to the MLP as they are; the interaction network sees them projected to the largest.

    Args:
        cin_units (`list[int]`, defaults to `[100, 100, 100]`): feature maps H_k of each layer of the interaction network.
        cin_act (`str`, defaults to `"linear"`): activation of its layers; the paper's best is none (section 4.4).
        cin_split_half (`bool`, defaults to `False`):
            As in the authors' code: half of a layer's maps goes to the output and the other half to the next layer. In the
            paper's text all maps go both ways. Needs even numbers of maps in all layers but the last.
        hidden_units (`list[int]`, defaults to `[400, 400, 400]`): width of each layer of the MLP; `[]`: the paper's CIN without it.
    """

    model_type = "xdeepfm"
    mlp_may_be_empty = True

    cin_units: list[int] = field(default_factory=lambda: [100, 100, 100])
    cin_act: str = "linear"
    cin_split_half: bool = False

    def validate_values(self) -> None:
        super().validate_values()
        self._require_widths("cin_units")
        self._require_activation("cin_act")
        self._require(
            not self.cin_split_half or all(units % 2 == 0 for units in self.cin_units[:-1]),
            "cin_units",
            "even numbers in all layers but the last with cin_split_half=True",
        )
