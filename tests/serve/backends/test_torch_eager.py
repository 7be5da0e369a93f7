from tanbr.merge import Moe
from tanbr.serve.engine import Engine


def test_the_spare_shares_everything_but_the_ffns(moe: Moe) -> None:
    one = Engine(moe).live.backend
    models = [backend.model for backend in (one, one.twin(moe))]  # type: ignore[attr-defined]
    first, second = (dict(model.named_parameters()) for model in models)
    own = {name for name in first if first[name].data_ptr() != second[name].data_ptr()}
    assert own == {piece.target for piece in moe.plan.blended}
    assert one.size.own_bytes == sum(4 * first[name].numel() for name in own)
    buffers = sum(tensor.numel() for tensor in models[0].buffers())
    assert one.size.parameters == sum(tensor.numel() for tensor in first.values()) + buffers
    assert one.loss is None
