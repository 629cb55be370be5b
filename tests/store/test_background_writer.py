"""What the thread that writes checkpoints leaves behind when it is done."""

from __future__ import annotations

from detrain.store.background_writer import Writer


class Content:
    """A state that notes whether its write still counted as under way when it was let go."""

    def __init__(self, writer: Writer, found: list[bool]) -> None:
        self._writer, self._found = writer, found

    def write(self) -> None:
        """Take as long as any write of nothing."""

    def __del__(self) -> None:
        self._found.append(self._writer._under_way.locked())


def test_what_was_written_is_let_go_before_the_write_is_over() -> None:
    """Behind its end the interpreter may end, too: C++ that deletes a tensor in a thread then aborts the process."""
    writer, found = Writer(), list[bool]()
    writer.write(Content(writer, found).write, is_large=True)
    writer.drain()
    assert found == [True]
