"""Two replicas and a learner on a Ray cluster of this machine's own: asked, given a new blend, and stopped.

`tanbr serve --ray` does the same from the command line. It takes about a minute, and `pip install "tanbr[ray]"`.
"""

import importlib.util
import tempfile
import threading
from pathlib import Path

import httpx2

from tanbr.serve.web.config import HttpConfig

PORT = 8673
TEXT = "the plot is clever"


def main() -> set[int] | None:
    """Serve, ask, and count; the merge versions that answered, or None where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        print('Ray is not installed: pip install "tanbr[ray]"')
        return None
    from tanbr.fleet.ray import ClusterConfig, run  # only where Ray is

    stop, ready, saved = threading.Event(), threading.Event(), []
    with tempfile.TemporaryDirectory() as folder:
        config = ClusterConfig(state=Path(folder) / "state", replicas=2, http=HttpConfig(port=PORT))

        def serve() -> None:
            try:
                saved.append(run(config, address=None, stop=stop, ready=lambda *_: ready.set()))
            finally:
                ready.set()

        thread = threading.Thread(target=serve)
        thread.start()
        ready.wait()
        try:
            versions = ask(f"http://127.0.0.1:{PORT}")
        finally:
            stop.set()
            thread.join()
    print(f"merge versions that answered: {sorted(versions)}; all was saved: {saved == [True]}")
    return versions


def ask(url: str) -> set[int]:
    """Be a client; either replica may answer, and both with the same version."""
    versions = set()
    for _ in range(10):
        answer = httpx2.post(f"{url}/v1/classify", json={"inputs": [TEXT]}, timeout=60).raise_for_status().json()
        versions.add(int(answer["merge_version"]))
        output = answer["outputs"][0]
        given = [{"request_id": output["request_id"], "reward": 1.0 if output["label"] == "positive" else 0.0}]
        httpx2.post(f"{url}/v1/feedback", json={"feedback": given}, timeout=60).raise_for_status()
    return versions


if __name__ == "__main__":
    main()
