import io
import json
import logging

from tanbr.serve.web import logs


def test_a_request_is_one_line_of_the_log_whatever_its_path() -> None:
    stream = io.StringIO()
    logs.to_stream(stream, level=logging.DEBUG)
    logs.say_request(
        route="other", method="GET", path="/\n{}\x1b[31m" + "x" * 500, status=404, seconds=0.001, client="::1"
    )
    logs.to_stream(stream)
    logs.say_request(route="other", method="GET", path="/", status=404, seconds=0.001, client="::1")
    (line,) = stream.getvalue().splitlines()
    assert len(json.loads(line)["path"]) == logs.LONGEST
    assert "\x1b" not in line
    try:
        raise ValueError("x")
    except ValueError:
        logs.logger.exception("broke")
    assert "ValueError" in json.loads(stream.getvalue().splitlines()[-1])["traceback"]
