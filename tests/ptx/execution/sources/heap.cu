extern "C" __global__ void k(int* x, unsigned long long* places, int bytes) {
    int* own = (int*)malloc(bytes);
    places[threadIdx.x] = (unsigned long long)own;
    int* again = new int(x[threadIdx.x]);
    if (own) own[0] = *again, own[bytes / 4 - 1] = 7;
    __syncthreads();
    int* other = (int*)places[63 - threadIdx.x];
    x[threadIdx.x] = other ? other[0] : -1;
    delete again;
    free(own);
}
