/* NVML as far as a program asks it for the memory of a device: 100 GiB, of which 60 are free. */
#include <stddef.h>

typedef struct {
    unsigned long long total, free, used;
} Memory;

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    if (device != (void *)1) return 2;
    *memory = (Memory){100ull << 30, 60ull << 30, 40ull << 30};
    return 0;
}
