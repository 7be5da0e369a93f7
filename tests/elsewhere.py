"""A second device that any machine has: tensors on it hold the CPU's values, and whatever mixes the two raises.

    with elsewhere() as device:
        model.to(device)

There everything computes what the CPU does, bit for bit, so that whole runs can be compared. But an operation on
tensors of both devices raises, as CUDA's do, and so does NumPy: a tensor that is made on the CPU in the middle fails.
Torch calls the device "meta", the one name besides "cpu" that every build knows. CUDA's own kernels it cannot show.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
MOVES = ("_to_copy", "copy_")  # operations that may see both devices
PICKS = (
    "index",
    "index_put",
    "index_put_",
)  # … and those that may find on the CPU which places of another device are meant


class Elsewhere(Tensor):
    """A tensor that says it is on the other device, and holds its values on the CPU."""

    held: Tensor
    is_meta = False  # it has values

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        made: Elsewhere = cls._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor of another device cannot become NumPy's; use Tensor.cpu() first")
        return self.held.numpy()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(places(at))

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(places(at), value)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({self.held!r})"


def places(at: Any) -> Any:
    """Make tensors of lists in an index; torch would make them on a device called meta, and drop their values."""
    if isinstance(at, tuple):
        return tuple(map(places, at))
    return torch.tensor(at, dtype=torch.long) if isinstance(at, list) else at


class Constructors(TorchFunctionMode):
    """Lets `torch.tensor` keep its values, which torch drops for a device called meta."""

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.tensor, torch.as_tensor) or kwargs.get("device") is None:
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])


class Factories(TorchDispatchMode):
    """Lets tensors be made on, and moved to, the other device."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU's values; its results are where they belong."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [one for one in tensors if isinstance(one, Elsewhere)]
    name = func.overloadpacket.__name__
    mixed = bool(there) and any(one.dim() and not isinstance(one, Elsewhere) for one in tensors)
    if mixed and name not in MOVES and not (name in PICKS and isinstance(args[0], Elsewhere)):
        raise RuntimeError(f"{func} got tensors of two devices")
    moved = torch.device(kwargs["device"]) == DEVICE if kwargs.get("device") is not None else bool(there)
    if name == "copy_":
        moved = isinstance(args[0], Elsewhere)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": "cpu"}
    result = func(*tree_map_only(Elsewhere, held_of, args), **tree_map_only(Elsewhere, held_of, kwargs))
    if not moved:
        return result
    same = {id(one.held): one for one in there}  # what is changed in place stays the tensor it was
    return tree_map_only(Tensor, lambda one: same[id(one)] if id(one) in same else Elsewhere(one), result)


def held_of(tensor: Elsewhere) -> Tensor:
    """Take the CPU's values."""
    return tensor.held


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Have a second device for a while.

    Fused and foreach optimizers are there, as for CUDA. Attention is the plain one on either device, so that figures
    can be compared. What would be inference mode is no_grad, which is all that tensors such as these know.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied when a model moves
    try:
        with (
            patch("torch.optim.adam._device_dtype_check_for_fused"),
            patch("torch.nn.utils.clip_grad._device_has_foreach_support", return_value=True),
            patch("torch._C._InferenceMode", lambda mode: torch.no_grad() if mode else nullcontext()),
            sdpa_kernel(SDPBackend.MATH),
            Constructors(),
            Factories(),
        ):
            yield DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
