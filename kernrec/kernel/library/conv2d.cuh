// What convolution kernels share: division by numbers that the host knows, and where filter taps meet the input.

// A divisor d known to the host: multiplier and shift such that n / d = umulhi(n, multiplier) >> shift for n < 2^31. No
// multiplier does this for d = 1: there it is 0 and `is_one` is 1.
struct Divisor {
    unsigned value, multiplier, shift, is_one;

    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        return (__umulhi(n, multiplier) >> shift) + n * is_one;
    }
};

// How outputs and filter taps are laid over the input.
struct Geometry {
    unsigned channels, height, width;  // of x, all groups
    unsigned stride, padding, dilation;
};
