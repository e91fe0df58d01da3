"""Define notes under an answer: one line each, with an explanation for `--why`."""


class Note(str):
    """One-line note with an explanation; it equals its text, so repeated notes are recognized."""

    why: str
    """Sentences that `--why` prints below the note; empty if the note needs none."""

    def __new__(cls, text: str, why: str = "") -> "Note":
        """Create a note from a text and its explanation."""
        note = super().__new__(cls, text)
        note.why = why
        return note
