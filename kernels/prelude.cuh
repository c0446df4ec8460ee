// What all probe kernels share. No CUDA header is needed: NVRTC knows the built-in variables and functions.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

// The u32 that belongs at an index: buffers are filled with it, so that whoever reads them knows what must come out.
// `partywall_driver::kernels::pattern` is the same function on the host. The multiplications are those of the
// MurmurHash3 finaliser (public domain), which takes every u32 to a different one.
__device__ __forceinline__ u32 pattern(u32 index) {
    index ^= index >> 16;
    index *= 0x85ebca6bu;
    index ^= index >> 13;
    index *= 0xc2b2ae35u;
    return index ^ (index >> 16);
}

// The fp16 bits of a small whole number.
__device__ __forceinline__ u16 half_bits(int value) {
    u16 bits;
    asm("cvt.rn.f16.s32 %0, %1;" : "=h"(bits) : "r"(value));
    return bits;
}

// Blocks add into slots that are this many u32 apart (256 B, so that two slots never share a cache line).
enum : u32 { SLOT_STRIDE = 64 };

__device__ __forceinline__ u32 global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u32 all_threads() { return gridDim.x * blockDim.x; }

// Adds every thread's value to the block's slot of `sums`, modulo 2^32: a sum that does not depend on the order, and
// costs each warp one reduction that nobody waits for. All threads of the block must call it.
__device__ __forceinline__ void add_to_slot(u32 value, u32* sums, u32 slots) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[(blockIdx.x % slots) * SLOT_STRIDE], value);
    }
}

__device__ __forceinline__ u64 global_nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ u32 multiprocessor() {
    u32 id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}
