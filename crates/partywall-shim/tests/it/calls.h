/* Calls to the driver, looked up by name. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t device;
typedef void *handle;

static handle library;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}

static void good(int result, const char *what, int line) {
    if (result != 0) {
        printf("line %d: %s: %d\n", line, what, result);
        exit(1);
    }
}

/* Calls a function of the driver that takes these types, which must succeed. */
#define CALL(name, types, ...) good(((int(*) types)function(#name))(__VA_ARGS__), #name, __LINE__)
#define TRY(name, types, ...) (((int(*) types)function(#name))(__VA_ARGS__))

static handle stream(void) {
    handle new = NULL;
    CALL(cuStreamCreate, (handle *, unsigned), &new, 1);
    return new;
}

static void synchronize(handle stream) { CALL(cuStreamSynchronize, (handle), stream); }

/* Opens the driver and makes the first device's primary context current. */
static void begin(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    handle context = NULL;
    int device_number = 0;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGet, (int *, int), &device_number, 0);
    CALL(cuDevicePrimaryCtxRetain, (handle *, int), &context, device_number);
    CALL(cuCtxSetCurrent, (handle), context);
}
