from tanbr.serve.jobs import Job
from tanbr.serve.records import Answered, ServiceError


def test_a_job_is_wanted_until_it_leaves_or_its_client_does() -> None:
    job, left, cancelled = Job(["a"]), Job(["a"], left=True), Job(["a"])
    cancelled.future.cancel()
    assert (job.wanted, left.wanted, cancelled.wanted) == (True, False, False)


def test_whoever_is_first_decides_and_the_rest_is_ignored() -> None:
    job, answer = Job(["a"]), Answered(("id",), None, 1, ())  # type: ignore[arg-type]
    job.resolve(answer)
    job.fail(ServiceError("too late"))
    assert job.future.result(0) is answer
    failed = Job(["a"])
    failed.fail(ServiceError("broken"))
    failed.resolve(answer)
    assert str(failed.future.exception(0)) == "broken"


def test_a_client_that_gave_up_hears_nothing() -> None:
    job = Job(["a"])
    job.future.cancel()
    job.fail(ServiceError("broken"))
    job.resolve(Answered(("id",), None, 1, ()))  # type: ignore[arg-type]
    assert job.future.cancelled()
