"""Write recommended configs as files that work without kernrec: source code, PTX, tuning tables or a CMake project."""

from kernrec.emit.formats import FORMATS as FORMATS
from kernrec.emit.formats import Files as Files
from kernrec.emit.formats import Format as Format
from kernrec.emit.formats import emit as emit
from kernrec.emit.formats import format_named as format_named
from kernrec.emit.formats import write_files as write_files
