"""Notes under an answer: one line each, with an explanation for readers who ask why."""


class Note(str):
    """A note of one line with its explanation; equal to its text, by which repeated notes are told apart."""

    why: str
    """Sentences that `--why` prints below the note; empty if the note says it all."""

    def __new__(cls, text: str, why: str = "") -> "Note":
        """Make a note of a text and its explanation."""
        note = super().__new__(cls, text)
        note.why = why
        return note
