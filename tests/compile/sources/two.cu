// a comment with void first(int) { and a brace
#define SIZE 4
extern "C" __global__ void first(int* x) {
    x[0] = '}' + SIZE;  /* } */
}

extern "C" __global__ void __launch_bounds__(64) second(int* x)
{
    #pragma unroll
    for (int i = 0; i < SIZE; i++) { x[i] = i; }
}
