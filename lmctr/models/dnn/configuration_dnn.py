"""Configuration of DNN."""

from lmctr.models.common.configuration import MLPTabularConfig

__all__ = ["DNNConfig"]


class DNNConfig(MLPTabularConfig):
    r"""Configuration of [`DNNModel`] and [`DNNForCTR`]; [`TabularCTRConfig`] has the keys of the fields, [`MLPTabularConfig`]
    those of the MLP. Without one (`hidden_units=[]`) a head reads the embeddings: logistic regression, or the shape of the papers
    for the heads of several labels.

    Example:

    ```python
    >>> from lmctr import DNNConfig, DNNForCTR
    >>> model = DNNForCTR(DNNConfig(vocab_sizes=[1000, 50], num_numeric=2, hidden_units=[64, 64]))
    ```
    """

    model_type = "dnn"
    mlp_may_be_empty = True
    least_numeric_range = 0.03
