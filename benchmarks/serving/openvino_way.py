"""The same model through OpenVINO, to compare: weights as constants, which nobody can swap, and as parameters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
import torch
from openvino import opset13
from torch import Tensor, nn

ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        answers: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return answers


@torch.inference_mode()
def ways(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Callable[[], Any]]:
    """Name → one pass over these texts, on one thread."""
    texts = (tensors["input_ids"], tensors["attention_mask"])
    found: dict[str, Callable[[], Any]] = {}
    for kind in ("constants", "parameters"):
        converted = ov.convert_model(_Logits(model).eval(), example_input=texts)
        weights = _as_parameters(converted) if kind == "parameters" else []
        request = ov.compile_model(converted, "CPU", ONE_THREAD).create_infer_request()
        given = [ov.Tensor(value, shared_memory=True) for value in [text.numpy() for text in texts] + weights]
        for place, tensor in enumerate(given):
            request.set_input_tensor(place, tensor)
        found[f"openvino, weights as {kind}"] = partial(_infer, request, weights)
    return found


def _infer(request: ov.InferRequest, weights: list[Any]) -> Any:  # noqa: ARG001 - the request reads their memory
    return request.infer()


def _as_parameters(converted: ov.Model) -> list[Any]:
    """Make every matrix of the graph an input, behind the texts; their values, in that order."""
    values = []
    for node in converted.get_ordered_ops():
        if node.get_type_name() != "Constant" or len(node.shape) != 2 or min(node.shape) < 2 or node.data.dtype != "f4":
            continue
        parameter = opset13.parameter(node.shape, dtype=ov.Type.f32)
        for target in list(node.output(0).get_target_inputs()):
            target.replace_source_output(parameter.output(0))
        values.append(node.data.copy())
        converted.add_parameters([parameter])
    converted.validate_nodes_and_infer_types()
    return values
