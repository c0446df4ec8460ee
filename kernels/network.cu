// Layers: a matrix product on the tensor cores, a row reduction, an elementwise step. All numbers are small and whole,
// so every result is exact and does not depend on the order of adding.
#include "prelude.cuh"

// C = A * B for row-major fp16 A (m x k) and B (k x n) and fp32 C, one TILE x TILE piece of C per block of
// 2 * TILE threads; m and n are multiples of TILE, k of 32.
//
// Each warp makes a 32 x 32 piece (TILE 64: 4 warps) or a 32 x 64 piece (TILE 128: 8 warps) from 16 x 16 fragments
// through `wmma`, which compute_70 has and every later GPU runs; m does not need to be told, the grid has it. Pieces of A and B go through shared memory; the next
// ones are on their way from memory, in registers, while the present ones are multiplied.
template <int TILE>
struct Product {
    static constexpr int DEPTH = 32;
    static constexpr int THREADS = 2 * TILE;
    // Rows are padded by 16 B, so that the rows of a fragment start in different banks.
    static constexpr int A_PITCH = DEPTH + 8;
    static constexpr int B_PITCH = TILE + 8;
    static constexpr int FRAGMENTS_DOWN = 2;
    static constexpr int FRAGMENTS_ACROSS = TILE / 32;
    // Quads (8 halves) that each thread brings in per piece of A, and as many of B.
    static constexpr int QUADS = TILE * DEPTH / 8 / THREADS;

    static __device__ __forceinline__ void run(const u16* a, const u16* b, float* c, u32 n, u32 k) {
        __shared__ __align__(32) u16 piece_a[TILE * A_PITCH];
        __shared__ __align__(32) u16 piece_b[DEPTH * B_PITCH];
        const u32 tiles_across = n / TILE;
        const u32 row = blockIdx.x / tiles_across * TILE, column = blockIdx.x % tiles_across * TILE;
        const u32 warp = threadIdx.x / 32;
        // Two warps across for both sizes, so a warp is TILE / 2 wide.
        const u32 warp_row = warp / 2 * 32, warp_column = warp % 2 * (TILE / 2);

        float sums[FRAGMENTS_DOWN][FRAGMENTS_ACROSS][8];
#pragma unroll
        for (int i = 0; i < FRAGMENTS_DOWN * FRAGMENTS_ACROSS * 8; i++) {
            (&sums[0][0][0])[i] = 0.0f;
        }

        uint4 next_a[QUADS], next_b[QUADS];
        fetch(a, b, n, k, row, column, 0, next_a, next_b);
        for (u32 depth = 0; depth < k; depth += DEPTH) {
            __syncthreads();
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                const u32 quad = threadIdx.x + q * THREADS;
                *(uint4*)&piece_a[quad / (DEPTH / 8) * A_PITCH + quad % (DEPTH / 8) * 8] = next_a[q];
                *(uint4*)&piece_b[quad / (TILE / 8) * B_PITCH + quad % (TILE / 8) * 8] = next_b[q];
            }
            __syncthreads();
            if (depth + DEPTH < k) {
                fetch(a, b, n, k, row, column, depth + DEPTH, next_a, next_b);
            }
#pragma unroll
            for (int inner = 0; inner < DEPTH; inner += 16) {
                u32 fa[FRAGMENTS_DOWN][8], fb[FRAGMENTS_ACROSS][8];
#pragma unroll
                for (int i = 0; i < FRAGMENTS_DOWN; i++) {
                    load_a(fa[i], &piece_a[(warp_row + i * 16) * A_PITCH + inner]);
                }
#pragma unroll
                for (int j = 0; j < FRAGMENTS_ACROSS; j++) {
                    load_b(fb[j], &piece_b[inner * B_PITCH + warp_column + j * 16]);
                }
#pragma unroll
                for (int i = 0; i < FRAGMENTS_DOWN; i++) {
#pragma unroll
                    for (int j = 0; j < FRAGMENTS_ACROSS; j++) {
                        multiply_add(sums[i][j], fa[i], fb[j]);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS_DOWN; i++) {
#pragma unroll
            for (int j = 0; j < FRAGMENTS_ACROSS; j++) {
                const u64 at = (u64)(row + warp_row + i * 16) * n + column + warp_column + j * 16;
                store(c + at, sums[i][j], n);
            }
        }
    }

    static __device__ __forceinline__ void fetch(const u16* a, const u16* b, u32 n, u32 k, u32 row, u32 column,
                                                 u32 depth, uint4* next_a, uint4* next_b) {
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const u32 quad = threadIdx.x + q * THREADS;
            next_a[q] = *(const uint4*)&a[(u64)(row + quad / (DEPTH / 8)) * k + depth + quad % (DEPTH / 8) * 8];
            next_b[q] = *(const uint4*)&b[(u64)(depth + quad / (TILE / 8)) * n + column + quad % (TILE / 8) * 8];
        }
    }

    static __device__ __forceinline__ void load_a(u32* f, const u16* from) {
        asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]), "=r"(f[4]), "=r"(f[5]), "=r"(f[6]), "=r"(f[7])
                     : "l"(__cvta_generic_to_shared(from)), "n"(A_PITCH)
                     : "memory");
    }

    static __device__ __forceinline__ void load_b(u32* f, const u16* from) {
        asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.shared.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]), "=r"(f[4]), "=r"(f[5]), "=r"(f[6]), "=r"(f[7])
                     : "l"(__cvta_generic_to_shared(from)), "n"(B_PITCH)
                     : "memory");
    }

    static __device__ __forceinline__ void multiply_add(float* c, const u32* a, const u32* b) {
        asm volatile(
            "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, "
            "{%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}, {%0,%1,%2,%3,%4,%5,%6,%7};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[0]),
              "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
    }

    static __device__ __forceinline__ void store(float* to, const float* c, u32 n) {
        asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8}, %9;" ::"l"(
                         __cvta_generic_to_global(to)),
                     "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(c[4]), "f"(c[5]), "f"(c[6]), "f"(c[7]), "r"(n)
                     : "memory");
    }
};

extern "C" __global__ void __launch_bounds__(128) matmul_64(const u16* a, const u16* b, float* c, u32 n, u32 k) {
    Product<64>::run(a, b, c, n, k);
}

extern "C" __global__ void __launch_bounds__(256) matmul_128(const u16* a, const u16* b, float* c, u32 n, u32 k) {
    Product<128>::run(a, b, c, n, k);
}

// sums[r] = the sum of row r of C (n columns), whole numbers modulo 2^32; one block per row, of at most 1024 threads.
extern "C" __global__ void row_sums(const float* c, u32 n, int* sums) {
    __shared__ int warps[32];
    int mine = 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        mine += (int)c[(u64)blockIdx.x * n + i];
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        mine += __shfl_xor_sync(0xffffffffu, mine, distance);
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < blockDim.x / 32; warp++) {
            mine += warps[warp];
        }
        sums[blockIdx.x] = mine;
    }
}

// What stands for bias, normalisation and activation: out[r][i] = (C[r][i] + sums[r]) mod 5 - 2, in fp16, so that the
// next layer's input is again a whole number from -2 to 2 that depends on the whole row.
extern "C" __global__ void fold(const float* c, const int* sums, u32 n, u64 count, u16* out) {
    for (u64 i = global_thread(); i < count; i += all_threads()) {
        const int value = ((int)c[i] + sums[i / n]) % 5;
        out[i] = half_bits((value < 0 ? value + 5 : value) - 2);
    }
}
