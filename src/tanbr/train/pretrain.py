"""Task-routed training: every task trains its own copy of a dense ancestor's FFNs.

The experts of all sites start equal, which is what makes blends of them meaningful; what they share (embeddings,
attention, norms, head) goes on learning at a lower rate.
"""

from pathlib import Path

from torch import Tensor

from tanbr.config import PretrainConfig
from tanbr.moe.families.bert import BertMoeForSequenceClassification
from tanbr.moe.layer import ExpertLinear, TaskRouting, route
from tanbr.moe.text import TextEncoder
from tanbr.moe.upcycle import upcycle
from tanbr.tasks.metrics import LabelSpace
from tanbr.train import batches as batching
from tanbr.train.batches import Batches
from tanbr.train.run import Report, Run


def train_experts(
    ancestor: Path,
    batches: Batches,
    *,
    space: LabelSpace,
    encoder: TextEncoder,
    config: PretrainConfig,
    out: Path,
    report: Report,
) -> Path:
    """Upcycle a dense BERT to one expert per task, train it with each row at its task's expert, write it to `out`."""
    start = out.with_name(f"{out.name}-start")
    if not start.exists():
        upcycle(ancestor, start, experts=len(space.tasks))
    moe = BertMoeForSequenceClassification.from_pretrained(start)

    def loss(step: int) -> Tensor:
        batch = batches.at(config.ancestor_steps + step)
        route(moe, TaskRouting(batch.tasks))
        return batching.loss(moe(**batch.inputs).logits, batch, classes=space.classes)

    experts = [weight for module in moe.modules() if isinstance(module, ExpertLinear) for weight in module.parameters()]
    known = {id(weight) for weight in experts}
    shared = [weight for weight in moe.parameters() if id(weight) not in known]
    groups = [{"params": shared, "lr": config.shared_rate}, {"params": experts, "lr": config.expert_rate}]
    Run("experts", moe, groups, loss, config.steps, config, out.with_suffix(".state"), report).train()
    moe.save_pretrained(out)
    encoder.tokenizer.save_pretrained(out)
    return out
