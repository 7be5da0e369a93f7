"""Table II: every task's metric of a tuned T5-MoE, for five ways to choose experts."""

import numpy as np
from matplotlib.figure import Figure

from tanbr.lab.paper import claim, tuning
from tanbr.lab.paper.claim import Claim, Findings, Part, Results, Table
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import bar_chart

AVERAGE = {"paper": 75.43, "smear": 75.10, "rl": 74.95, "switch": 74.41, "nucb": 74.14}
TASKS = ("CoLA", "MNLI", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B")
BY_TASK = {  # the paper's, each the mean of a task's metrics
    "paper": (42.9, 75.3, 81.4, 84.1, 78.4, 63.8, 91.5, 86.0),
    "rl": (42.1, 75.7, 80.15, 82.6, 77.9, 65.3, 91.2, 83.7),
    "switch": (43.2, 71.5, 82.45, 82.8, 78.4, 62.3, 90.4, 84.2),
    "smear": (43.8, 74.0, 82.9, 82.9, 78.05, 62.8, 90.6, 85.75),
    "nucb": (40.4, 73.2, 82.7, 82.6, 78.1, 62.8, 90.3, 83.05),
}


def findings(setup: Setup, results: Results) -> Findings:
    """Compare averages pair by pair, and count the tasks in which Tanbr leads."""
    seeds = setup.scale.tuning_seeds
    means = {router: _mean(setup, results, router) for router in tuning.ROUTERS}
    tasks = [task.name for task in setup.tasks]
    table = {router: _by_task(setup, results, router, tasks) for router in tuning.ROUTERS}
    claims = []
    for ours, words in tuning.OURS.items():
        claims.append(Claim(
            f"Tanbr's average is above that of each rival ({words})",
            ", ".join(f"{AVERAGE[name]:.2f} {name}" for name in AVERAGE if name != "paper")
            + f"; Tanbr {AVERAGE['paper']:.2f}",
            ", ".join(f"{100 * means[rival]:.1f} {rival}" for rival in tuning.RIVALS)
            + f"; Tanbr {100 * means[ours]:.1f}",
            claim.checks({f"above {rival}": means[ours] > means[rival] for rival in tuning.RIVALS}), seeds=seeds,
        ))  # fmt: skip
        rivals = np.array([table[rival] for rival in tuning.RIVALS])
        leads = int((table[ours] >= rivals.max(axis=0)).sum())  # tasks that hardly came (NaN) do not count
        paper_leads = int((np.array(BY_TASK["paper"]) >= np.max([BY_TASK[r] for r in tuning.RIVALS], axis=0)).sum())
        claims.append(Claim(
            f"consistently better on single tasks ({words})", f"leads in {paper_leads} of {len(TASKS)} tasks",
            f"leads in {leads} of {len(tasks)}",
            claim.checks({f"leads in at least {paper_leads}": leads >= paper_leads, "leads in some": leads > 0}),
            "the paper's own table has it lead in that many tasks, not in all", seeds,
        ))  # fmt: skip
    claims.append(_size(setup, means))
    return Findings(claims, _tables(table, tasks), {"Averages": draw(means)})


def _size(setup: Setup, means: dict[str, float]) -> Claim:
    says, ours = "Tanbr's average on GLUE", 100 * means["paper"]
    if [task.name for task in setup.tasks] != [*TASKS]:
        found = ", ".join(task.name for task in setup.tasks[:3])
        if sorted(task.name for task in setup.tasks) != sorted(TASKS):
            return Claim(
                says, f"{AVERAGE['paper']}", f"{ours:.1f} on other tasks ({found}, …)", claim.untested(),
                "these are not GLUE's tasks; run --scale small with --data",
            )  # fmt: skip
    return Claim(says, f"{AVERAGE['paper']}", f"{ours:.1f}", claim.about(ours, AVERAGE["paper"], share=0.05))


def _mean(setup: Setup, results: Results, router: str) -> float:
    return float(tuning.by_seed(results, setup, router, tuning.mean_figure).mean())


def _by_task(setup: Setup, results: Results, router: str, tasks: list[str]) -> list[float]:
    """Average each task's metric over the seeds in which it has one; NaN where none has."""
    runs = [results[f"tuning-{router}-seed{seed}"]["served"]["figures"] for seed in setup.scale.tuning_seeds]
    return [float(np.mean([of[task] for of in runs if task in of] or [np.nan])) for task in tasks]


def _tables(table: dict[str, list[float]], tasks: list[str]) -> list[Table]:
    rows = [
        [router, *("–" if np.isnan(v) else f"{100 * v:.1f}" for v in values), f"{100 * float(np.nanmean(values)):.1f}"]
        for router, values in table.items()
    ]
    paper = [[name, *(f"{v:.1f}" for v in BY_TASK[name]), f"{AVERAGE[name]:.2f}"] for name in AVERAGE]
    return [
        Table("served by the mix, in points, mean over seeds", ["router", *tasks, "average"], rows),
        Table("the paper's, GLUE (“paper” is its Tanbr)", ["router", *TASKS, "average"], paper),
    ]


def draw(means: dict[str, float]) -> Figure:
    """Draw each rival's distance to Tanbr, the paper's beside ours."""
    names = [name for name in AVERAGE if name != "paper"]
    groups = {
        "paper": {name: AVERAGE[name] - AVERAGE["paper"] for name in names},
        "here, Algorithm 1": {name: 100 * (means[name] - means["paper"]) for name in names},
        "here, default mode": {name: 100 * (means[name] - means["tanbr"]) for name in names},
    }
    return bar_chart(groups, title="Average above Tanbr's, in points")


PART = Part(
    "table2",
    "Table II: task by task",
    "The runs of Fig. 3: the stream under a moving mix.",
    tuning.jobs,
    findings,
    needs=("t5", "data"),
)
