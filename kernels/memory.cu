// Traffic: chasing pointers, streaming reads, streaming reads and writes.
//
// The policy of a kernel is in its name. `default` accesses are kept by L2 as it sees fit; `evict_first` ones
// (`.cs`) are the first to go when L2 needs room, so that they leave the neighbours' data alone; `l2` ones (`.cg`) are
// not kept by the L1 caches, so that every access of a small buffer reaches L2.
#include "prelude.cuh"

// Chains of dependent reads: thread t continues at node cursors[t], takes `steps` steps, and leaves there where it
// got. `nodes` is a power of two; a link out of range would be a broken buffer and is brought back into range, so that
// it shows in the result and not as a fault.
extern "C" __global__ void chase(const u32* links, u32 nodes, u32 stride, u32* cursors, u32 chains, u32 steps) {
    const u32 chain = global_thread();
    if (chain >= chains) {
        return;
    }
    u32 node = cursors[chain] & (nodes - 1);
    for (u32 step = 0; step < steps; step++) {
        u32 next;
        // .cg: from L2 or beyond, never from L1.
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(next) : "l"(links + (u64)node * stride));
        node = next & (nodes - 1);
    }
    cursors[chain] = node;
}

enum Policy { DEFAULT, EVICT_FIRST, L2 };

template <Policy policy>
__device__ __forceinline__ uint4 load(const uint4* from) {
    uint4 v;
    if (policy == EVICT_FIRST) {
        asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    } else if (policy == L2) {
        asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    } else {
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    }
    return v;
}

template <Policy policy>
__device__ __forceinline__ void store(uint4* to, uint4 v) {
    if (policy == EVICT_FIRST) {
        asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    } else {
        asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    }
}

__device__ __forceinline__ u32 sum(uint4 v) { return v.x + v.y + v.z + v.w; }

// Reads `count` quads (16 B) `passes` times and adds all words to the slots.
template <Policy policy>
__device__ __forceinline__ void read(const uint4* quads, u64 count, u32 passes, u32* sums, u32 slots) {
    const u64 step = all_threads();
    u32 total = 0;
    for (u32 pass = 0; pass < passes; pass++) {
        u64 i = global_thread();
        // Four loads in flight per thread: the addresses are known, so the compiler may issue them together.
        for (; i + 3 * step < count; i += 4 * step) {
            const uint4 a = load<policy>(quads + i);
            const uint4 b = load<policy>(quads + i + step);
            const uint4 c = load<policy>(quads + i + 2 * step);
            const uint4 d = load<policy>(quads + i + 3 * step);
            total += sum(a) + sum(b) + sum(c) + sum(d);
        }
        for (; i < count; i += step) {
            total += sum(load<policy>(quads + i));
        }
    }
    add_to_slot(total, sums, slots);
}

// Adds 1 to every word of `count` quads, `passes` times: reads and writes the same number of bytes.
template <Policy policy>
__device__ __forceinline__ void increment(uint4* quads, u64 count, u32 passes) {
    const u64 step = all_threads();
    for (u32 pass = 0; pass < passes; pass++) {
        u64 i = global_thread();
        for (; i + step < count; i += 2 * step) {
            uint4 a = load<policy>(quads + i);
            uint4 b = load<policy>(quads + i + step);
            store<policy>(quads + i, make_uint4(a.x + 1, a.y + 1, a.z + 1, a.w + 1));
            store<policy>(quads + i + step, make_uint4(b.x + 1, b.y + 1, b.z + 1, b.w + 1));
        }
        if (i < count) {
            uint4 a = load<policy>(quads + i);
            store<policy>(quads + i, make_uint4(a.x + 1, a.y + 1, a.z + 1, a.w + 1));
        }
    }
}

extern "C" __global__ void read_default(const uint4* quads, u64 count, u32 passes, u32* sums, u32 slots) {
    read<DEFAULT>(quads, count, passes, sums, slots);
}

extern "C" __global__ void read_evict_first(const uint4* quads, u64 count, u32 passes, u32* sums, u32 slots) {
    read<EVICT_FIRST>(quads, count, passes, sums, slots);
}

extern "C" __global__ void read_l2(const uint4* quads, u64 count, u32 passes, u32* sums, u32 slots) {
    read<L2>(quads, count, passes, sums, slots);
}

extern "C" __global__ void read_write_default(uint4* quads, u64 count, u32 passes) {
    increment<DEFAULT>(quads, count, passes);
}

extern "C" __global__ void read_write_evict_first(uint4* quads, u64 count, u32 passes) {
    increment<EVICT_FIRST>(quads, count, passes);
}
