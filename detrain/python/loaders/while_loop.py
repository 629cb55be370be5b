"""What stands for the loader of a `while` loop: it has none."""

from __future__ import annotations


class WhileLoop:
    """A `while` loop over batches: nothing is drawn from, its position is in the names that the program moves on."""

    iterable = iterator = iteration_id = None
    is_fetched_in_body = False

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
