// Where blocks run.
#include "prelude.cuh"

// Counts blocks per SM id. Each block stays for `nanoseconds`, so that they spread over all SMs there are. Under MPS
// ids are virtual: they say how many SMs there are, not which.
extern "C" __global__ void count_by_sm(u32* counts, u32 ids, u64 nanoseconds) {
    if (threadIdx.x == 0) {
        const u32 id = multiprocessor();
        if (id < ids) {
            atomicAdd(&counts[id], 1u);
        }
        const u64 end = global_nanoseconds() + nanoseconds;
        while (global_nanoseconds() < end) {
        }
    }
}

// Blocks that wait for each other. Launched with so much shared memory that an SM holds one of them, and with as many
// blocks as there are SMs in all the SM sets together: if the sets are disjoint, all blocks are there at the same
// time and meet; if two sets share an SM, one block must wait until another leaves, and those that are there
// give up after `nanoseconds`. `met` counts the blocks that saw all `expected` arrive.
extern "C" __global__ void meet(u32* arrived, u32 expected, u64 nanoseconds, u32* met) {
    extern __shared__ u32 room[];
    if (threadIdx.x == 0) {
        room[0] = multiprocessor();
        atomicAdd_system(arrived, 1u);
        const u64 end = global_nanoseconds() + nanoseconds;
        bool all = false;
        while (!all && global_nanoseconds() < end) {
            all = *(volatile u32*)arrived >= expected;
        }
        if (all) {
            atomicAdd_system(met, 1u);
        }
    }
}

// Blocks that stay where they are until they are told to leave. Launched with so much shared memory that an SM holds one of
// them, they say how many SMs a launch gets at the same time. `states` (in host memory, one word a block, so that nothing is
// added up across the link): 0 not there yet, 1 there, 2 left when told, 3 gave up after `nanoseconds`. `*go`: not 0 to leave.
extern "C" __global__ void stay(u32* states, const u32* go, u64 nanoseconds) {
    extern __shared__ u32 room[];
    if (threadIdx.x == 0) {
        room[0] = multiprocessor();
        volatile u32* state = states + blockIdx.x;
        *state = 1;
        __threadfence_system();
        const u64 end = global_nanoseconds() + nanoseconds;
        bool told = false;
        while (!told && global_nanoseconds() < end) {
            told = *(const volatile u32*)go != 0;
        }
        *state = told ? 2 : 3;
        __threadfence_system();
    }
}
