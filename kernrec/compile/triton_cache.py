"""Store the results of a compilation for Triton, which loads the class named in TRITON_CACHE_MANAGER.

Triton's own class also converts the code of each stage to text, and creates a folder for each file.
"""

import os
from typing import Any

from triton.runtime.cache import FileCacheManager

_INTERMEDIATE = (".source", ".ttir", ".ttgir", ".llir")


class ResultFiles(FileCacheManager):  # type: ignore[misc]
    """Files of one compilation. Files of intermediate code are empty unless Triton dumps the code for the user."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        self._is_dump = dump

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file, and return its path."""
        if self._is_dump:
            return str(super().put(data, filename, binary))
        path = os.path.join(self.cache_dir, filename)
        with open(path, "wb") as file:
            if not filename.endswith(_INTERMEDIATE):
                file.write(data if isinstance(data, bytes) else str(data).encode())
        return path
