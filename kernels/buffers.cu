// Filling buffers so that what is read from them can be checked exactly, and checking them.
#include "prelude.cuh"

// words[i] = pattern(first + i) + add
extern "C" __global__ void fill_pattern(u32* words, u64 count, u32 first, u32 add) {
    for (u64 i = global_thread(); i < count; i += all_threads()) {
        words[i] = pattern(first + (u32)i) + add;
    }
}

// How many of words[i] differ from pattern(first + i) + add, added to `wrong`.
extern "C" __global__ void count_wrong(const u32* words, u64 count, u32 first, u32 add, u64* wrong) {
    u32 mine = 0;
    for (u64 i = global_thread(); i < count; i += all_threads()) {
        mine += words[i] != pattern(first + (u32)i) + add;
    }
    if (mine > 0) {
        atomicAdd(wrong, (u64)mine);
    }
}

// Two sums of the words, modulo 2^64, added to sums[0] and sums[1]: plain, and weighted with index + 1, so that words
// that changed places are noticed.
extern "C" __global__ void checksum(const u32* words, u64 count, u64* sums) {
    u64 plain = 0, weighted = 0;
    for (u64 i = global_thread(); i < count; i += all_threads()) {
        plain += words[i];
        weighted += words[i] * (i + 1);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        plain += __shfl_xor_sync(0xffffffffu, plain, distance);
        weighted += __shfl_xor_sync(0xffffffffu, weighted, distance);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[0], plain);
        atomicAdd(&sums[1], weighted);
    }
}

// halves[i] = a whole number from -2 to 2 in fp16, chosen by pattern(first + i): products and sums of such numbers are
// exact in fp32 up to 2^24, whatever the order of adding.
extern "C" __global__ void fill_halves(u16* halves, u64 count, u32 first) {
    for (u64 i = global_thread(); i < count; i += all_threads()) {
        halves[i] = half_bits((int)(pattern(first + (u32)i) % 5) - 2);
    }
}

// The links of a pointer chase over `nodes` (a power of two) nodes, `stride` u32 apart: node n links to
// (n * multiplier + increment) mod nodes. With an odd increment and a multiplier of the form 4k + 1 this is one cycle
// through all nodes (Hull and Dobell 1962), and where s steps lead is known without walking them.
extern "C" __global__ void fill_links(u32* links, u32 nodes, u32 stride, u32 multiplier, u32 increment) {
    for (u64 n = global_thread(); n < nodes; n += all_threads()) {
        links[n * stride] = ((u32)n * multiplier + increment) & (nodes - 1);
    }
}
