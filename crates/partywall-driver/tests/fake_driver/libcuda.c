/* A stand-in for libcuda.so.1 that does nothing and writes down what it was asked, for tests of what this crate asks.
 *
 * Built by the tests with the C compiler that linking needs anyway. VERSION is the CUDA version it claims; WITHOUT_GREEN
 * leaves out the functions that not every driver has. Every test has a copy of its own, so the globals are the
 * test's. Handles are small numbers whose first digit says what they are: 1 primary context, 2 green context, 3 the same
 * as a context, 4 stream, 5 event, 6 module, 7 function, 8 graph, 9 launchable graph.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 13000
#endif

typedef unsigned result;
typedef uint64_t handle;
typedef struct { unsigned type; unsigned char internal[92]; unsigned sms; unsigned char rest[44]; } resource;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char record[1 << 16];
static size_t used;
static char failing[64];
static result failure;
static unsigned made[10];
static unsigned green_sms;
static __thread handle stack[16];
static __thread int depth;

/* From now on calls of this name return the code; 0 lets them work again. */
void fake_fail(const char *name, result code) {
    snprintf(failing, sizeof failing, "%s", name);
    failure = code;
}

/* What was asked since the last time, a line each. */
size_t fake_take(char *to, size_t room) {
    pthread_mutex_lock(&lock);
    size_t length = used < room ? used : room;
    memcpy(to, record, length);
    used = 0;
    pthread_mutex_unlock(&lock);
    return length;
}

static result said(const char *name, const char *format, ...) {
    pthread_mutex_lock(&lock);
    if (used > sizeof record - 1024) abort();
    va_list args;
    va_start(args, format);
    used += (size_t)snprintf(record + used, sizeof record - used, "%s", name);
    used += (size_t)vsnprintf(record + used, sizeof record - used, format, args);
    used += (size_t)snprintf(record + used, sizeof record - used, "\n");
    va_end(args);
    result code = failure != 0 && strcmp(failing, name) == 0 ? failure : 0;
    pthread_mutex_unlock(&lock);
    return code;
}

static handle make(int kind) { return (handle)kind * 100 + made[kind]++; }

#define SAY(...) said(__func__, __VA_ARGS__)
#define X(h) (unsigned)(h)

result cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
result cuInit(unsigned flags) { return SAY(" %u", flags); }

result cuGetErrorName(result code, const char **text) {
    *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return *text ? 0 : 1;
}
result cuGetErrorString(result code, const char **text) {
    *text = code == 2 ? "out of memory" : code == 700 ? "an illegal memory access" : NULL;
    return *text ? 0 : 1;
}

result cuDeviceGetCount(int *count) { *count = 1; return 0; }
result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
result cuDeviceGetName(char *name, int room, int device) { snprintf(name, (size_t)room, "Fake %d", device); return 0; }
result cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 0xa0 + device, 16); return 0; }
result cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)5 << 30; return 0; }
result cuDeviceGetAttribute(int *value, unsigned attribute, int device) {
    (void)device; *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : (int)attribute; return 0;
}
result cuDeviceGetPCIBusId(char *id, int room, int device) {
    (void)device; snprintf(id, (size_t)room, "0000:1b:00.0"); return 0;
}

result cuDevicePrimaryCtxRetain(handle *ctx, int device) { *ctx = 100; return SAY(" %d", device); }
result cuDevicePrimaryCtxRelease_v2(int device) { return SAY(" %d", device); }
result cuCtxPushCurrent_v2(handle ctx) {
    result code = SAY(" %u", X(ctx)); if (code == 0) stack[depth++] = ctx; return code;
}
result cuCtxPopCurrent_v2(handle *ctx) { *ctx = stack[--depth]; return SAY(" %u", X(*ctx)); }
result cuCtxGetCurrent(handle *ctx) { *ctx = depth ? stack[depth - 1] : 0; return 0; }
result cuCtxSynchronize(void) { return SAY(" in %u", depth ? X(stack[depth - 1]) : 0); }
result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }

result cuStreamCreateWithPriority(handle *stream, unsigned flags, int priority) {
    *stream = make(4); return SAY(" -> %u flags %u priority %d", X(*stream), flags, priority);
}
result cuStreamDestroy_v2(handle stream) { return SAY(" %u", X(stream)); }
result cuStreamSynchronize(handle stream) { return SAY(" %u", X(stream)); }
result cuStreamQuery(handle stream) { return SAY(" %u", X(stream)); }
result cuStreamWaitEvent(handle stream, handle event, unsigned flags) {
    return SAY(" %u %u flags %u", X(stream), X(event), flags);
}
result cuStreamGetPriority(handle stream, int *priority) { *priority = -5; return SAY(" %u", X(stream)); }
result cuStreamBeginCapture_v2(handle stream, unsigned mode) { return SAY(" %u mode %u", X(stream), mode); }
result cuStreamEndCapture(handle stream, handle *graph) {
    result code = SAY(" %u", X(stream)); *graph = code ? 0 : make(8); return code;
}

result cuEventCreate(handle *event, unsigned flags) { *event = make(5); return SAY(" -> %u flags %u", X(*event), flags); }
result cuEventDestroy_v2(handle event) { return SAY(" %u", X(event)); }
result cuEventRecord(handle event, handle stream) { return SAY(" %u %u", X(event), X(stream)); }
result cuEventQuery(handle event) { return SAY(" %u", X(event)); }
result cuEventSynchronize(handle event) { return SAY(" %u", X(event)); }
result cuEventElapsedTime(float *ms, handle start, handle end) { *ms = 1.5f; return SAY(" %u %u", X(start), X(end)); }

result cuModuleLoadDataEx(handle *module, const char *ptx, unsigned count, unsigned *options, void **values) {
    if (count == 2 && options[0] == 5 && options[1] == 6) {
        snprintf(values[0], (size_t)values[1], "line 1: `%s` is not PTX", ptx);
    }
    *module = make(6); return SAY(" -> %u", X(*module));
}
result cuModuleUnload(handle module) { return SAY(" %u", X(module)); }
result cuModuleGetFunction(handle *function, handle module, const char *name) {
    *function = make(7); return SAY(" %s -> %u in %u", name, X(*function), X(module));
}
result cuFuncSetAttribute(handle function, unsigned attribute, int value) {
    return SAY(" %u %u = %d", X(function), attribute, value);
}
result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, handle function, int threads, size_t shared) {
    (void)shared; *blocks = 2048 / threads; return SAY(" %u", X(function));
}
/* Every kernel takes (unsigned, pointer, float). */
result cuLaunchKernel(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, handle stream, void **args, void **extra) {
    unsigned first; uint64_t second; float third;
    memcpy(&first, args[0], 4); memcpy(&second, args[1], 8); memcpy(&third, args[2], 4);
    return SAY(" %u grid %u %u %u block %u %u %u shared %u stream %u args %u %#llx %g extra %d", X(function), gx, gy, gz,
               bx, by, bz, shared, X(stream), first, (unsigned long long)second, (double)third, extra != NULL);
}

result cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 3; *total = 5; return 0; }
result cuMemAlloc_v2(uint64_t *address, size_t bytes) { *address = 0x10000; return SAY(" %zu", bytes); }
result cuMemFree_v2(uint64_t address) { return SAY(" %#llx", (unsigned long long)address); }
result cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
    *host = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); return SAY(" %zu flags %u", bytes, flags);
}
result cuMemFreeHost(void *host) { free(host); return SAY(""); }
result cuMemHostGetDevicePointer_v2(uint64_t *address, void *host, unsigned flags) {
    *address = (uint64_t)(uintptr_t)host; (void)flags; return 0;
}
result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, handle stream) {
    (void)from; return SAY(" %#llx %zu on %u", (unsigned long long)to, bytes, X(stream));
}
result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, handle stream) {
    (void)to; return SAY(" %#llx %zu on %u", (unsigned long long)from, bytes, X(stream));
}
result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, handle stream) {
    return SAY(" %#llx %#llx %zu on %u", (unsigned long long)to, (unsigned long long)from, bytes, X(stream));
}
result cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, handle stream) {
    return SAY(" %#llx = %u x %zu on %u", (unsigned long long)to, value, bytes, X(stream));
}
result cuMemsetD32Async(uint64_t to, unsigned value, size_t words, handle stream) {
    return SAY(" %#llx = %u x %zu on %u", (unsigned long long)to, value, words, X(stream));
}

result cuGraphInstantiateWithFlags(handle *exec, handle graph, unsigned long long flags) {
    *exec = make(9); return SAY(" %u -> %u flags %llu", X(graph), X(*exec), flags);
}
result cuGraphUpload(handle exec, handle stream) { return SAY(" %u on %u", X(exec), X(stream)); }
result cuGraphLaunch(handle exec, handle stream) { return SAY(" %u on %u", X(exec), X(stream)); }
result cuGraphExecDestroy(handle exec) { return SAY(" %u", X(exec)); }
result cuGraphDestroy(handle graph) { return SAY(" %u", X(graph)); }

result cuMemGetAllocationGranularity(size_t *bytes, const void *prop, unsigned option) {
    (void)prop; (void)option; *bytes = 2 << 20; return 0;
}
/* The properties are five words at the beginning that matter: type, handle types, location type, location id. */
result cuMemCreate(uint64_t *memory, size_t bytes, const unsigned *prop, unsigned long long flags) {
    static uint64_t next; *memory = ++next;
    return SAY(" -> %u size %zu prop %u %u %u %u flags %llu", X(*memory), bytes, prop[0], prop[1], prop[2], prop[3], flags);
}
result cuMemRelease(uint64_t memory) { return SAY(" %u", X(memory)); }
result cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wish, unsigned long long flags) {
    *address = 0x40000000; return SAY(" %zu align %zu at %u flags %llu", bytes, alignment, X(wish), flags);
}
result cuMemAddressFree(uint64_t address, size_t bytes) { return SAY(" %#llx %zu", (unsigned long long)address, bytes); }
result cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t memory, unsigned long long flags) {
    return SAY(" %#llx %zu offset %zu of %u flags %llu", (unsigned long long)address, bytes, offset, X(memory), flags);
}
result cuMemUnmap(uint64_t address, size_t bytes) { return SAY(" %#llx %zu", (unsigned long long)address, bytes); }
result cuMemSetAccess(uint64_t address, size_t bytes, const unsigned *desc, size_t count) {
    return SAY(" %#llx %zu type %u id %u flags %u count %zu", (unsigned long long)address, bytes, desc[0], desc[1], desc[2],
               count);
}

#ifndef WITHOUT_GREEN
/* Exports standard error under another number, so that there is something to close. */
result cuMemExportToShareableHandle(int *file, uint64_t memory, unsigned type, unsigned long long flags) {
    *file = dup(2); return SAY(" %u type %u flags %llu", X(memory), type, flags);
}
result cuMemImportFromShareableHandle(uint64_t *memory, void *file, unsigned type) {
    *memory = 70; return SAY(" %s type %u", (intptr_t)file > 2 ? "file" : "none", type);
}
result cuCtxGetExecAffinity(unsigned *affinity, unsigned type) { affinity[0] = type; affinity[1] = 66; return 0; }
result cuFuncLoad(handle function) { return SAY(" %u", X(function)); }
result cuFuncGetParamInfo(handle function, size_t index, size_t *offset, size_t *size) {
    static const size_t offsets[] = {0, 8, 16}, sizes[] = {4, 8, 4};
    (void)function;
    if (index > 2) return 1;
    *offset = offsets[index]; *size = sizes[index]; return 0;
}
result cuDeviceGetDevResource(int device, resource *all, unsigned type) {
    (void)device; memset(all, 0, sizeof *all); all->type = type; all->sms = 132; return 0;
}
/* Groups of 2 without regard to clusters, else of 8; the group's number is in the driver's own part. */
result cuDevSmResourceSplitByCount(resource *groups, unsigned *count, const resource *all, resource *rest, unsigned flags,
                                   unsigned least) {
    unsigned step = flags & 1 ? 2 : 8, each = (least + step - 1) / step * step;
    (void)rest;
    if (groups == NULL) { *count = all->sms / each; return SAY(" count"); }
    for (unsigned i = 0; i < *count; i++) {
        groups[i] = *all; groups[i].sms = each; groups[i].internal[0] = (unsigned char)i;
    }
    return SAY(" %u of %u", *count, each);
}
result cuDevResourceGenerateDesc(handle *desc, resource *groups, unsigned count) {
    char list[256] = ""; size_t end = 0;
    green_sms = 0;
    for (unsigned i = 0; i < count; i++) {
        end += (size_t)snprintf(list + end, sizeof list - end, " %u", groups[i].internal[0]);
        green_sms += groups[i].sms;
    }
    *desc = 1; return SAY("%s", list);
}
result cuGreenCtxCreate(handle *green, handle desc, int device, unsigned flags) {
    (void)desc; *green = make(2); return SAY(" -> %u device %d flags %u", X(*green), device, flags);
}
result cuGreenCtxDestroy(handle green) { return SAY(" %u", X(green)); }
result cuCtxFromGreenCtx(handle *ctx, handle green) { *ctx = green + 100; return SAY(" %u", X(green)); }
result cuGreenCtxGetDevResource(handle green, resource *part, unsigned type) {
    (void)green; memset(part, 0, sizeof *part); part->type = type; part->sms = green_sms; return 0;
}
result cuGreenCtxStreamCreate(handle *stream, handle green, unsigned flags, int priority) {
    *stream = make(4); return SAY(" -> %u in %u flags %u priority %d", X(*stream), X(green), flags, priority);
}
#endif
