from tanbr.serve.web.connections import DOORSTEP, Connections


def test_a_client_has_so_many_connections_and_no_more() -> None:
    places: Connections[str] = Connections(most=10, of_client=3, unlimited=["proxy"])
    for n in range(3):
        assert places.admit(f"a{n}", "a").seated
        places.work(f"a{n}")
    assert not places.admit("a3", "a").seated
    assert places.admit("b0", "b").seated  # others have room
    for n in range(4):
        assert places.admit(f"p{n}", "proxy").seated
    places.leave("a1")
    assert places.admit("a4", "a").seated


def test_a_connection_that_rests_gives_way() -> None:
    places: Connections[str] = Connections(most=10, of_client=3)
    for n in range(3):
        places.admit(f"a{n}", "a")  # says nothing yet: rests
    places.work("a0")
    admitted = places.admit("a3", "a")
    assert admitted.seated
    assert admitted.closing == "a1"  # has rested longest
    places.rest("a0")
    places.work("a2")
    places.work("a3")
    assert places.admit("a4", "a").closing == "a0"
    assert len(places) == 3


def test_when_all_places_are_taken_the_client_with_most_gives_way() -> None:
    places: Connections[str] = Connections(most=5, of_client=4)
    places.admit("b0", "b")
    for n in range(4):
        places.admit(f"a{n}", "a")
    admitted = places.admit("c0", "c")
    assert admitted.seated
    assert admitted.closing == "a0"  # though b0 has rested longer
    for one in ("a1", "a2", "a3", "b0", "c0"):
        places.work(one)
    assert not places.admit("d0", "d").seated


def test_the_doorstep_is_short_and_the_newest_stands_on_it() -> None:
    places: Connections[int] = Connections(most=1, of_client=1)
    places.admit(-1, "a")
    places.work(-1)
    admitted = [places.admit(n, "a") for n in range(DOORSTEP + 2)]
    assert not any(one.seated for one in admitted)
    assert [one.closing for one in admitted] == [None] * DOORSTEP + [0, 1]
    places.leave(2)
    assert places.admit(99, "a").closing is None
    places.leave(-1)
    places.leave(-1)
    assert places.admit(100, "a").seated
