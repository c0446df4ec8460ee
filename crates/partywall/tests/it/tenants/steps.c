/* A program that uses the GPU step by step, and checks each byte that it copies. Its arguments are the steps, one after the other;
 * each is said on standard output when the program is through it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t device;
typedef void *handle;

static void *library;
static size_t bytes;
static unsigned char *from, *to;
static device memory;
static handle stream, other;

static void good(int result, const char *what) {
    if (result != 0) {
        printf("%s: %d\n", what, result);
        exit(1);
    }
}

/* Calls a function of the driver that takes these types, which must succeed. */
#define CALL(name, types, ...) good(((int(*) types)dlsym(library, #name))(__VA_ARGS__), #name)

static void init(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    CALL(cuInit, (unsigned), 0);
}

static void context(void) {
    handle made = NULL;
    CALL(cuCtxCreate_v2, (handle *, unsigned, int), &made, 0, 0);
    CALL(cuStreamCreate, (handle *, unsigned), &stream, 1);
    CALL(cuStreamCreate, (handle *, unsigned), &other, 1);
}

static void allocate(size_t asked) {
    bytes = asked;
    CALL(cuMemAlloc_v2, (device *, size_t), &memory, bytes);
    CALL(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&from, bytes, 0);
    CALL(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&to, bytes, 0);
}

static void there(handle on) { CALL(cuMemcpyHtoDAsync_v2, (device, const void *, size_t, handle), memory, from, bytes, on); }

static void synchronize(handle on) { CALL(cuStreamSynchronize, (handle), on); }

/* There and back, other bytes each time. */
static void copy(void) {
    static unsigned seed;
    seed++;
    for (size_t at = 0; at < bytes; at++) from[at] = (unsigned char)((at * 31 + seed) % 253);
    memset(to, 0xff, bytes);
    there(stream);
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), to, memory, bytes, stream);
    synchronize(stream);
    for (size_t at = 0; at < bytes; at++) {
        if (to[at] != (unsigned char)((at * 31 + seed) % 253)) {
            printf("byte %zu of %zu is wrong\n", at, bytes);
            exit(1);
        }
    }
}

/* Copies there for ever, with never less than one copy under way. */
static void busy(void) {
    there(stream);
    for (;;) {
        there(other);
        synchronize(stream);
        there(stream);
        synchronize(other);
    }
}

/* Copies there for ever, says when a copy has been submitted and when it is through. */
static void one_way(void) {
    for (;;) {
        there(stream);
        puts("submitted");
        synchronize(stream);
        puts("through");
    }
}

/* The children go on with the steps that follow; the parent ends when all have, and as badly as the worst. */
static void with_children(int count) {
    for (int child = 0; child < count; child++) {
        pid_t pid = fork();
        good(pid < 0, "fork");
        if (pid == 0) return;
    }
    int bad = 0, status;
    while (wait(&status) > 0) bad += status != 0;
    printf("%d of %d children ended badly\n", bad, count);
    exit(bad > 0);
}

static void memory_that_is_free(void) {
    size_t left, all;
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &all);
    printf("%zu bytes\n", left);
}

int main(int count, char **steps) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int at = 1; at < count; at++) {
        const char *step = steps[at], *value = strchr(step, '=');
        size_t length = value ? (size_t)(value - step) : strlen(step);
        int is_known = 0;
#define STEP(name, action) if (strlen(name) == length && !strncmp(step, name, length)) { is_known = 1; action; }
        STEP("init", init())
        STEP("context", context())
        STEP("allocate", allocate(strtoull(value + 1, NULL, 10)))
        STEP("copy", copy())
        STEP("copies", for (;;) { copy(); puts("copy"); })
        STEP("busy", busy())
        STEP("one-way", one_way())
        STEP("children", with_children(atoi(value + 1)))
        STEP("free", memory_that_is_free())
        /* Until there is a file of this name. */
        STEP("when", puts("ready"); while (access(value + 1, F_OK) != 0) usleep(5000))
        STEP("stay", for (;;) pause())
        good(!is_known, step);
        puts(step);
    }
    return 0;
}
