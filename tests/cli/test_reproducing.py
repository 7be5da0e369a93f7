import json
from pathlib import Path

from cli.running import tanbr
from tanbr.lab.jobs import place
from tanbr.lab.paper.fig6 import jobs
from tanbr.lab.paper.setup import Setup, scale


def test_results_of_another_commit_are_kept_and_said_to_be_so(tmp_path: Path) -> None:
    setup = Setup(scale("tiny"), tmp_path / "o")
    for one in jobs(setup):  # done by another commit
        made = {"steps": [3], "leaves": 20, "decision": dict.fromkeys(("median", "low", "high", "fastest"), 0.1)}
        values = {"job": one.name, "facts": dict(one.facts), "commit": "0123456789", "seconds": 1.0, "result": made}
        path = place(setup.out / "jobs", one)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    done = tanbr("reproduce", "fig6", "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = "7 of 7 results are of other commits (7 of 0123456789)"
    assert f"note: {said}; delete them in o/jobs" in done.stdout
    assert said in (tmp_path / "o" / "report.md").read_text()
