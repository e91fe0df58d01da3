"""A source may include headers of CUDA by their names; no other file can be named, however it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.checking.includes import check_includes
from kernrec.errors import UsageError

HOSTILE = (
    '#include "/etc/passwd"',
    "#include </etc/passwd>",
    "#include <../../etc/passwd>",
    '#include "helper.cuh"',
    "  #  include\t<cuda/../../../etc/passwd>",
    "#/* hidden */include </etc/passwd>",
    "#/* two\nlines */ include </etc/passwd>",
    "#in\\\nclude </etc/passwd>",
    "#in\\  \nclude </etc/passwd>",
    "#\\\r\ninclude </etc/passwd>",
    '%:include "/etc/passwd"',
    '??=include "/etc/passwd"',
    '#define F "/etc/passwd"\n#include F',
    "#include_next </etc/passwd>",
    '#import "/etc/passwd"',
    '#embed "/etc/passwd"',
    '#if __has_include("/etc/passwd")\n#endif',
    '_Pragma("once")',
    'R"(/*)"\n#include "/etc/passwd"\n//*/',
    'asm(".incbin \\"/etc/passwd\\"");',
    "#include <a>\n#include </etc/passwd>",
    "#include <cuda_fp16.h> </etc/passwd>",
    "#i\\u006eclude </etc/passwd>",
    "#include </etc/passwd>\r#include <cuda_fp16.h>",
)


@pytest.mark.parametrize("source", HOSTILE)
def test_a_source_that_names_a_file_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match=r"kernel\.cu: ") as refused:
        check_includes(source, "kernel.cu")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "#include <cuda_fp16.h>",
        "#  include <cooperative_groups/reduce.h> // sums",
        "#include <mma.h>\n#include <cuda/std/limits>\n#define N 4\n#pragma unroll\n__global__ void f() {}",
        "int include = 3; // a word",
        ".version 8.0\n.target sm_80\n.visible .entry f() { ret; }",
    ],
)
def test_headers_by_name_are_accepted(source: str) -> None:
    check_includes(source, "kernel.cu")


@given(st.sampled_from(["", " ", "\t", "/* x */", "\\\n", "a;\n"]), st.sampled_from(["", " ", "/**/", "\\\n"]))
def test_what_stands_before_and_between_hides_nothing(before: str, spaces: str) -> None:
    with pytest.raises(UsageError):
        check_includes(f'{before}#{spaces}include{spaces}"/etc/passwd"', "kernel.cu")
