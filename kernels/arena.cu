// Memory of one color: copies into and out of an arena, and readers and writers that keep to it.
//
// A program sees an arena as bytes without gaps, counted from 0. Byte `at` is in one of two neighbouring stretches of the mapped memory, the one
// whose address has the right parity; `partywall_vram::coloring` is the same arithmetic on the host. With a mask of one bit
// only, that of the stretches, it is always the first or always the second of the two: as much arithmetic, and data on both sides.
#include "prelude.cuh"

enum : u32 { QUAD = 16, PIECE = 1024, CHUNK = 65536 };

struct Arena {
    u64 mapped;
    u32 mask;
    u32 odd;

    __device__ __forceinline__ u64 place(u64 at) const {
        const u32 stretch = mask & (0u - mask);
        const u64 even = mapped + 2 * at - (at & (stretch - 1));
        const u32 wrong = (__popc((u32)even & mask) & 1) ^ odd;
        return even + (wrong ? stretch : 0);
    }
};

// Copies have quads of 16 B, counted from the arena's beginning, with what is missing at both ends copied byte by byte. So the linear memory has the
// first byte of the arena's range at its byte `at % 16`.
template <bool into>
__device__ __forceinline__ void copy(const Arena arena, u64 at, u64 bytes, unsigned char* linear) {
    const u64 first = at / QUAD;
    const u64 quads = (at + bytes + QUAD - 1) / QUAD - first;
    for (u64 i = global_thread(); i < quads; i += all_threads()) {
        const u64 begin = (first + i) * QUAD;
        unsigned char* colored = (unsigned char*)arena.place(begin);
        unsigned char* plain = linear + i * QUAD;
        if (begin >= at && begin + QUAD <= at + bytes) {
            if (into) {
                *(uint4*)colored = *(const uint4*)plain;
            } else {
                *(uint4*)plain = *(const uint4*)colored;
            }
            continue;
        }
        for (u32 k = 0; k < QUAD; k++) {
            if (begin + k >= at && begin + k < at + bytes) {
                if (into) {
                    colored[k] = plain[k];
                } else {
                    plain[k] = colored[k];
                }
            }
        }
    }
}

extern "C" __global__ void arena_scatter(u64 mapped, u32 mask, u32 odd, u64 at, u64 bytes, unsigned char* linear) {
    copy<true>(Arena{mapped, mask, odd}, at, bytes, linear);
}

extern "C" __global__ void arena_gather(u64 mapped, u32 mask, u32 odd, u64 at, u64 bytes, unsigned char* linear) {
    copy<false>(Arena{mapped, mask, odd}, at, bytes, linear);
}

// Sets every byte to the lowest of `word`, whose four are the same.
extern "C" __global__ void arena_fill(u64 mapped, u32 mask, u32 odd, u64 at, u64 bytes, u32 word) {
    const Arena arena{mapped, mask, odd};
    const u64 first = at / QUAD;
    const u64 quads = (at + bytes + QUAD - 1) / QUAD - first;
    for (u64 i = global_thread(); i < quads; i += all_threads()) {
        const u64 begin = (first + i) * QUAD;
        unsigned char* colored = (unsigned char*)arena.place(begin);
        if (begin >= at && begin + QUAD <= at + bytes) {
            *(uint4*)colored = make_uint4(word, word, word, word);
            continue;
        }
        for (u32 k = 0; k < QUAD; k++) {
            if (begin + k >= at && begin + k < at + bytes) {
                colored[k] = (unsigned char)word;
            }
        }
    }
}

__device__ __forceinline__ u32 sum(uint4 v) { return v.x + v.y + v.z + v.w; }

// Not from the L1 caches, so that every access reaches L2.
__device__ __forceinline__ uint4 load_l2(u64 from) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// Each warp reads pieces of 1 KiB, one after the other: the next is not begun before the last has come, so what it takes shows.
__device__ __forceinline__ u32 read_pieces(const Arena arena, u64 from, u64 bytes) {
    const u32 lane = threadIdx.x % 32;
    const u64 warps = all_threads() / 32;
    u32 total = 0;
#pragma unroll 1
    for (u64 piece = global_thread() / 32; piece < bytes / PIECE; piece += warps) {
        const u64 at = from + piece * PIECE + lane * QUAD;
        const uint4 a = load_l2(arena.place(at));
        const uint4 b = load_l2(arena.place(at + PIECE / 2));
        total += sum(a) + sum(b);
    }
    return total;
}

// Adds every thread's value to the block's slot of sums, of which the arena has one for each block from `sums` on.
__device__ __forceinline__ void add_colored(const Arena arena, u64 sums, u32 value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd((u32*)arena.place(sums + (u64)blockIdx.x * SLOT_STRIDE * 4), value);
    }
}

// Reads once and adds all words to the slots of sums, of which there is one for each block.
extern "C" __global__ void __launch_bounds__(1024)
arena_read(u64 mapped, u32 mask, u32 odd, u64 from, u64 bytes, u64 sums) {
    const Arena arena{mapped, mask, odd};
    add_colored(arena, sums, read_pieces(arena, from, bytes));
}

// Reads `passes` times. All blocks have to be there at the same time: they wait for each other after each pass, for which the word at `sums` less
// one slot counts them, beginning as 0. When the last one is there the time goes to `times`, of which there is one more than passes, in
// nanoseconds. Who waits longer than `patience` leaves, and its times stay as they were.
extern "C" __global__ void __launch_bounds__(1024)
arena_passes(
    u64 mapped, u32 mask, u32 odd, u64 from, u64 bytes, u64 sums, u32 passes, u64 patience, u64* times) {
    const Arena arena{mapped, mask, odd};
    u32* arrived = (u32*)arena.place(sums - SLOT_STRIDE * 4);
    __shared__ u32 lost;
    if (threadIdx.x == 0) {
        lost = 0;
    }
    u32 total = 0;
    for (u32 pass = 0; pass <= passes; pass++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            const u64 end = global_nanoseconds() + patience;
            __threadfence();
            atomicAdd(arrived, 1u);
            while (*(volatile u32*)arrived < (pass + 1) * gridDim.x && lost == 0) {
                if (global_nanoseconds() > end) {
                    lost = 1;
                }
            }
            if (blockIdx.x == 0 && lost == 0) {
                times[pass] = global_nanoseconds();
            }
        }
        __syncthreads();
        if (lost != 0) {
            return;
        }
        if (pass < passes) {
            total += read_pieces(arena, from, bytes);
        }
    }
    add_colored(arena, sums, total);
}

enum Access { READ, WRITE, READ_WRITE };

template <bool evict_first>
__device__ __forceinline__ uint4 load(u64 from) {
    uint4 v;
    if (evict_first) {
        asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    } else {
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    }
    return v;
}

template <bool evict_first>
__device__ __forceinline__ void store(u64 to, uint4 v) {
    if (evict_first) {
        asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    } else {
        asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    }
}

// Works through chunks of 64 KiB, each block through its own, until the word `go` (in host memory) is not 0 or `patience` nanoseconds are over.
// It looks after each `every` chunks, as the host is far away. `progress` (in host memory) has one word for each block: chunks
// that it has done, modulo 2^32. There are at least as many chunks as blocks, and
// `patience` is not 0.
template <Access access, bool evict_first>
__device__ __forceinline__ void stream(
    const Arena arena, u64 from, u64 bytes, const u32* go, u32* progress, u64 patience, u32 every) {
    const u64 chunks = bytes / CHUNK;
    const u64 end = global_nanoseconds() + patience;
    const u32 step = blockDim.x * QUAD;
    __shared__ u32 told;
    u64 chunk = blockIdx.x;
    for (u32 done = 0;;) {
        for (u32 k = 0; k < every; k++, done++) {
            const u64 begin = from + chunk * CHUNK;
            u32 total = 0;
            // Four quads of each thread are under way at a time.
            for (u32 at = threadIdx.x * QUAD; at < CHUNK; at += 4 * step) {
                u64 places[4];
                uint4 quads[4];
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    const u32 within = at + n * step;
                    places[n] = arena.place(begin + (within < CHUNK ? within : at));
                }
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    quads[n] = access == WRITE ? make_uint4(done, done, done, done) : load<evict_first>(places[n]);
                }
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    if (access == READ) {
                        total += sum(quads[n]);
                    } else if (n == 0 || at + n * step < CHUNK) {
                        const uint4 v = quads[n];
                        store<evict_first>(
                            places[n], access == WRITE ? v : make_uint4(v.x + 1, v.y + 1, v.z + 1, v.w + 1));
                    }
                }
            }
            // Never so: but who wants to know has to wait for what was read.
            if (access == READ && total == 0x5eed5eedu && patience == 0) {
                progress[blockIdx.x] = total;
            }
            chunk += gridDim.x;
            if (chunk >= chunks) {
                chunk = blockIdx.x;
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            *(volatile u32*)(progress + blockIdx.x) = done;
            told = *(const volatile u32*)go != 0 || global_nanoseconds() > end;
        }
        __syncthreads();
        if (told != 0) {
            return;
        }
    }
}

#define STREAM(name, access, evict_first)                                                                               \
    extern "C" __global__ void __launch_bounds__(1024) name(                                                            \
        u64 mapped, u32 mask, u32 odd, u64 from, u64 bytes, const u32* go, u32* progress, u64 patience, u32 every) {    \
        stream<access, evict_first>(Arena{mapped, mask, odd}, from, bytes, go, progress, patience, every);              \
    }

STREAM(arena_stream_read_default, READ, false)
STREAM(arena_stream_read_evict_first, READ, true)
STREAM(arena_stream_write_default, WRITE, false)
STREAM(arena_stream_write_evict_first, WRITE, true)
STREAM(arena_stream_read_write_default, READ_WRITE, false)
STREAM(arena_stream_read_write_evict_first, READ_WRITE, true)
