"""Fig. 2, 3, 7 and Table II: a T5-MoE's norms are tuned while a router learns.

Then it writes answers to a stream of untagged requests, with neither model nor router learning any more.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from tanbr.errors import CheckpointError
from tanbr.lab.intervals import Spread
from tanbr.lab.jobs import Job, Tick
from tanbr.lab.paper.claim import OURS, Claim, Findings, Part, Results, Table, above, reduced, same
from tanbr.lab.paper.setup import Setup
from tanbr.lab.pictures import bar_chart, line_chart, smooth
from tanbr.lab.rivals import FixedBlend
from tanbr.lab.simulate import served
from tanbr.lab.tasks import glue, traffic
from tanbr.lab.tasks.traffic import Traffic
from tanbr.lab.train import finetune
from tanbr.lab.train.finetune import MergedTuner
from tanbr.lab.train.objectives import Objective, TextToText
from tanbr.lab.train.run import Curve
from tanbr.lab.train.tuner import Tuner
from tanbr.lab.world import Contestant, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import PaperModeConfig, RouterConfig
from tanbr.tasks.metrics import Answer
from tanbr.types import FloatArray, Text

RIVALS = {"nucb": "NUCB", "rl": "RL", "switch": "Switch", "smear": "SMEAR"}
ROUTERS = (*OURS, *RIVALS)
SERVED_SEED = 7_000  # of the stream after tuning
PERIOD = 4  # slots from one drawn mix of that stream to the next, so that all tasks come
FASTER_TUNING = 0.40  # than RL and Switch (Fig. 2)
FASTER = {"rl": 0.65, "switch": 0.65, "smear": 0.99}  # serving (Fig. 3)
LESS_MEMORY = 0.20
AVERAGE = {"paper": 75.43, "smear": 75.10, "rl": 74.95, "switch": 74.41, "nucb": 74.14}  # Table II
LEADS = 4  # of GLUE's eight tasks, in which the paper's table has Tanbr first
RHOS, ETAS = (0.3, 0.5, 0.7, 0.9), (1e-4, 1e-3, 1e-2, 1e-1)
SWEPT = {"rho": ("rho", RHOS), "eta": ("learning_rate", ETAS)}  # the letter → our name for it, its values (Fig. 7)


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each router and seed."""
    return [job(setup, router, seed) for router in ROUTERS for seed in setup.scale.seeds]


def job(setup: Setup, router: str, seed: int, *, name: str = "", serve: bool = True, **paper_mode: float) -> Job:
    """Tune with a router and seed, Algorithm 1 with other constants if some are given; then serve, unless told not."""
    tuning = setup.scale.tuning.model_copy(update={"seed": seed} if serve else {"seed": seed, "eval_rows": 2})
    called = f"tuning-{name or router}-seed{seed}"
    facts = {
        "model": setup.name_of("t5"),
        "data": setup.data_name,
        "tagged": setup.tagged,
        "tuning": tuning.model_dump(exclude={"device"}),
        "slots": setup.scale.served_slots if serve else 0,
        "requests": setup.scale.requests,
        "least_answers": setup.scale.least_answers,
        **paper_mode,
    }
    choosing = RouterConfig(paper=PaperModeConfig.model_validate(paper_mode))

    def run(tick: Tick) -> dict[str, Any]:
        (rows, unseen), out = setup.tuning_rows, setup.out / "work" / called

        def report(phase: str, done: int, _: int, note: str) -> None:
            tick(min(done, tuning.steps), tuning.steps + 1, f"{phase} {note}")

        found = finetune.run(
            setup.t5_moe.path, router, tasks=setup.tasks, rows=rows, unseen=unseen, tuning=tuning, choosing=choosing,
            out=out, report=report, command="tanbr reproduce", tagged=setup.tagged,
            also=partial(_serve, setup, seed) if serve else None,
        )  # fmt: skip
        steps, losses = Curve(out / router / "tuned.state").series("batch")
        return {
            "steps": steps, "losses": np.round(losses, 4), "seconds_per_step": found["cpu_seconds_per_step"],
            "served": found.get("also"),
        }  # fmt: skip

    return Job(called, run, facts)


def _serve(setup: Setup, seed: int, tuner: Tuner, objective: Objective) -> dict[str, Any]:
    """Let what was tuned write answers to a stream whose mix moves; texts name their task if it was tuned so."""
    if not isinstance(objective, TextToText):
        raise CheckpointError(f"{setup.t5_moe.path} answers by a head; --t5 must name a T5-MoE, which writes")
    scale, corpus = setup.scale, setup.corpus
    mixes = traffic.mixes(
        "dirichlet", tasks=len(corpus.tasks), slots=scale.served_slots, seed=SERVED_SEED + seed, period=PERIOD
    )
    stream = Traffic(pools=corpus.stream, mixes=mixes, requests=scale.requests, seed=SERVED_SEED + seed)
    row_of = {row.text: row for rows in corpus.stream.values() for row in rows}
    size, seconds = min(32, scale.requests), []  # rows of a batch; CPU time of each whole one

    def respond(blends: FloatArray, _: NDArray[np.intp], texts: Sequence[Text]) -> list[Answer]:
        """Merge the one blend (1, K), where there is one to merge, and write an answer to each text."""
        tuner.settle(blends[0])
        found: list[Answer] = []
        for start in range(0, len(texts), size):
            batch = objective.encode([row_of[text] for text in texts[start : start + size]])
            began = time.process_time()
            with torch.inference_mode():
                found += objective.written(tuner.model, batch)
            if len(batch) == size:
                seconds.append(time.process_time() - began)
        return found

    K = setup.t5_moe.num_experts
    router: Any = tuner.router if isinstance(tuner, MergedTuner) else FixedBlend(K, len(corpus.tasks))
    monitor = corpus.taught_monitor(MonitorConfig(), seed=seed)
    world = StreamWorld(respond, corpus.space, delay=scale.served_slots + 1)  # no reward comes in time to teach
    contestant = Contestant(world, router, monitor, start=StartBlend("even", experts=K))
    records, answered = served(contestant, stream, corpus.tasks, lambda *_: None)
    return {
        "reward": float(np.mean([record.total_reward for record in records])),
        "figures": answered.figures(least=scale.least_answers),
        "answer_seconds": statistics.median(seconds),
        "parameters": sum(weight.numel() for weight in tuner.model.parameters()),
    }


def _by_seed(setup: Setup, results: Results, value: Callable[[Any], Any]) -> dict[str, FloatArray]:
    """Give a figure of every router's runs: (seeds, …)."""
    seeds = setup.scale.seeds
    return {name: np.array([value(results[f"tuning-{name}-seed{seed}"]) for seed in seeds]) for name in ROUTERS}


def _averages(setup: Setup, results: Results) -> dict[str, FloatArray]:
    """Average the tasks' metrics over the stream that was served (seeds,)."""
    return _by_seed(setup, results, lambda run: np.mean(list(run["served"]["figures"].values())))


def fig2(setup: Setup, results: Results) -> Findings:
    """Compare losses at the start and in the end, and what a step takes."""
    losses = _by_seed(setup, results, lambda run: run["losses"])  # (seeds, n)
    count = losses["paper"].shape[1]
    first = {name: of[:, : max(1, count // 10)].mean(axis=1) for name, of in losses.items()}
    last = {name: of[:, -max(1, count // 4) :].mean(axis=1) for name, of in losses.items()}
    # a run that went on after its last step has no time of its own
    times = _by_seed(setup, results, lambda run: run["seconds_per_step"] or np.nan)
    ms = {name: 1e3 * float(np.nanmedian(of)) for name, of in times.items()}
    best = min(RIVALS, key=lambda rival: last[rival].mean())
    claims = []
    for ours, words in OURS.items():
        start = {rival: float((first[ours] - first[rival]).mean()) for rival in RIVALS}
        claims += [
            Claim(
                f"Tanbr starts with a higher loss than the others ({words})", "higher, no figure given",
                ", ".join(f"{gap:+.3f} {rival}" for rival, gap in start.items()),
                all(gap > 0 for gap in start.values()), "mean of the first tenth of the steps",
            ),
            Claim(
                f"Tanbr ends with the lowest loss ({words})", "lower than all, no figure given",
                f"{last[ours].mean():.3f}; " + ", ".join(f"{rival} {last[rival].mean():.3f}" for rival in RIVALS),
                above(Spread.of(last[best] - last[ours])),
                f"mean of the last quarter of the steps; the best rival is {best}",
            ),
        ]  # fmt: skip
    tokens = (ms["rl"] + ms["switch"]) / 2
    for ours, words in {**OURS, "nucb": "NUCB"}.items():
        less = 1 - ms[ours] / tokens
        claims.append(Claim(
            f"a step takes less time than with RL and Switch ({words})", "about −40%",
            f"{-less:+.0%} ({ms[ours]:.0f} ms against {tokens:.0f} ms)",
            reduced(less, FASTER_TUNING), "medians over steps and seeds, CPU time",
        ))  # fmt: skip
    slower = ms["smear"] / ms["paper"]
    claims += [
        Claim(
            "SMEAR's merging for every token takes 20 times as long", "20 times", f"{slower:.1f} times",
            slower > 10, "SMEAR's sums are computed as products of all experts here, which is the same and far cheaper",
        ),
        Claim(
            "tuning with Tanbr takes about 10% more memory than with RL and Switch, SMEAR 179% more", "+10%, +179%",
            "–", None, "the peak of a process that tunes one model after another is not a model's",
        ),
    ]  # fmt: skip
    rows = [[name, f"{first[name].mean():.3f}", f"{last[name].mean():.3f}", f"{ms[name]:.0f}"] for name in ROUTERS]
    header = ["router", "loss at first", "loss in the end", "CPU ms per step"]
    steps = results[f"tuning-paper-seed{setup.scale.seeds[0]}"]["steps"]
    picture = line_chart(
        {name: (steps, smooth(of.mean(axis=0), max(1, count // 10))) for name, of in losses.items()},
        title="Loss of the labelled batches, smoothed, on a logarithmic scale", xlabel="step", yscale="log",
    )  # fmt: skip
    table = Table("loss and time of tuning", header, rows)
    return Findings(claims, [table], {"Loss while norms are tuned, mean over seeds": picture})


def fig3(setup: Setup, results: Results) -> Findings:
    """Compare averages over tasks, CPU time per batch, and loaded parameters."""
    means = _averages(setup, results)

    def median(key: str) -> dict[str, float]:
        return {
            name: float(np.median(of)) for name, of in _by_seed(setup, results, lambda run: run["served"][key]).items()
        }

    seconds, loaded, reward = map(median, ("answer_seconds", "parameters", "reward"))
    best = max(RIVALS, key=lambda rival: means[rival].mean())
    claims = []
    for ours, words in OURS.items():
        gap = Spread.of(means[ours] - means[best])
        claims.append(Claim(
            f"Tanbr has the best average over the tasks ({words})", "75.43, next best 75.10 (SMEAR)",
            f"{100 * means[ours].mean():.1f}, best rival {100 * means[best].mean():.1f} ({best})",
            above(gap), f"{gap.words(factor=100)} points over {best}",
        ))  # fmt: skip
    for rival, paper in FASTER.items():
        less = 1 - seconds["paper"] / seconds[rival]
        claims.append(Claim(
            f"a batch takes less time than with {RIVALS[rival]}", f"−{paper:.0%}",
            f"{-less:+.0%} ({1e3 * seconds['paper']:.0f} ms against {1e3 * seconds[rival]:.0f} ms)",
            reduced(less, paper),
            "CPU time of writing the answers to a batch, in runs that were not side by side as Table I's are"
            + ("; SMEAR's sums are computed as products of all experts, which is far cheaper" * (rival == "smear")),
        ))  # fmt: skip
    less = 1 - loaded["paper"] / loaded["switch"]
    claims.append(Claim(
        "only the merged model is loaded", "−20% to −25% of memory",
        f"{-less:+.0%} of the parameters ({loaded['paper'] / 1e6:.2f}M of {loaded['switch'] / 1e6:.2f}M)",
        reduced(less, LESS_MEMORY), "parameters alone",
    ))  # fmt: skip
    rows = [
        [
            name, f"{100 * means[name].mean():.1f}", f"{1e3 * seconds[name]:.1f}", f"{loaded[name] / 1e6:.2f}",
            f"{reward[name]:.3f}",
        ]
        for name in ROUTERS
    ]  # fmt: skip
    header = ["router", "average, points", "ms per batch", "parameters, M", "reward"]
    table = Table("tuned models serving a stream, nothing learns any more", header, rows)
    points = {"tuned": {name: 100 * found for name, found in means.items()}}
    picture = bar_chart(points, title="Mean of the tasks' metrics, in points; dots: seeds")
    return Findings(claims, [table], {"Average over the tasks": picture})


def table2(setup: Setup, results: Results) -> Findings:
    """Compare averages pair by pair, and count the tasks in which Tanbr leads."""
    means = {name: 100 * float(of.mean()) for name, of in _averages(setup, results).items()}
    tasks = [task.name for task in setup.tasks]
    found = _by_seed(setup, results, lambda run: [run["served"]["figures"].get(task, np.nan) for task in tasks])
    table = {name: np.ma.masked_invalid(of).mean(axis=0).filled(np.nan) for name, of in found.items()}  # (V,)
    rivals = np.array([table[rival] for rival in RIVALS])
    claims = []
    for ours, words in OURS.items():
        leads = int((table[ours] >= rivals.max(axis=0)).sum())  # tasks that hardly came (NaN) do not count
        claims += [
            Claim(
                f"Tanbr's average is above that of each rival ({words})",
                ", ".join(f"{AVERAGE[rival]:.2f} {rival}" for rival in RIVALS) + f"; Tanbr {AVERAGE['paper']:.2f}",
                ", ".join(f"{means[rival]:.1f} {rival}" for rival in RIVALS) + f"; Tanbr {means[ours]:.1f}",
                all(means[ours] > means[rival] for rival in RIVALS),
            ),
            Claim(
                f"consistently better on single tasks ({words})", f"leads in {LEADS} of {len(glue.TASKS)} tasks",
                f"leads in {leads} of {len(tasks)}", leads >= LEADS,
                "the paper's own table has it lead in that many tasks, not in all",
            ),
        ]  # fmt: skip
    on_glue = sorted(tasks) == sorted(task.name for task in glue.TASKS)
    claims.append(Claim(
        "Tanbr's average on GLUE", f"{AVERAGE['paper']}",
        f"{means['paper']:.1f}" + ("" if on_glue else f" on other tasks ({', '.join(tasks[:3])}, …)"),
        same(means["paper"], AVERAGE["paper"], share=0.05) if on_glue else None,
        "" if on_glue else "these are not GLUE's tasks; run --scale small with --data",
    ))  # fmt: skip
    rows = [
        [name, *("–" if np.isnan(v) else f"{100 * v:.1f}" for v in values), f"{100 * np.nanmean(values):.1f}"]
        for name, values in table.items()
    ]
    groups = {
        "paper": {name: AVERAGE[name] - AVERAGE["paper"] for name in RIVALS},
        "here, Algorithm 1": {name: means[name] - means["paper"] for name in RIVALS},
        "here, default mode": {name: means[name] - means["tanbr"] for name in RIVALS},
    }
    shown = Table("served by the mix, in points, mean over seeds", ["router", *tasks, "average"], rows)
    return Findings(claims, [shown], {"Averages": bar_chart(groups, title="Average above Tanbr's, in points")})


def fig7_jobs(setup: Setup) -> list[Job]:
    """One job a value and seed; both defaults are the same run."""
    found = {}
    for letter, (field, values) in SWEPT.items():
        for value in values:
            name = _named(letter, value)
            changed = {} if name == DEFAULTS else {field: value}
            for seed in setup.scale.swept_seeds:
                found[name, seed] = job(setup, "paper", seed, name=name, serve=False, **changed)
    return list(found.values())


DEFAULTS = "paper-defaults"


def _named(letter: str, value: float) -> str:
    is_default = value == PaperModeConfig.model_fields[SWEPT[letter][0]].default
    return DEFAULTS if is_default else f"paper-{letter}{value:g}"


def fig7(setup: Setup, results: Results) -> Findings:
    """Compare the start, the end and the unrest of the curves."""
    seeds = setup.scale.swept_seeds
    losses = {  # letter → value → (seeds, n)
        letter: {
            value: np.array([results[f"tuning-{_named(letter, value)}-seed{seed}"]["losses"] for seed in seeds])
            for value in values
        }
        for letter, (_, values) in SWEPT.items()
    }
    count = losses["rho"][RHOS[0]].shape[1]
    quarter, half = max(1, count // 4), count // 2
    start, end = ([float(of[:, part].mean()) for of in losses["rho"].values()]
                  for part in (slice(quarter), slice(-quarter, None)))  # fmt: skip
    fast = [float(of[:, :half].mean()) for of in losses["eta"].values()]
    unrest = [float(np.diff(of, axis=1)[:, half:].std()) for of in losses["eta"].values()]
    claims = [
        Claim(
            "a smaller ρ starts faster", "shorter random phase, no figure given", _shown(RHOS, start),
            start[0] < start[-1] and _rank(start) > 0.5, "loss of the first quarter; it must rise with ρ",
        ),
        Claim(
            "a smaller ρ ends worse", "lower final performance, no figure given", _shown(RHOS, end),
            end[0] > end[-1] and _rank(end) < -0.5, "loss of the last quarter; it must fall as ρ rises",
        ),
        Claim(
            "a larger η converges faster", "faster, no figure given", _shown(ETAS, fast),
            fast[-1] < fast[0] and _rank(fast) < -0.5,
            "loss of the first half; a step of η that raises the router's loss is undone and halved: see docs/paper.md",
        ),
        Claim(
            "a larger η is less stable", "may be unstable, no figure given", _shown(ETAS, unrest),
            unrest[-1] > unrest[0],
            "standard deviation of the change from one point of the curve to the next, in the second half",
        ),
    ]  # fmt: skip
    steps = results[f"tuning-{DEFAULTS}-seed{seeds[0]}"]["steps"]
    pictures = {
        f"Sensitivity to {letter}": line_chart(
            {
                f"{letter} = {value:g}": (steps, smooth(of.mean(axis=0), max(1, count // 8)))
                for value, of in found.items()
            },
            title=f"loss, by {letter}, mean over seeds", xlabel="step",
        )
        for letter, found in losses.items()
    }  # fmt: skip
    return Findings(claims, pictures=pictures)


def _shown(values: Sequence[float], found: Sequence[float]) -> str:
    return ", ".join(f"{value:g}: {one:.3f}" for value, one in zip(values, found, strict=True))


def _rank(found: Sequence[float]) -> float:
    """Give Spearman's correlation with a constant that rises; 0 where all are alike."""
    return 0.0 if np.ptp(found) == 0 else float(spearmanr(np.arange(len(found)), found).statistic)


NEEDS = ("t5", "data")
FIG2 = Part(
    "fig2",
    "Fig. 2: tuning the norms of a T5-MoE",
    "Every step has a labelled batch of a random task mix; only norms (and gates, where there are some) learn.",
    jobs,
    fig2,
    NEEDS,
)
FIG3 = Part(
    "fig3",
    "Fig. 3: a tuned T5-MoE serving",
    "The tuned models of Fig. 2 answer requests under a moving mix, whose tasks no router is told (with --tagged the "
    "texts name them, for the model); routers choose by the monitor's forecast, and nothing learns any more. Answers "
    "are written word by word and scored as written.",
    jobs,
    fig3,
    NEEDS,
)
TABLE2 = Part(
    "table2", "Table II: task by task", "The runs of Fig. 3: the stream under a moving mix.", jobs, table2, NEEDS
)
FIG7 = Part(
    "fig7",
    "Fig. 7: sensitivity to ρ and η",
    "Algorithm 1 as printed, tuning as in Fig. 2, one constant changed at a time; the other has its default "
    "(ρ = 0.5, η = 1e-3).",
    fig7_jobs,
    fig7,
    NEEDS,
    seeds="swept_seeds",
)
