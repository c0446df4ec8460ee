/* Words of the device's memory, and what their values say about the order of kernels. */
#include "calls.h"

static void fill(device word, unsigned value, handle on) {
    CALL(cuMemsetD32Async, (device, unsigned, size_t, handle), word, value, 1, on);
}

static void copy(device to, device from, handle on) {
    CALL(cuMemcpyDtoDAsync_v2, (device, device, size_t, handle), to, from, 4, on);
}

static device words(size_t count) {
    device memory = 0;
    CALL(cuMemAlloc_v2, (device *, size_t), &memory, count * 4);
    CALL(cuMemsetD32_v2, (device, unsigned, size_t), memory, 0, count);
    return memory;
}

static unsigned value(device word) {
    unsigned read = 0;
    CALL(cuMemcpyDtoH_v2, (void *, device, size_t), &read, word, 4);
    return read;
}

static unsigned after_steps(unsigned start, int count) {
    for (int at = 0; at < count; at++) start = start * 1664525u + 1013904223u;
    return start;
}

static void expect(unsigned found, unsigned expected, int line) {
    if (found != expected) {
        printf("line %d: %u instead of %u\n", line, found, expected);
        exit(1);
    }
}
