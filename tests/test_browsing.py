from pathlib import Path

import pytest

from browsing import find_chromium


def test_without_a_browser_a_test_is_skipped_but_not_in_ci(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="install chromium"):
        find_chromium({"PATH": str(tmp_path)})
    with pytest.raises(pytest.fail.Exception, match="CI must not skip the browser tests"):
        find_chromium({"PATH": str(tmp_path), "CI": "true"})
    program = tmp_path / "chromium"
    program.touch(mode=0o755)
    assert find_chromium({"PATH": str(tmp_path), "CI": "true"}) == str(program)
