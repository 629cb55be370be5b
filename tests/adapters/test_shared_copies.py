"""Which places of a compiled function share a copy: what one of them gets, each of the others gets, too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detrain.adapters.shared_copies import copies

PLACES = st.integers(1, 300).flatmap(lambda count: st.tuples(st.just([f"op {n}" for n in range(count)]), st.integers(0, count - 1)))


@given(PLACES)
def test_a_copy_is_the_same_for_all_of_its_places(given_places: tuple[list[str], int]) -> None:
    together, at = given_places
    found = list(copies(together, (together[at],)))
    assert found[-1] == (together[at],)
    for level, places in enumerate(found):
        assert together[at] in places
        assert list(places) == sorted(places, key=together.index)
        assert all(list(copies(together, (each,)))[level] == places for each in places) or level == len(found) - 1


@given(PLACES)
def test_each_place_is_in_one_copy(given_places: tuple[list[str], int]) -> None:
    together, _at = given_places
    sets = {next(copies(together, (each,))) for each in together}
    assert sorted(each for places in sets for each in places) == sorted(together)
    assert max(map(len, sets)) <= 8


def test_several_that_are_hit_at_once_are_in_one_copy_and_others_stand_alone() -> None:
    together = [f"op {n}" for n in range(100)]
    first, *_others = copies(together, ("op 3", "op 10"))
    assert set(first) == {each for at in ("op 3", "op 10") for each in next(copies(together, (at,)))}
    assert list(copies(together, ("an operand",))) == [("an operand",)]
    assert list(copies(together, ("op 3", "an operand"))) == [("op 3", "an operand")]
