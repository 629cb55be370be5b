"""What is named by its turn within its owner, and what a resumed process counts on from."""

import sys
import weakref

import numpy as np

from detrain.adapters.stable_names import Births


class Made:
    pass


class Owner:
    def make(self, births: Births, held: list[Made]) -> None:
        made = Made()
        births.register(made, "made", sys._getframe())
        held.append(made)


LIBRARY = """
def build(self, births, made):
    births.register(made, "built", sys._getframe())
def call(self, act, *args):
    act(*args)
"""
_names: dict[str, object] = {"sys": sys}
exec(compile(LIBRARY, np.__file__, "exec"), _names)


def begun() -> tuple[Births, Owner]:
    births, owner = Births(), Owner()
    births.register(owner, "owner")
    births.begin_loop(None)
    return births, owner


def test_what_is_made_once_and_alive_is_made_again() -> None:
    births, owner = begun()
    held: list[Made] = []
    owner.make(births, held)
    owner.make(births, held)

    assert births.recreated_counts() == {}
    held.clear()
    owner.make(births, [])
    assert births.recreated_counts() == {"owner": {"made": 3}}


def test_what_is_made_at_several_moments_is_counted_on() -> None:
    births, owner = begun()
    held: list[Made] = []
    for moment in range(2):
        births.moment = lambda moment=moment: moment  # type: ignore[misc]
        owner.make(births, held)
    again, other = begun()
    again.set_recreated_counts(births.recreated_counts())
    other.make(again, held)

    assert births.recreated_counts() == {"owner": {"made": 2}}
    assert again.key(held[2]) == "owner/made.2"
    assert again.recreated_counts() == {"owner": {"made": 3}}


def test_what_a_library_builds_is_not_counted_on_but_what_the_program_makes_under_it() -> None:
    births, owner = begun()
    build, call = (lambda *args, name=name: _names[name](owner, *args) for name in ("build", "call"))  # type: ignore[operator]
    made = [Made(), Made()]
    for moment, each in enumerate(made):
        births.moment = lambda moment=moment: moment  # type: ignore[misc]
        build(births, each)
        call(lambda: births.register(Made(), "made", sys._getframe()))

    assert births.key(made[1]) == "owner/built.1"
    assert births.recreated_counts() == {"owner": {"made": 2}}


def test_what_is_being_built_is_not_of_the_loop() -> None:
    births, owner = begun()
    births.is_building = lambda: True
    held: list[Made] = []
    owner.make(births, held)
    births.is_building = lambda: False
    owner.make(births, held)

    assert [births.is_of_loop(each) for each in held] == [False, True]
    gone = weakref.ref(held.pop())
    assert gone() is None
    assert births.recreated_counts() == {"owner": {"made": 2}}
