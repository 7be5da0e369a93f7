import pytest

from tanbr.serve.web.limits import REMEMBERED, BodyMemory, RateLimit, client_of


def test_the_rate_is_each_clients_own_and_memory_is_bounded() -> None:
    limit = RateLimit(2.0, 1)
    assert limit.wait("a", 0.0) == 0
    assert limit.wait("a", 0.1) == pytest.approx(0.4)
    assert limit.wait("b", 0.1) == 0
    assert limit.wait("a", 0.6) == 0
    for n in range(2 * REMEMBERED):
        limit.wait(str(n), 1.0)
    assert len(limit) == REMEMBERED
    assert client_of("10.1.2.3") == "10.1.2.3"
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff") == "2001:db8::/64"
    assert client_of("2001:db8:0:1::1") != client_of("2001:db8::1")


def test_bodies_in_memory_are_counted_and_given_back() -> None:
    held = BodyMemory(10)
    assert held.take(8)
    assert not held.take(3)
    held.give_back(8)
    assert held.take(10)


def test_ipv4_clients_of_a_socket_for_both_families_are_told_apart() -> None:
    assert client_of("::ffff:10.1.2.3") == client_of("10.1.2.3") == "10.1.2.3"
    assert client_of("::ffff:10.1.2.4") != client_of("::ffff:10.1.2.3")
    assert client_of("fe80::1%eth0") == "fe80::/64"
    assert client_of("local") == "local"


def test_what_is_taken_beyond_the_burst_is_owed_and_paid_back_by_the_rate() -> None:
    limit = RateLimit(10.0, 100)
    assert limit.wait("a", 0.0, cost=0.0) == 0
    limit.take("a", 90.0, 0.0)
    assert limit.wait("a", 0.0, cost=0.0) == 0
    limit.take("a", 60.0, 0.0)
    assert limit.wait("a", 0.0, cost=0.0) == pytest.approx(5.0)
    assert limit.wait("a", 4.0, cost=0.0) == pytest.approx(1.0)
    assert limit.wait("a", 5.0, cost=0.0) == 0
    assert limit.wait("b", 0.0, cost=0.0) == 0
    assert len(limit) == 1  # who owes nothing is not remembered
