/* A driver whose functions do nothing: what a call through the library under test takes beyond it is the library's own. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int cuInit(unsigned flags) { return (int)(flags & 0); }

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)parameters, (void)extra;
    return 0;
}

int cuLaunchKernelEx(const void *configuration, void *function, void **parameters, void **extra) {
    (void)configuration, (void)function, (void)parameters, (void)extra;
    return 0;
}

int cuGraphLaunch(void *graph, void *stream) {
    (void)graph, (void)stream;
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    (void)bytes;
    *address = 0x7f0000000000u;
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    (void)address;
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream) {
    (void)target, (void)source, (void)bytes, (void)stream;
    return 0;
}

/* What the library asks the driver besides. */
int cuStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    *status = 0;
    return 0;
}

int cuCtxGetCurrent(void **context) {
    *context = (void *)1;
    return 0;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) {
    (void)pointer;
    *(int *)data = attribute == 2 ? 1 : 0; /* memory of the host */
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags, (void)status;
    static const struct {
        const char *name;
        void *function;
    } known[] = {
        {"cuInit", cuInit},
        {"cuLaunchKernel", cuLaunchKernel},
        {"cuLaunchKernelEx", cuLaunchKernelEx},
        {"cuGraphLaunch", cuGraphLaunch},
        {"cuMemAlloc", cuMemAlloc_v2},
        {"cuMemFree", cuMemFree_v2},
        {"cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, symbol) == 0) {
            *function = known[i].function;
            return 0;
        }
    }
    *function = NULL;
    return 500;
}
