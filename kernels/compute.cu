// Work that touches next to no memory.
#include "prelude.cuh"

// Each thread iterates x = x * x - 1.9 in fp32, one fused multiply-add at a time, and leaves the last x in `out`. The
// sequence wanders through (-2, 2) without settling, so the multipliers never see constant data, and IEEE 754 fixes every
// bit of it. Thread t starts from 0.0625 * (t mod 8), so there are 8 results to check. `iterations` is a multiple of 64.
extern "C" __global__ void multiply_add(float* out, u32 count, u32 iterations) {
    float x = 0.0625f * (float)(threadIdx.x % 8);
    for (u32 i = 0; i < iterations; i += 64) {
#pragma unroll
        for (u32 k = 0; k < 64; k++) {
            x = __fmaf_rn(x, x, -1.9f);
        }
    }
    if (global_thread() < count) {
        out[global_thread()] = x;
    }
}

// One step of a linear congruential sequence, by one thread: a kernel that is nothing but its launch, and a chain in
// which each must see what the one before it wrote.
extern "C" __global__ void step_once(u32* value) {
    if (global_thread() == 0) {
        *value = *value * 1664525u + 1013904223u;
    }
}
