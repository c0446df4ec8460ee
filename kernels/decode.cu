// What a language model does for each token at batch 1, in whole numbers modulo 2^32: every weight is read once, and
// the whole cache of keys and values so far.
#include "prelude.cuh"

// Begins token `position` of sequence `sequence`: writes the layers' input and appends one entry of `words` words to
// each layer's cache. The cache is [layer][position][word] with room for `capacity` positions; its words are
// pattern(index) + sequence, those of the input pattern(position * input_words + i) + sequence.
extern "C" __global__ void begin_token(u32* cache, u32 layers, u32 capacity, u32 words, u32 position, u32 sequence,
                                       u32* input, u32 input_words) {
    for (u32 i = global_thread(); i < layers * words; i += all_threads()) {
        const u64 at = ((u64)(i / words) * capacity + position) * words + i % words;
        cache[at] = pattern((u32)at) + sequence;
    }
    for (u32 i = global_thread(); i < input_words; i += all_threads()) {
        input[i] = pattern(position * input_words + i) + sequence;
    }
}

// output[r] = the product of row r of the weights with the input, signed bytes, four to a word; one warp per row.
extern "C" __global__ void project(const uint4* weights, const uint4* input, u32 rows, u32 quads_per_row, int* output) {
    const u32 lane = threadIdx.x % 32;
    for (u32 row = global_thread() / 32; row < rows; row += all_threads() / 32) {
        const uint4* line = weights + (u64)row * quads_per_row;
        int sum = 0;
#pragma unroll 4
        for (u32 i = lane; i < quads_per_row; i += 32) {
            const uint4 w = line[i], x = input[i];
            sum = __dp4a((int)w.x, (int)x.x, sum);
            sum = __dp4a((int)w.y, (int)x.y, sum);
            sum = __dp4a((int)w.z, (int)x.z, sum);
            sum = __dp4a((int)w.w, (int)x.w, sum);
        }
        for (int distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        if (lane == 0) {
            output[row] = sum;
        }
    }
}

// The query times every entry of a layer's cache so far (`quads` quads of 16 B, `quads_per_entry` to an entry), added
// to the slots. Word w of the query is pattern(w).
extern "C" __global__ void attend(const uint4* cache, u64 quads, u32 quads_per_entry, u32* sums, u32 slots) {
    u32 total = 0;
    for (u64 i = global_thread(); i < quads; i += all_threads()) {
        const uint4 v = cache[i];
        const u32 w = (u32)(i % quads_per_entry) * 4;
        total += v.x * pattern(w) + v.y * pattern(w + 1) + v.z * pattern(w + 2) + v.w * pattern(w + 3);
    }
    add_to_slot(total, sums, slots);
}
