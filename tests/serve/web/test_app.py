import httpx2

from serve.web.live import refusal


def test_strange_paths_and_methods_are_told_where_to_go(http: httpx2.Client) -> None:
    for method, path, status, says in (
        ("GET", "/v2/classify", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/dashboard/..%2fapp.py", 404, "there is nothing at this path; /openapi.json says what there is"),
        ("GET", "/dashboard/app.py", 404, "there is no such part of the dashboard"),
        ("GET", "/v1/classify", 405, "use POST here"),
        ("DELETE", "/v1/state", 405, "use GET here"),
        ("POST", "/v1/completions", 404, "the model here classifies: use /v1/classify"),
        ("GET", "/v1/models/gpt-9", 404, "the model here is 'fake'"),
        ("GET", "/v1/slots?limit=0", 422, "limit must be greater than or equal to 1"),
        ("GET", "/v1/slots?before=1e3", 422, "before must be a valid integer, unable to parse string as an integer"),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, refusal(answer)) == (status, says)
    assert http.get("/v1/models").json()["data"][0]["id"] == "fake"
