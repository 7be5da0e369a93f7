import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tanbr.serve.backends import bert_pass


def bert(**settings: object) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=64, max_position_embeddings=24, num_labels=5, **(sizes | settings))  # type: ignore[arg-type]
    model = BertForSequenceClassification(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # biases, too
    return model


def inputs(lengths: list[int]) -> dict[str, torch.Tensor]:
    rng, longest = np.random.default_rng(0), max(lengths)
    mask = np.array([[int(place < length) for place in range(longest)] for length in lengths])
    ids = rng.integers(1, 64, mask.shape) * mask
    return {
        name: torch.from_numpy(values)
        for name, values in (("input_ids", ids), ("attention_mask", mask), ("token_type_ids", ids % 2 * mask))
    }


@pytest.mark.parametrize("lengths", [[7], [6, 6, 6], [9, 3, 1, 8], [24, 2]])
@pytest.mark.parametrize("layers", [1, 3])
@torch.inference_mode()
def test_the_answer_is_that_of_the_whole_model(lengths: list[int], layers: int) -> None:
    model, given = bert(num_hidden_layers=layers), inputs(lengths)
    expected = model(**given).logits
    found = bert_pass.logits(model, **given)
    # float64: a thousand roundings of 2^-53 that all point one way, of numbers of the logits' size
    assert (found - expected).abs().max() <= 1000 * 2.0**-53 * expected.abs().max()
