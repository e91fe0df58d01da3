"""Add the bodies of `malloc` and `free` to PTX that calls them; a GPU's driver provides them.

`malloc` takes the next bytes of a fixed heap, and `free` does nothing.
"""

import re

_DECLARED = re.compile(r"\.extern\s+\.func\s[^;{]*\b(malloc|free)\b[^;{]*;")
_HEAP_BYTES = 64 << 20
_HEAP = f"""
.global .align 16 .b8 kernrec_heap[{_HEAP_BYTES}];
.func (.param .b64 kernrec_address) malloc(.param .b64 kernrec_bytes)
{{
.reg .pred %p<1>;
.reg .b64 %rd<5>;
ld.param.u64 %rd0, [kernrec_bytes];
add.u64 %rd0, %rd0, 15;
and.b64 %rd0, %rd0, -16;
mov.u64 %rd1, kernrec_heap;
atom.global.add.u64 %rd2, [%rd1], %rd0; // The heap starts with the number of bytes in use.
add.u64 %rd3, %rd2, %rd0;
setp.gt.u64 %p0, %rd3, {_HEAP_BYTES - 16};
neg.s64 %rd0, %rd0;
@%p0 red.global.add.u64 [%rd1], %rd0;
add.u64 %rd4, %rd1, %rd2;
add.u64 %rd4, %rd4, 16;
cvta.global.u64 %rd4, %rd4;
selp.b64 %rd4, 0, %rd4, %p0;
st.param.b64 [kernrec_address], %rd4;
ret;
}}
.func free(.param .b64 kernrec_freed)
{{
ret;
}}
"""


def with_device_heap(text: str) -> str:
    """Return PTX text that defines the `malloc` and `free` that it declares."""
    return text + _HEAP if "malloc" in text and _DECLARED.search(text) else text
