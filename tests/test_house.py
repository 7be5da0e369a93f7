"""What holds of the house as a whole: tests mirror the source, and use what everybody may use."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SOURCE = ROOT.parent / "src" / "tanbr"

# Modules without a test file of their name: where they are tested instead, or why there is nothing to test.
ELSEWHERE = {
    "experiments/embedded.py": "train/test_pretrain.py",
    "experiments/glue_moe.py": "cli/test_training.py",
    **dict.fromkeys(
        [
            f"experiments/paper/{name}.py"
            for name in ("fig2", "fig3", "fig4", "fig5", "fig7", "online", "part", "report", "table1", "table2")
        ],
        "experiments/paper/test_reproduction.py",
    ),
    "experiments/paper/resident.py": "experiments/paper/test_reproduction.py",
    "experiments/paper/reward_maps.py": "experiments/paper/test_theorem1.py",
    "experiments/paper/timing.py": "experiments/paper/test_random_moe.py",
    "experiments/pictures.py": "experiments/test_demo.py",
    "merge/certificate.py": "merge/test_export.py",
    "merge/gram_matrices.py": "merge/methods/test_regression.py",
    "merge/moe.py": "merge/test_stream.py",
    "merge/plan.py": "merge/test_families.py",
    "merge/skeleton.py": "merge/test_families.py",
    "merge/sources/alike.py": "merge/sources/test_fine_tuned.py",
    "merge/sources/joined.py": "merge/sources/test_sources.py",
    "merge/sources/moe_checkpoint.py": "merge/sources/test_sources.py",
    "merge/sources/one_adapter.py": "merge/sources/test_adapters.py",
    "merge/sources/peft_folder.py": "merge/sources/test_adapters.py",
    "merge/sources/source.py": "merge/sources/test_sources.py",
    "moe/family.py": "merge/test_families.py",
    "monitor/config.py": "test_settings.py",
    "router/gp_panel.py": "router/test_panel.py",
    "serve/backends/backend.py": "serve/backends/test_contract.py",
    "serve/backends/onnx_graph.py": "serve/backends/test_onnx_runtime.py",
    "serve/batcher.py": "serve/test_replica.py",
    "serve/config.py": "test_settings.py",
    "serve/engines/dialect.py": "serve/engines/test_vllm.py",
    "serve/engines/streams.py": "serve/engines/test_remote.py",
    "serve/fleet/engine.py": "serve/fleet/test_host.py",
    "serve/fleet/link.py": "serve/fleet/test_fleet.py",
    "serve/fleet/messages.py": "serve/fleet/test_fleet.py",
    "serve/fleet/replica_service.py": "serve/fleet/test_host.py",
    "serve/fleet/roster.py": "serve/fleet/test_fleet.py",
    "serve/front.py": "serve/test_replica.py",
    "serve/model_runs.py": "serve/test_replica.py",
    "serve/operator.py": "serve/test_learner.py",
    "serve/overview.py": "serve/test_service.py",
    "serve/ray/config.py": "serve/ray/test_cluster.py",
    "serve/ray/learner.py": "serve/ray/test_cluster.py",
    "serve/ray/machine.py": "serve/ray/test_cluster.py",
    "serve/ray/replica.py": "serve/ray/test_cluster.py",
    "serve/telling.py": "serve/test_service.py",
    "serve/web/client.py": "cli/test_sending.py",
    "serve/web/config.py": "test_settings.py",
    "serve/web/responses.py": "serve/web/test_openapi.py",
    "serve/web/state_responses.py": "serve/web/test_openapi.py",
    "serve/web/views.py": "serve/web/test_watching.py",
    "tasks/hub.py": "tasks/test_glue.py",
    "tasks/lexicon.py": "tasks/test_tiny.py",  # words
    "tasks/rows.py": "tasks/test_metrics.py",
    "tasks/world.py": "tasks/test_tiny.py",
}
MODULES = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
MODULES = [
    path for path in MODULES if not path.name.startswith("__") and "families" not in path.parts
]  # one test for all
TESTS = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_a_test_file_of_its_name(module: Path) -> None:
    mirror = ROOT / module.parent / f"test_{module.name}"
    instead = ELSEWHERE.get(module.as_posix())
    assert mirror.exists() != (instead is not None), (
        f"write {mirror.relative_to(ROOT)}, or strike {module} from the list"
    )
    assert instead is None or (ROOT / instead).exists()


def test_the_list_names_only_what_is_there() -> None:
    assert {Path(name) for name in ELSEWHERE} <= set(MODULES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_test_uses_private_attributes(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            assert own, f"{path.relative_to(ROOT)}:{node.lineno} uses {ast.unparse(node)}"
