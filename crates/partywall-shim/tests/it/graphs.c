/* A program that launches graphs in every way that matters, and prints what they leave in memory. Its arguments are what it does. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "words.h"

enum { CELLS = 8, THREADS = 16 };

static handle step;
static device cells;

static const char PTX[] = ".version 8.4\n.target sm_70\n.visible .entry step_once(.param .u64 value) { ret; }\n";

/* value = value * 1664525 + 1013904223 */
static void step_once(device word, handle on) {
    void *list[] = {&word};
    CALL(cuLaunchKernel,
         (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **), step, 1, 1,
         1, 32, 1, 1, 0, on, list, NULL);
}

static void capture(handle on) { CALL(cuStreamBeginCapture_v2, (handle, int), on, 2); }

static handle captured(handle on) {
    handle graph = NULL;
    CALL(cuStreamEndCapture, (handle, handle *), on, &graph);
    return graph;
}

static handle instantiate(handle graph) {
    handle exec = NULL;
    CALL(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long), &exec, graph, 0);
    return exec;
}

static void launch(handle exec, handle on) { CALL(cuGraphLaunch, (handle, handle), exec, on); }

static handle steps(device word, int count, handle on) {
    capture(on);
    for (int at = 0; at < count; at++) step_once(word, on);
    return captured(on);
}

static void event_between(handle from, handle to) {
    handle event = NULL;
    CALL(cuEventCreate, (handle *, unsigned), &event, 2);
    CALL(cuEventRecord, (handle, handle), event, from);
    CALL(cuStreamWaitEvent, (handle, handle, unsigned), to, event, 0);
}

static void chain(void) {
    handle on = stream(), exec = instantiate(steps(cells, 200, on));
    fill(cells, 1, on);
    for (int round = 0; round < 3; round++) launch(exec, on);
    synchronize(on);
    expect(value(cells), after_steps(1, 600), __LINE__);
}

/* A stream for each cell, and whoever touches two has them wait for each other: branches and diamonds of all kinds. */
static handle branches_of(unsigned seed, int count, handle *on) {
    capture(on[0]);
    for (int cell = 1; cell < CELLS; cell++) event_between(on[0], on[cell]);
    for (int at = 0; at < count; at++) {
        seed = seed * 1103515245u + 12345u;
        unsigned to = (seed >> 16) % CELLS, from = (seed >> 20) % CELLS;
        if (from == to) {
            step_once(cells + 4 * to, on[to]);
        } else if ((seed >> 24) % 4 == 0) {
            fill(cells + 4 * to, seed, on[to]);
        } else {
            event_between(on[from], on[to]);
            copy(cells + 4 * to, cells + 4 * from, on[to]);
            step_once(cells + 4 * to, on[to]);
            event_between(on[to], on[from]);
        }
    }
    for (int cell = 1; cell < CELLS; cell++) event_between(on[cell], on[0]);
    return captured(on[0]);
}

static void branches(void) {
    handle on[CELLS];
    for (int cell = 0; cell < CELLS; cell++) on[cell] = stream();
    for (unsigned seed = 1; seed < 6; seed++) {
        handle exec = instantiate(branches_of(seed, 150, on));
        for (int round = 0; round < 3; round++) launch(exec, on[round]);
        for (int round = 0; round < 3; round++) synchronize(on[round]);
        for (int cell = 0; cell < CELLS; cell++) printf("%u\n", value(cells + 4 * cell));
        CALL(cuGraphExecDestroy, (handle), exec);
    }
}

static void nested(void) {
    handle on = stream(), inner = steps(cells, 40, on), graph = NULL, nodes[3] = {NULL};
    CALL(cuGraphCreate, (handle *, unsigned), &graph, 0);
    for (int at = 0; at < 3; at++)
        CALL(cuGraphAddChildGraphNode, (handle *, handle, handle *, size_t, handle), &nodes[at], graph, &nodes[at - !!at],
             at != 0, inner);
    handle exec = instantiate(graph);
    fill(cells, 5, on);
    launch(exec, on);
    synchronize(on);
    expect(value(cells), after_steps(5, 120), __LINE__);
}

static void small(void) {
    handle on = stream(), exec = instantiate(steps(cells, 4, on));
    fill(cells, 1, on);
    launch(exec, on);
    synchronize(on);
    expect(value(cells), after_steps(1, 4), __LINE__);
}

static void memory(void) {
    handle on = stream();
    device word = 0;
    capture(on);
    CALL(cuMemAllocAsync, (device *, size_t, handle), &word, 4, on);
    fill(word, 3, on);
    for (int at = 0; at < 50; at++) step_once(word, on);
    copy(cells, word, on);
    CALL(cuMemFreeAsync, (device, handle), word, on);
    handle exec = instantiate(captured(on));
    for (int round = 0; round < 2; round++) launch(exec, on);
    synchronize(on);
    expect(value(cells), after_steps(3, 50), __LINE__);
}

/* With the graph's own upload, and one that the device could launch. */
static void flags(void) {
    struct {
        uint64_t flags;
        handle upload, error;
        unsigned result;
    } parameters = {2, stream(), NULL, 0};
    handle graph = steps(cells, 20, parameters.upload), exec = NULL, from_device = NULL;
    CALL(cuGraphInstantiateWithParams, (handle *, handle, void *), &exec, graph, &parameters);
    fill(cells, 1, parameters.upload);
    launch(exec, parameters.upload);
    CALL(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long), &from_device, graph, 4);
    launch(exec, parameters.upload);
    launch(instantiate(graph), parameters.upload);
    synchronize(parameters.upload);
    expect(value(cells), after_steps(1, 60), __LINE__);
}

/* What a graph is changed to it does from then on; and it waits for the launch before it was changed. */
static void changed(void) {
    handle on = stream(), other = stream(), exec = instantiate(steps(cells, 50, on));
    fill(cells, 1, on);
    synchronize(on);
    launch(exec, on);
    handle error = NULL;
    unsigned result = 1;
    CALL(cuGraphExecUpdate, (handle, handle, handle *, unsigned *), exec, steps(cells + 4, 50, on), &error, &result);
    launch(exec, other);
    synchronize(other);
    expect(value(cells), after_steps(1, 50), __LINE__);
    expect(value(cells + 4), after_steps(0, 50), __LINE__);
}

/* Launches of one graph in several streams come one after the other, as is documented. */
static void streams(void) {
    handle on[4], exec;
    for (int at = 0; at < 4; at++) on[at] = stream();
    exec = instantiate(steps(cells, 20, on[0]));
    fill(cells, 9, on[0]);
    synchronize(on[0]);
    for (int round = 0; round < 20; round++) launch(exec, on[round % 4]);
    for (int at = 0; at < 4; at++) synchronize(on[at]);
    expect(value(cells), after_steps(9, 400), __LINE__);
}

static void destroyed(void) {
    handle on = stream();
    fill(cells, 1, on);
    for (int round = 0; round < 10; round++) {
        handle graph = steps(cells, 20, on), exec = instantiate(graph);
        launch(exec, on);
        CALL(cuGraphExecDestroy, (handle), exec);
        CALL(cuGraphDestroy, (handle), graph);
    }
    synchronize(on);
    expect(value(cells), after_steps(1, 200), __LINE__);
}

static handle context, shared_exec, shared_stream;
static device shared_word;

/* Its own graph in its own stream; one that all launch; and one of its own in a stream of all, where nothing may come between. */
static void *thread(void *argument) {
    int number = (int)(uintptr_t)argument;
    CALL(cuCtxSetCurrent, (handle), context);
    handle on = stream(), own = instantiate(steps(cells + 4 * number, 20, on));
    capture(on);
    fill(shared_word + 4, number, on);
    for (int at = 0; at < 12; at++) step_once(shared_word + 4, on);
    copy(cells + 4 * (THREADS + number), shared_word + 4, on);
    handle alone = instantiate(captured(on));
    for (int round = 0; round < 5; round++) {
        launch(own, on);
        launch(shared_exec, on);
        launch(alone, shared_stream);
        step_once(cells + 4 * number, on);
        if (number % 4 == 0) {
            capture(on);
            launch(own, on);
            step_once(cells + 4 * number, on);
            launch(instantiate(captured(on)), on);
        }
    }
    synchronize(on);
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    CALL(cuCtxGetCurrent, (handle *), &context);
    shared_word = words(2);
    shared_stream = stream();
    shared_exec = instantiate(steps(shared_word, 10, shared_stream));
    for (uintptr_t at = 0; at < THREADS; at++) pthread_create(&all[at], NULL, thread, (void *)at);
    for (int at = 0; at < THREADS; at++) pthread_join(all[at], NULL);
    synchronize(shared_stream);
    expect(value(shared_word), after_steps(0, THREADS * 5 * 10), __LINE__);
    for (int at = 0; at < THREADS; at++) {
        expect(value(cells + 4 * at), after_steps(0, 5 * 21 * (at % 4 == 0 ? 2 : 1)), __LINE__);
        expect(value(cells + 4 * (THREADS + at)), after_steps((unsigned)at, 12), __LINE__);
    }
}

static volatile int ran, may_go;

static void count(void *unused) {
    (void)unused;
    ran++;
}

static void stand(void *unused) {
    (void)unused;
    printf("stands\n");
    while (!may_go) usleep(1000);
}

static void *launching(void *exec) {
    CALL(cuCtxSetCurrent, (handle), context);
    handle on = stream();
    launch(exec, on);
    synchronize(on);
    return NULL;
}

/* A long graph, of which a node near its beginning waits for a line. After the next line says how far the graph is. `alloc`: with memory. */
static void long_graph(int with_memory) {
    handle on = stream();
    device word = 0;
    char line[80];
    pthread_t other;
    CALL(cuCtxGetCurrent, (handle *), &context);
    capture(on);
    if (with_memory) CALL(cuMemAllocAsync, (device *, size_t, handle), &word, 4, on);
    for (int at = 0; at < 200; at++) {
        step_once(cells, on);
        CALL(cuLaunchHostFunc, (handle, void (*)(void *), void *), on, at == 10 ? stand : count, NULL);
    }
    if (with_memory) CALL(cuMemFreeAsync, (device, handle), word, on);
    handle exec = instantiate(captured(on));
    pthread_create(&other, NULL, launching, exec);
    if (fgets(line, sizeof line, stdin) == NULL) exit(5);
    may_go = 1;
    if (fgets(line, sizeof line, stdin) == NULL) exit(5);
    printf("%d\n", ran);
    if (fgets(line, sizeof line, stdin) == NULL) exit(5);
    pthread_join(other, NULL);
    expect(ran, 199, __LINE__);
}

static void held(void) { long_graph(0); }
static void held_whole(void) { long_graph(1); }

static void waits(void) {
    char line[80];
    printf("waiting\n");
    if (fgets(line, sizeof line, stdin) == NULL) exit(5);
}

/* How long it takes to make a graph of 500 kernels ready. */
static void large(void) {
    handle on = stream(), exec = instantiate(steps(cells, 500, on));
    fill(cells, 1, on);
    launch(exec, on);
    synchronize(on);
    expect(value(cells), after_steps(1, 500), __LINE__);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*does)(void);
    } COMMANDS[] = {{"chain", chain},       {"branches", branches},   {"nested", nested},  {"small", small},
                    {"memory", memory},     {"flags", flags},         {"changed", changed}, {"streams", streams},
                    {"destroyed", destroyed}, {"threads", threads},   {"held", held},      {"held-whole", held_whole},
                    {"wait", waits},        {"large", large}};
    handle module = NULL;
    begin();
    setvbuf(stdout, NULL, _IOLBF, 0);
    CALL(cuModuleLoadData, (handle *, const void *), &module, PTX);
    CALL(cuModuleGetFunction, (handle *, handle, const char *), &step, module, "step_once");
    for (int at = 1; at < count; at++) {
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
