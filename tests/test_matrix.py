import sys
from pathlib import Path

from matrix import ROOT, examples
from processes import finished

PROGRAM = """
from hypothesis import given, strategies as st

@given(st.lists(st.integers(), min_size=2), st.just("a (b)\\n)"))
def test_it(numbers, text):
    assert sum(numbers) < 20
"""


def test_an_example_that_hypothesis_found_is_printed_as_a_decorator(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "test_it.py"]
    done = finished(command, cwd=tmp_path)
    assert examples(done.stdout) == [r"@example(numbers=[0, 20], text='a (b)\n)')  # test_it"]
