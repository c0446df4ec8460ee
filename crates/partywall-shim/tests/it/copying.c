/* A program that copies in every way that there is, and checks each byte. Its arguments are what it does, one after the other. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

static void *pinned(size_t bytes) {
    void *host = NULL;
    CALL(cuMemHostAlloc, (void **, size_t, unsigned), &host, bytes, 0);
    return host;
}

static device on_device(size_t bytes) {
    device memory = 0;
    CALL(cuMemAlloc_v2, (device *, size_t), &memory, bytes);
    CALL(cuMemsetD8_v2, (device, unsigned char, size_t), memory, 0xee, bytes);
    return memory;
}

static void fill(unsigned char *host, size_t bytes, unsigned seed) {
    for (size_t at = 0; at < bytes; at++) host[at] = (unsigned char)((at * 31 + seed) % 253);
}

static void check(const unsigned char *host, size_t bytes, unsigned seed, int line) {
    for (size_t at = 0; at < bytes; at++) {
        if (host[at] != (unsigned char)((at * 31 + seed) % 253)) {
            printf("line %d: byte %zu of %zu is wrong\n", line, at, bytes);
            exit(1);
        }
    }
}

static const size_t SIZES[] = {1, 70000, 600000, (5 << 20) + 17};
enum { LARGEST = (5 << 20) + 17 };

typedef int (*to_device)(device, const void *, size_t);
typedef int (*to_host)(void *, device, size_t);
typedef int (*to_device_async)(device, const void *, size_t, handle);
typedef int (*to_host_async)(void *, device, size_t, handle);

static void there_and_back(const char *there, const char *back, handle on, handle waits_for) {
    unsigned char *from = pinned(LARGEST), *to = pinned(LARGEST);
    device memory = on_device(LARGEST);
    for (unsigned at = 0; at < 4; at++) {
        fill(from, SIZES[at], at);
        memset(to, 0, SIZES[at]);
        good(((to_device_async)function(there))(memory, from, SIZES[at], on), there, __LINE__);
        good(((to_host_async)function(back))(to, memory, SIZES[at], on), back, __LINE__);
        synchronize(waits_for);
        check(to, SIZES[at], at, __LINE__);
    }
}

static void async(void) {
    handle on = stream(), event = NULL;
    there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", on, on);
    CALL(cuEventCreate, (handle *, unsigned), &event, 0);
    unsigned char *from = pinned(LARGEST), *to = pinned(LARGEST);
    device memory = on_device(LARGEST);
    fill(from, LARGEST, 9);
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, LARGEST, on);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), to, memory, LARGEST, on);
    CALL(cuEventRecord, (handle, handle), event, on);
    CALL(cuEventSynchronize, (handle), event);
    check(to, LARGEST, 9, __LINE__);
    CALL(cuStreamQuery, (handle), on);
}

static void defaults(void) {
    there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", NULL, NULL);
    there_and_back("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyDtoHAsync_v2_ptsz", NULL, (handle)2);
    there_and_back("cuMemcpyAsync", "cuMemcpyAsync", (handle)2, (handle)2);
}

static void blocking_between(unsigned char *from, unsigned char *to, const char *there, const char *back) {
    device memory = on_device(LARGEST);
    for (unsigned at = 0; at < 4; at++) {
        fill(from, SIZES[at], at);
        good(((to_device)function(there))(memory, from, SIZES[at]), there, __LINE__);
        /* It may be used again at once. */
        memset(from, 0, SIZES[at]);
        memset(to, 0, SIZES[at]);
        good(((to_host)function(back))(to, memory, SIZES[at]), back, __LINE__);
        check(to, SIZES[at], at, __LINE__);
    }
}

static void blocking(void) {
    unsigned char *pinned_from = pinned(LARGEST), *pinned_to = pinned(LARGEST);
    unsigned char *from = malloc(LARGEST), *to = malloc(LARGEST);
    blocking_between(pinned_from, pinned_to, "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2");
    blocking_between(from, to, "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2");
    blocking_between(pinned_from, to, "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2_ptds");
    blocking_between(from, pinned_to, "cuMemcpy", "cuMemcpy");
    handle on = stream();
    device memory = on_device(LARGEST);
    fill(from, LARGEST, 3);
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, LARGEST, on);
    memset(from, 0, LARGEST);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), to, memory, LARGEST, on);
    synchronize(on);
    check(to, LARGEST, 3, __LINE__);
}

/* CUDA_MEMCPY2D and CUDA_MEMCPY3D. */
struct rows {
    size_t src_x, src_y;
    unsigned src_type;
    const void *src_host;
    device src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    unsigned dst_type;
    void *dst_host;
    device dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
};
struct side {
    size_t x, y, z, lod;
    unsigned type;
    void *host;
    device device;
    void *array, *reserved;
    size_t pitch, height;
};
struct planes {
    struct side src, dst;
    size_t width, height, depth;
};
enum { HOST = 1, DEVICE = 2 };

/* Copies `planes` of `height` rows of 1000 bytes, 1024 apart, to the device and back into a tight buffer. */
static void box(size_t height, size_t depth) {
    size_t pitch = 1024, width = 1000, bytes = pitch * height * depth;
    unsigned char *from = pinned(bytes), *to = pinned(bytes);
    device memory = on_device(bytes);
    fill(from, bytes, 5);
    memset(to, 0, bytes);
    handle on = stream();
    struct planes there = {.src = {.type = HOST, .host = from, .pitch = pitch, .height = height},
                           .dst = {.type = DEVICE, .device = memory, .pitch = pitch, .height = height},
                           .width = width, .height = height, .depth = depth};
    CALL(cuMemcpy3DAsync_v2, (const struct planes *, handle), &there, on);
    struct planes back = {.src = there.dst,
                          .dst = {.type = HOST, .host = to, .pitch = width, .height = height},
                          .width = width, .height = height, .depth = depth};
    CALL(cuMemcpy3DAsync_v2, (const struct planes *, handle), &back, on);
    synchronize(on);
    for (size_t row = 0; row < height * depth; row++) {
        for (size_t x = 0; x < width; x++) {
            if (to[row * width + x] != from[row * pitch + x]) {
                printf("row %zu of %zu x %zu is wrong\n", row, height, depth);
                exit(1);
            }
        }
    }
}

static void boxes(void) {
    size_t pitch = 4096, width = 3000, height = 500;
    unsigned char *from = pinned(pitch * height), *to = pinned(pitch * height);
    device memory = on_device(pitch * height);
    fill(from, pitch * height, 1);
    struct rows there = {.src_x = 96, .src_type = HOST, .src_host = from, .src_pitch = pitch, .dst_type = DEVICE,
                         .dst_device = memory, .dst_pitch = pitch, .width = width, .height = height};
    CALL(cuMemcpy2D_v2, (const struct rows *), &there);
    struct rows back = {.src_type = DEVICE, .src_device = memory, .src_pitch = pitch, .dst_y = 7, .dst_type = HOST,
                        .dst_host = to, .dst_pitch = width, .width = width, .height = height};
    CALL(cuMemcpy2DUnaligned_v2, (const struct rows *), &back);
    for (size_t row = 0; row < height; row++) {
        if (memcmp(to + (row + 7) * width, from + row * pitch + 96, width) != 0) {
            printf("row %zu is wrong\n", row);
            exit(1);
        }
    }
    box(2000, 1);
    box(1500, 2);
    box(3, 700);
}

/* A stream that is destroyed while its copies are under way. */
static void pending(void) {
    unsigned char *from = pinned(LARGEST), *to = pinned(LARGEST);
    device memory = on_device(LARGEST);
    handle on = stream();
    fill(from, LARGEST, 7);
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, LARGEST, on);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), to, memory, LARGEST, on);
    CALL(cuStreamDestroy_v2, (handle), on);
    CALL(cuCtxSynchronize, (void), );
    check(to, LARGEST, 7, __LINE__);
}

/* A copy in a graph. */
static void capture(void) {
    unsigned char *from = pinned(LARGEST), *to = pinned(LARGEST);
    device memory = on_device(LARGEST);
    handle on = stream(), graph = NULL, executable = NULL;
    CALL(cuStreamBeginCapture_v2, (handle, int), on, 0);
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, LARGEST, on);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), to, memory, LARGEST, on);
    CALL(cuStreamEndCapture, (handle, handle *), on, &graph);
    CALL(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long), &executable, graph, 0);
    for (unsigned round = 0; round < 3; round++) {
        fill(from, LARGEST, round);
        CALL(cuGraphLaunch, (handle, handle), executable, on);
        synchronize(on);
        check(to, LARGEST, round, __LINE__);
    }
}

/* A stream that waits for the program does not hold up another one, nor the program. */
static void held(void) {
    size_t bytes = 40 << 20;
    unsigned char *from = pinned(bytes), *to = pinned(LARGEST);
    uint32_t *word = pinned(4096);
    device memory = on_device(bytes), other = on_device(LARGEST), on_word = 0;
    handle waits = stream(), free_one = stream();
    fill(from, bytes, 2);
    *word = 0;
    CALL(cuMemHostGetDevicePointer_v2, (device *, void *, unsigned), &on_word, word, 0);
    CALL(cuStreamWaitValue32_v2, (handle, device, uint32_t, unsigned), waits, on_word, 1, 0);
    for (int small = 0; small < 3; small++)
        CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, 4096, waits);
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, bytes, waits);
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), other, from, LARGEST, free_one);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), to, other, LARGEST, free_one);
    synchronize(free_one);
    check(to, LARGEST, 2, __LINE__);
    if (TRY(cuStreamQuery, (handle), waits) != 600) {
        printf("the stream that waits is through\n");
        exit(1);
    }
    *(volatile uint32_t *)word = 1;
    synchronize(waits);
    unsigned char *back = pinned(bytes);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), back, memory, bytes, waits);
    synchronize(waits);
    check(back, bytes, 2, __LINE__);
}

static void *thread(void *context) {
    CALL(cuCtxSetCurrent, (handle), context);
    handle on = stream();
    for (int round = 0; round < 5; round++) there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", on, on);
    return NULL;
}

static void threads(void) {
    handle context = NULL;
    pthread_t all[4];
    CALL(cuCtxGetCurrent, (handle *), &context);
    for (int at = 0; at < 4; at++) pthread_create(&all[at], NULL, thread, context);
    for (int at = 0; at < 4; at++) pthread_join(all[at], NULL);
}

/* What the driver refuses is refused, and harms nothing that comes after. */
static void refused(void) {
    unsigned char *from = pinned(LARGEST);
    handle on = stream();
    for (int round = 0; round < 20; round++) {
        int result = TRY(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), 64, from, LARGEST, on);
        if (result == 0) {
            printf("a copy to nowhere was taken\n");
            exit(1);
        }
        if (TRY(cuMemcpyDtoH_v2, (void *, device, size_t), malloc(LARGEST), 64, LARGEST) == 0) {
            printf("a copy from nowhere was taken\n");
            exit(1);
        }
    }
    there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", on, on);
}

/* A context that goes while copies in it are under way. */
static void contexts(void) {
    handle before = NULL, context = NULL;
    CALL(cuCtxGetCurrent, (handle *), &before);
    for (int round = 0; round < 3; round++) {
        CALL(cuCtxCreate_v2, (handle *, unsigned, int), &context, 0, 0);
        handle on = stream();
        there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", on, on);
        unsigned char *from = pinned(LARGEST);
        CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), on_device(LARGEST), from, LARGEST, on);
        CALL(cuCtxDestroy_v2, (handle), context);
        CALL(cuCtxSetCurrent, (handle), before);
        there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", NULL, NULL);
    }
}

/* A child that does nothing with CUDA, between copies of its parent. */
static void forks(void) {
    there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", NULL, NULL);
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) exit(1);
    there_and_back("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", NULL, NULL);
}

/* Leaves while copies are under way. */
static void leaves(void) {
    size_t bytes = 64 << 20;
    CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), on_device(bytes), pinned(bytes), bytes, stream());
    exit(0);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*does)(void);
    } COMMANDS[] = {{"async", async},     {"defaults", defaults}, {"blocking", blocking}, {"boxes", boxes},
                    {"pending", pending}, {"capture", capture},   {"held", held},         {"threads", threads},
                    {"refused", refused}, {"contexts", contexts}, {"forks", forks},       {"leaves", leaves}};
    begin();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int at = 1; at < count; at++) {
        int known = 0;
        for (size_t command = 0; command < sizeof COMMANDS / sizeof *COMMANDS; command++) {
            if (strcmp(COMMANDS[command].name, arguments[at]) == 0) {
                known = 1;
                COMMANDS[command].does();
            }
        }
        if (!known) return 2;
        printf("%s\n", arguments[at]);
    }
    return 0;
}
