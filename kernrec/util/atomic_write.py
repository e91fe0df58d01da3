"""Files that appear whole or not at all, whatever ends the program that writes them."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Put `data` at `path`, in place of what is there; raises `OSError`, and leaves nothing behind where it cannot.

    shared: others may read it, and it is on the disk before it is there; a cache needs neither.
    """
    import tempfile  # what is read far more often than written need not wait for it

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if shared:
                file.flush()
                os.fsync(file.fileno())
        if shared:
            os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
