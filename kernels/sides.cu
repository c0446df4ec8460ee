
// Where memory lives: how long atomic operations take, and which of them get in each other's way.
#include "prelude.cuh"

// A place is a line of 128 B, counted from the beginning of `memory`.
enum : u32 { LINE_WORDS = 32 };

// For each of `count` places, the mean time of an atomic operation there, in 256ths of a cycle: `length` of them, each waiting for the
// one before. The blocks share the places; one thread of each works, so that nothing else is in the way. Places beyond `lines` are left
// out. `nothing` is 0, which the compiler does not know: what is added is 0 and depends on what was there, and memory stays as it is.
extern "C" __global__ void chain_atomics(
    u32* memory, const u32* places, u32 count, u32 lines, u32 length, u32 nothing, u32* times) {
    if (threadIdx.x != 0) {
        return;
    }
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        const u32 place = places[i];
        if (place >= lines) {
            continue;
        }
        u32* word = memory + (u64)place * LINE_WORDS;
        // The first one brings what it takes to find the place; it does not count.
        u32 zero = atomicAdd(word, nothing) & nothing;
        // Never so: but who wants to know has to wait for the answer, and the clock is read then.
        if (zero != nothing) {
            return;
        }
        const long long begin = clock64();
        for (u32 k = 0; k < length; ++k) {
            zero = atomicAdd(word, zero) & nothing;
        }
        if (zero != nothing) {
            return;
        }
        const u64 cycles = (u64)(clock64() - begin);
        times[i] = (u32)(cycles * 256 / length);
    }
}

// Waits until all blocks are here for the `round`th time.
__device__ __forceinline__ void together(u32* arrived, u32 round) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
        while (*(volatile u32*)arrived < round * gridDim.x) {
        }
    }
    __syncthreads();
}

// For each of `count` pairs of places, how many cycles the slowest block takes for `length` atomic operations of each of its threads, half of
// the blocks to one place and half to the other. A second place beyond `lines` stands for none: then half of the blocks do nothing. All blocks
// have to be there at the same time. `arrived` begins as 0; `nothing` is 0, as above.
extern "C" __global__ void contend(
    u32* memory, const u32* pairs, u32 count, u32 lines, u32 length, u32 nothing, u32* arrived, u32* cycles) {
    for (u32 i = 0; i < count; ++i) {
        together(arrived, i + 1);
        const u32 place = pairs[2 * i + blockIdx.x % 2];
        if (place >= lines) {
            continue;
        }
        u32* word = memory + (u64)place * LINE_WORDS + threadIdx.x % LINE_WORDS;
        const long long begin = clock64();
        for (u32 k = 1; k < length; ++k) {
            atomicAdd(word, nothing);
        }
        // The last one is waited for, and with it all before.
        const u32 zero = atomicAdd(word, nothing) & nothing;
        __threadfence();
        const u64 taken = (u64)(clock64() - begin) + zero;
        atomicMax(&cycles[i], (u32)taken);
    }
}
