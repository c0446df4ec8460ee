/* A program whose results depend on the order of everything it does, and one that counts the SMs it runs on. Its arguments are what it does. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "words.h"

enum { CELLS = 8, STREAMS = 5, THREADS = 16, SMS = 132, ROUNDS = 1200, SHARED_ROUNDS = 60 };

static handle step, count_by_sm, context;
static device cells, counts;

static const char PTX[] = ".version 8.4\n.target sm_70\n"
                          ".visible .entry step_once(.param .u64 value) { ret; }\n"
                          ".visible .entry count_by_sm(.param .u64 counts, .param .u32 ids, .param .u64 stay) { ret; }\n";

#define KERNEL (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)

struct configuration {
    unsigned sizes[7];
    handle stream;
    void *attributes;
    unsigned count;
};

struct attribute {
    unsigned id, rest;
    uint64_t value[8];
};

enum way { PLAIN, PER_THREAD, EXTENDED, COOPERATIVE, ASKS };

static void launch_as(enum way way, handle kernel, unsigned blocks, void **list, handle on) {
    struct attribute attribute = {2, 0, {1}};
    struct configuration configuration = {{blocks, 1, 1, 32, 1, 1, 0}, on, &attribute, way == ASKS};
    switch (way) {
    case PLAIN: CALL(cuLaunchKernel, KERNEL, kernel, blocks, 1, 1, 32, 1, 1, 0, on, list, NULL); break;
    case PER_THREAD: CALL(cuLaunchKernel_ptsz, KERNEL, kernel, blocks, 1, 1, 32, 1, 1, 0, on, list, NULL); break;
    case COOPERATIVE:
        CALL(cuLaunchCooperativeKernel,
             (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **), kernel, blocks, 1, 1,
             32, 1, 1, 0, on, list);
        break;
    default: CALL(cuLaunchKernelEx, (void *, handle, void **, void **), &configuration, kernel, list, NULL);
    }
}

/* value = value * 1664525 + 1013904223 */
static void step_in(enum way way, device word, handle on) {
    void *list[] = {&word};
    launch_as(way, step, 1, list, on);
}

/* As above, behind this stream alone. */
static unsigned value_in(device word, handle on) {
    unsigned read = 0;
    CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), &read, word, 4, on);
    synchronize(on);
    return read;
}

static void event_between(handle from, handle to) {
    handle event = NULL;
    CALL(cuEventCreate, (handle *, unsigned), &event, 2);
    CALL(cuEventRecord, (handle, handle), event, from);
    CALL(cuStreamWaitEvent, (handle, handle, unsigned), to, event, 0);
    CALL(cuEventDestroy_v2, (handle), event);
}

static handle captured_steps(device word, int count, handle on) {
    handle graph = NULL, exec = NULL;
    CALL(cuStreamBeginCapture_v2, (handle, int), on, 1);
    for (int at = 0; at < count; at++) step_in(PLAIN, word, on);
    CALL(cuStreamEndCapture, (handle, handle *), on, &graph);
    CALL(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long), &exec, graph, 0);
    CALL(cuGraphDestroy, (handle), graph);
    return exec;
}

static void add_one(void *word) { ++*(unsigned *)word; }

/*
 * The same pseudo-random mixture each time. A cell belongs to a stream; who reads another's waits for it and has it wait. Stream 0 is blocking
 * and so is the default stream, which needs no events between them.
 */
static void order(void) {
    handle on[STREAMS];
    unsigned seed = 7, back = 0;
    CALL(cuStreamCreate, (handle *, unsigned), &on[0], 0);
    for (int at = 1; at < STREAMS; at++) on[at] = stream();
    handle shorter = captured_steps(cells, 3, on[0]), longer = captured_steps(cells + 4, 30, on[1]);
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1103515245u + 12345u;
        unsigned to = (seed >> 16) % STREAMS, from = (seed >> 20) % STREAMS;
        handle here = on[to];
        device word = cells + 4 * to;
        switch ((seed >> 24) % 12) {
        case 0: fill(word, seed, here); break;
        case 1:
            if (from != to) {
                event_between(on[from], here);
                copy(word, cells + 4 * from, here);
                step_in(PLAIN, word, here);
                event_between(here, on[from]);
            }
            break;
        case 2: CALL(cuGraphLaunch, (handle, handle), shorter, on[0]); break;
        case 3: CALL(cuGraphLaunch, (handle, handle), longer, on[1]); break;
        case 4:
            /* Behind all of stream 0, and before what comes there next. */
            step_in(PLAIN, cells, NULL);
            break;
        case 5: step_in(EXTENDED, word, here); break;
        case 6: step_in(COOPERATIVE, word, here); break;
        case 7:
            if (round % 7 == 0) {
                CALL(cuLaunchHostFunc, (handle, void (*)(void *), void *), here, add_one, &back);
                synchronize(here);
            }
            break;
        case 8:
            if (round % 5 == 0) CALL(cuMemcpyDtoHAsync_v2, (void *, device, size_t, handle), &back, word, 4, here), synchronize(here);
            fill(word, back, here);
            break;
        default: step_in(PLAIN, word, here);
        }
        if (round % 100 == 99) {
            /* Another stream in the place of one that is through. */
            synchronize(on[2]);
            CALL(cuStreamDestroy_v2, (handle), on[2]);
            on[2] = stream();
        }
    }
    CALL(cuCtxSynchronize, (void));
    for (int at = 0; at < STREAMS; at++) printf("%u\n", value(cells + 4 * at));
    printf("%u\n", back);
}

static handle shared_stream;
static device shared_words;

/* Its own cell in its own stream and in its thread's default stream, one word in a stream of all, and captures in between. */
static void *thread(void *argument) {
    int number = (int)(uintptr_t)argument;
    CALL(cuCtxSetCurrent, (handle), context);
    handle on = stream(), event = NULL, own = captured_steps(cells + 4 * number, 2, on);
    device word = cells + 4 * number;
    CALL(cuEventCreate, (handle *, unsigned), &event, 2);
    for (int round = 0; round < SHARED_ROUNDS; round++) {
        step_in(PLAIN, word, on);
        step_in(EXTENDED, shared_words, shared_stream);
        step_in(PER_THREAD, cells + 4 * (THREADS + number), NULL);
        CALL(cuGraphLaunch, (handle, handle), own, on);
        if (round % 8 == number % 8) {
            handle exec = captured_steps(word, 6, on);
            CALL(cuGraphLaunch, (handle, handle), exec, on);
            CALL(cuGraphExecDestroy, (handle), exec);
        }
    }
    CALL(cuStreamSynchronize, (handle), on);
    CALL(cuStreamSynchronize_ptsz, (handle), NULL);
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    shared_words = words(1);
    shared_stream = stream();
    for (uintptr_t at = 0; at < THREADS; at++) pthread_create(&all[at], NULL, thread, (void *)at);
    for (int at = 0; at < THREADS; at++) pthread_join(all[at], NULL);
    synchronize(shared_stream);
    expect(value(shared_words), after_steps(0, THREADS * SHARED_ROUNDS), __LINE__);
    for (int at = 0; at < THREADS; at++) {
        int extra = 0;
        for (int round = 0; round < SHARED_ROUNDS; round++) extra += 6 * (round % 8 == at % 8);
        expect(value(cells + 4 * at), after_steps(0, 3 * SHARED_ROUNDS + extra), __LINE__);
        expect(value(cells + 4 * (THREADS + at)), after_steps(0, SHARED_ROUNDS), __LINE__);
    }
}

/* SMs that had blocks since it was last asked. */
static unsigned taken(void) {
    unsigned found[SMS], sms = 0;
    CALL(cuCtxSynchronize, (void));
    CALL(cuMemcpyDtoH_v2, (void *, device, size_t), found, counts, sizeof found);
    CALL(cuMemsetD32_v2, (device, unsigned, size_t), counts, 0, SMS);
    for (int sm = 0; sm < SMS; sm++) sms += found[sm] != 0;
    return sms;
}

static void counted(const char *name, enum way way, handle on) {
    unsigned ids = SMS, blocks = way >= COOPERATIVE ? SMS : 2 * SMS;
    uint64_t stay = 1000;
    void *list[] = {&counts, &ids, &stay};
    launch_as(way, count_by_sm, blocks, list, on);
    printf("%s %u\n", name, taken());
}

static handle one, many, with_memory, own;

static handle counting_graph(int count, int memory) {
    unsigned ids = SMS;
    uint64_t stay = 1000;
    void *list[] = {&counts, &ids, &stay};
    handle graph = NULL, exec = NULL;
    device word = 0;
    CALL(cuStreamBeginCapture_v2, (handle, int), own, 1);
    if (memory) CALL(cuMemAllocAsync, (device *, size_t, handle), &word, 4, own);
    for (int at = 0; at < count; at++) launch_as(PLAIN, count_by_sm, 2 * SMS, list, own);
    if (memory) CALL(cuMemFreeAsync, (device, handle), word, own);
    CALL(cuStreamEndCapture, (handle, handle *), own, &graph);
    CALL(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long), &exec, graph, 0);
    return exec;
}

static void graph_counted(const char *name, handle exec) {
    CALL(cuGraphLaunch, (handle, handle), exec, own);
    printf("%s %u\n", name, taken());
}

/* Where launches of each kind run. */
static void where(void) {
    if (own == NULL) {
        counts = words(SMS);
        own = stream();
        one = counting_graph(1, 0);
        many = counting_graph(20, 0);
        with_memory = counting_graph(2, 1);
    }
    counted("stream", PLAIN, own);
    counted("legacy", PLAIN, NULL);
    counted("thread", PER_THREAD, NULL);
    counted("extended", EXTENDED, own);
    counted("cooperative", COOPERATIVE, own);
    counted("asks", ASKS, own);
    graph_counted("short", one);
    graph_counted("long", many);
    graph_counted("memory", with_memory);
}

static volatile int may_go;

static void stand(void *unused) {
    (void)unused;
    while (!may_go) usleep(1000);
}

static void *beside(void *unused) {
    (void)unused;
    CALL(cuCtxSetCurrent, (handle), context);
    step_in(PER_THREAD, cells + 4, NULL);
    CALL(cuStreamSynchronize_ptsz, (handle), NULL);
    return NULL;
}

/* What stands in one stream is no matter to another one's launches, nor in one thread's default stream to another thread's. */
static void apart(void) {
    handle first = stream(), second = stream();
    pthread_t other;
    alarm(60);
    for (int round = 0; round < 3; round++) step_in(PLAIN, cells, first);
    CALL(cuLaunchHostFunc, (handle, void (*)(void *), void *), first, stand, NULL);
    CALL(cuLaunchHostFunc_ptsz, (handle, void (*)(void *), void *), NULL, stand, NULL);
    step_in(PLAIN, cells, first);
    step_in(PER_THREAD, cells + 12, NULL);
    step_in(PLAIN, cells + 8, second);
    synchronize(second);
    pthread_create(&other, NULL, beside, NULL);
    pthread_join(other, NULL);
    expect(value_in(cells + 8, second), after_steps(0, 1), __LINE__);
    may_go = 1;
    CALL(cuCtxSynchronize, (void));
    expect(value(cells + 4), after_steps(0, 1), __LINE__);
}

static void waits(void) {
    char line[80];
    printf("waiting\n");
    if (fgets(line, sizeof line, stdin) == NULL) exit(5);
}

static void load(void) {
    handle module = NULL;
    CALL(cuCtxGetCurrent, (handle *), &context);
    CALL(cuModuleLoadData, (handle *, const void *), &module, PTX);
    CALL(cuModuleGetFunction, (handle *, handle, const char *), &step, module, "step_once");
    CALL(cuModuleGetFunction, (handle *, handle, const char *), &count_by_sm, module, "count_by_sm");
    own = NULL;
}

/* The context goes, and with it all that was in it. */
static void reset(void) {
    CALL(cuDevicePrimaryCtxReset_v2, (int), 0);
    CALL(cuDevicePrimaryCtxRetain, (handle *, int), &context, 0);
    CALL(cuCtxSetCurrent, (handle), context);
    load();
}

int main(int argument_count, char **arguments) {
    static const struct {
        const char *name;
        void (*does)(void);
    } COMMANDS[] = {{"order", order}, {"threads", threads}, {"where", where}, {"apart", apart}, {"wait", waits}, {"reset", reset}};
    begin();
    setvbuf(stdout, NULL, _IOLBF, 0);
    load();
    for (int at = 1; at < argument_count; at++) {
        int known = 0;
        for (size_t command = 0; command < sizeof COMMANDS / sizeof *COMMANDS; command++) {
            if (strcmp(COMMANDS[command].name, arguments[at]) == 0) {
                known = 1;
                cells = words(2 * THREADS);
                COMMANDS[command].does();
            }
        }
        if (!known) return 2;
        printf("%s\n", arguments[at]);
    }
    return 0;
}
