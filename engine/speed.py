"""Print how many lane-instructions per second the engine runs on one core.

python engine/speed.py
"""

import time

import numpy as np

from kernrec.ptx import KernelLaunch, emulate, parse

LOOP = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x)
{
.reg .pred %p<3>; .reg .b32 %r<30>; .reg .b64 %a<5>;
.shared .align 16 .b8 tile[8192];
ld.param.u64 %a0, [x]; mov.u32 %r0, %tid.x; mul.wide.u32 %a1, %r0, 4; add.u64 %a0, %a0, %a1;
shr.u32 %r2, %r0, 4; and.b32 %r2, %r2, 7; mul.lo.u32 %r2, %r2, 64; and.b32 %r3, %r0, 15; mad.lo.u32 %r3, %r3, 4, 2048;
mov.u32 %r1, 0; mov.u32 %r4, 0;
L:
ld.shared.u32 %r10, [%r2]; ld.shared.u32 %r11, [%r3]; mad.lo.u32 %r4, %r10, %r11, %r4;
ld.shared.u32 %r10, [%r2+4]; ld.shared.u32 %r11, [%r3+64]; mad.lo.u32 %r4, %r10, %r11, %r4;
ld.shared.u32 %r10, [%r2+8]; ld.shared.u32 %r11, [%r3+128]; mad.lo.u32 %r4, %r10, %r11, %r4;
ld.shared.u32 %r10, [%r2+12]; ld.shared.u32 %r11, [%r3+192]; mad.lo.u32 %r4, %r10, %r11, %r4;
ld.global.u32 %r12, [%a0]; add.u64 %a0, %a0, 4; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, TRIPS; @%p1 bra L;
st.global.u32 [%a0], %r4;
ret;
}
"""
DIVERGENT = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x)
{
.reg .pred %p<3>; .reg .b32 %r<30>; .reg .b64 %a<5>;
ld.param.u64 %a0, [x]; mov.u32 %r0, %tid.x; mul.wide.u32 %a1, %r0, 4; add.u64 %a0, %a0, %a1;
mov.u32 %r1, 0; mov.u32 %r4, %r0;
L:
and.b32 %r5, %r4, 1; setp.eq.u32 %p1, %r5, 0; @%p1 bra E;
mad.lo.u32 %r4, %r4, 3, 1; xor.b32 %r6, %r4, %r0; add.u32 %r7, %r6, %r4;
shl.b32 %r8, %r7, 3; sub.u32 %r9, %r8, %r6; min.u32 %r9, %r9, %r4; bra F;
E: shr.u32 %r4, %r4, 1; add.u32 %r6, %r4, %r0; or.b32 %r7, %r6, 5;
mul.lo.u32 %r8, %r7, %r6; max.u32 %r9, %r8, %r4; add.u32 %r4, %r4, %r1;
F: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, TRIPS; @%p1 bra L;
st.global.u32 [%a0], %r4;
ret;
}
"""
MMA = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x)
{
.reg .pred %p<3>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %a<5>;
.shared .align 16 .b8 tile[8192];
ld.param.u64 %a0, [x]; mov.u32 %r0, %tid.x; mov.u32 %r1, 0; mov.u32 %r2, %laneid; mul.lo.u32 %r2, %r2, 16;
mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1}; bar.sync 0;
L:
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r8, %r9}, [%r2];
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3},
 {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%f0, %f1, %f2, %f3};
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3},
 {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%f0, %f1, %f2, %f3};
add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, TRIPS; @%p1 bra L;
st.global.f32 [%a0], %f0;
ret;
}
"""
CASES = {"loop of the sketch": (LOOP, 17, 3000), "divergent": (DIVERGENT, 15, 1500), "mma": (MMA, 7, 1500)}
"""(PTX, instructions per trip, trips), by name."""


def speed(text: str, instructions: int, trips: int, threads: int) -> float:
    """Return millions of lane-instructions per second of processor time, the best of three runs."""
    module, best = parse(text.replace("TRIPS", str(trips))), float("inf")
    for _ in range(3):
        launch = KernelLaunch("k", (1,), (threads,), ["x"], {"x": np.zeros(1 << 16, np.uint32)})
        begin = time.process_time()
        emulate(module, launch, budget=10**9)
        best = min(best, time.process_time() - begin)
    return instructions * trips * threads / best / 1e6


def main() -> None:
    """Print a line for each case and size of a thread block."""
    for name, case in CASES.items():
        for threads in (128, 1024):
            print(f"{name:20}{threads:5} threads: {speed(*case, threads):6.0f} M lane-instructions/s", flush=True)


if __name__ == "__main__":
    main()
