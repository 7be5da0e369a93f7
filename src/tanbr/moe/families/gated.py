"""The layout that most decoder-only families share: gate, up and down projections in `{site}.mlp`."""

from tanbr.moe.family import ExpertPattern, Role

MLP = "{site}.mlp"
GATE, UP, DOWN = f"{MLP}.gate_proj.weight", f"{MLP}.up_proj.weight", f"{MLP}.down_proj.weight"
SHARED: dict[Role, str] = {
    "gate": f"{MLP}.shared_experts.gate_proj.weight",
    "up": f"{MLP}.shared_experts.up_proj.weight",
    "down": f"{MLP}.shared_experts.down_proj.weight",
}


def gated_experts(
    *,
    experts: str = f"{MLP}.experts",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    to: str = MLP,
) -> tuple[ExpertPattern, ...]:
    """Patterns of both layouts: `{experts}.{k}.gate_proj.weight` on disk, fused `{site}.mlp.experts.gate_up_proj`."""
    gate, up, down = (f"{to}.{name}_proj.weight" for name in ("gate", "up", "down"))
    return (
        ExpertPattern(f"{experts}.{{k}}.{names[0]}.weight", {"gate": gate}),
        ExpertPattern(f"{experts}.{{k}}.{names[1]}.weight", {"up": up}),
        ExpertPattern(f"{experts}.{{k}}.{names[2]}.weight", {"down": down}),
        ExpertPattern(f"{MLP}.experts.gate_up_proj", {"gate": gate, "up": up}),
        ExpertPattern(f"{MLP}.experts.down_proj", {"down": down}),
    )


def single_expert(router: str = f"{MLP}.gate.weight") -> tuple[ExpertPattern, ...]:
    """Patterns for families whose merge is held by their own class with one expert."""
    return (*gated_experts(to=f"{MLP}.experts.0"), ExpertPattern(router, {"router": router}, keep_dim=True))
