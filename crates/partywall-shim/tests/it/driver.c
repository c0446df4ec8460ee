/* A driver that does nothing but notice what it is called with. Built as libcuda.so.1; the library under test takes it
   for the real one. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, WRONG_ARGUMENTS = 999 };

static const char *last = "nothing";

/* The export that was called last. */
const char *stand_in_last(void) { return last; }

#define CALLED() (last = __func__)

int cuInit(unsigned flags) {
    CALLED();
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDriverGetVersion(int *version) {
    CALLED();
    *version = 13000;
    return SUCCESS;
}

#define LAUNCH_PARAMETERS                                                                                             \
    void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,      \
        void *stream, void **parameters, void **extra
#define LAUNCH_ARGUMENTS_ARE_RIGHT                                                                                    \
    (function == (void *)1 && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 && bz == 7 && shared == 8 &&         \
     stream == (void *)9 && parameters == (void *)10 && extra == (void *)11)

int cuLaunchKernel(LAUNCH_PARAMETERS) {
    CALLED();
    return LAUNCH_ARGUMENTS_ARE_RIGHT ? SUCCESS : WRONG_ARGUMENTS;
}

int cuLaunchKernel_ptsz(LAUNCH_PARAMETERS) {
    CALLED();
    return LAUNCH_ARGUMENTS_ARE_RIGHT ? SUCCESS : WRONG_ARGUMENTS;
}

/* Passed through, with a floating-point argument. */
int cuParamSetf(void *function, int offset, float value) {
    CALLED();
    return function == (void *)1 && offset == 2 && value == 1.5f ? SUCCESS : WRONG_ARGUMENTS;
}

/* Passed through, with arguments on the stack. */
int cuOccupancyMaxPotentialBlockSizeWithFlags(int *a, int *b, void *c, void *d, size_t e, int f, unsigned g) {
    CALLED();
    int right = a == (void *)1 && b == (void *)2 && c == (void *)3 && d == (void *)4 && e == 5 && f == 6 && g == 7;
    return right ? SUCCESS : WRONG_ARGUMENTS;
}

/* Code: what was loaded last, from its beginning to the first zero byte. Handles are numbers. */
static char image[1 << 16];
static size_t handles = 100;

const char *stand_in_image(void) { return image; }

static int load(void **place, const void *data) {
    snprintf(image, sizeof image, "%s", (const char *)data);
    *place = (void *)++handles;
    return SUCCESS;
}

int cuModuleLoadData(void **module, const void *data) {
    CALLED();
    return load(module, data);
}

int cuModuleLoadDataEx(void **module, const void *data, unsigned count, int *options, void **values) {
    CALLED();
    return count == 1 && options == (void *)2 && values == (void *)3 ? load(module, data) : WRONG_ARGUMENTS;
}

int cuModuleLoadFatBinary(void **module, const void *data) {
    CALLED();
    return load(module, data);
}

int cuModuleLoad(void **module, const char *path) {
    CALLED();
    return load(module, path);
}

int cuLibraryLoadData(void **library, const void *data, int *a, void **b, unsigned c, int *d, void **e, unsigned f) {
    CALLED();
    int right = a == (void *)1 && b == (void *)2 && c == 3 && d == (void *)4 && e == (void *)5 && f == 6;
    return right ? load(library, data) : WRONG_ARGUMENTS;
}

int cuLinkAddData_v2(void *link, int type, void *data, size_t size, const char *name, unsigned a, int *b, void **c) {
    CALLED();
    void *unused;
    int right = link == (void *)1 && name != NULL && a == 2 && b == (void *)3 && c == (void *)4;
    return right && type == 1 && strlen(data) + 1 == size ? load(&unused, data) : WRONG_ARGUMENTS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    CALLED();
    *function = module;
    return name[0] == 'k' ? SUCCESS : NOT_FOUND;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    CALLED();
    *kernel = library;
    return name[0] == 'k' ? SUCCESS : NOT_FOUND;
}

int cuLibraryGetModule(void **module, void *library) {
    CALLED();
    *module = (char *)library + 1000;
    return SUCCESS;
}

/* In no list: a function of a driver that is newer than the library under test. */
int cuNewerThanTheList(void) {
    CALLED();
    return SUCCESS;
}

/* Reached through cuGetProcAddress alone. */
static int no_export(void) { return SUCCESS; }

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);

static void *find(const char *symbol, int version, uint64_t flags) {
    int per_thread = (flags & 2) != 0;
    if (strcmp(symbol, "cuInit") == 0) return cuInit;
    if (strcmp(symbol, "cuLaunchKernel") == 0) return per_thread && version >= 7000 ? (void *)cuLaunchKernel_ptsz : (void *)cuLaunchKernel;
    if (strcmp(symbol, "cuParamSetf") == 0) return cuParamSetf;
    if (strcmp(symbol, "cuNewerThanTheList") == 0) return no_export;
    if (strcmp(symbol, "cuGetProcAddress") == 0) return version >= 12000 ? (void *)cuGetProcAddress_v2 : NULL;
    return NULL;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    CALLED();
    if (symbol[0] == '\0') {
        *function = NULL;
        return SUCCESS;
    }
    *function = find(symbol, version, flags);
    return *function == NULL ? NOT_FOUND : SUCCESS;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    CALLED();
    int result = cuGetProcAddress(symbol, function, version, flags);
    if (status != NULL) *status = result == SUCCESS ? 0 : 1;
    return result;
}
