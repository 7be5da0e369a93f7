"""Early stop per task: a task whose figure no longer improves leaves the training, with its best expert.

What the experts share has learnt on since that expert was kept, and may no longer fit it. So it is measured again, and
comes back only if it is still the better one.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from tanbr.lab.train.expert_views import ExpertViews


class EarlyStop(nn.Module):
    """Remembers each task's best expert; all of it is buffers, so that a resumed run goes on with it."""

    best: Tensor  # (K,) best figure so far
    stale: Tensor  # (K,) looks since
    left: Tensor  # (K,) whether the task has left

    def __init__(self, experts: ExpertViews, *, patience: int) -> None:
        super().__init__()
        K = len(experts)
        self._experts, self._patience = [experts], patience  # in a list, so that it is no sub-module
        self.register_buffer("best", torch.full((K,), -torch.inf))
        self.register_buffer("stale", torch.zeros(K, dtype=torch.int64))
        self.register_buffer("left", torch.zeros(K, dtype=torch.bool))
        for k in range(K):
            for i, value in enumerate(experts.weights(k).values()):
                self.register_buffer(f"kept_{k}_{i}", value.detach().clone())

    def staying(self) -> list[int]:
        """List the tasks that still train."""
        return [k for k, left in enumerate(self.left.tolist()) if not left]

    @torch.no_grad()
    def look(self, figures: Mapping[int, float], measure: Callable[[int], float]) -> None:
        """Take in the figures of the tasks that still train; `measure` gives a task's as its expert is then."""
        for k, figure in figures.items():
            better = figure >= self.best[k]  # one that stays, such as 0 before a task is learnt, is no reason to stop
            self.stale[k] = 0 if better else self.stale[k] + 1
            kept = [self.get_buffer(f"kept_{k}_{i}") for i in range(len(self._experts[0].names))]
            live: list[Tensor] = list(self._experts[0].weights(k).values())
            if better:
                self.best[k] = figure
                torch._foreach_copy_(kept, live)
            elif self.stale[k] >= self._patience:
                self.left[k] = True
                last = [weight.clone() for weight in live]
                torch._foreach_copy_(live, kept)
                if measure(k) < figure:
                    torch._foreach_copy_(live, last)
