/* A program that uses the driver as its arguments say, and prints what came of it. It knows nothing of the library under
   test. Each argument is a command, with words after colons; see `run`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*Init)(unsigned);
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*Setf)(void *, int, float);
typedef int (*Occupancy)(int *, int *, void *, void *, size_t, int, unsigned);
typedef int (*Ask)(const char *, void **, int, uint64_t);
typedef int (*AskV2)(const char *, void **, int, uint64_t, int *);

/* As a program has it that is linked against the driver. */
#ifdef LINKED
int cuInit(unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
#endif

static void *named, *real;

static void *symbol(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (found == NULL) {
        printf("%s is missing\n", name);
        fflush(stdout);
        exit(3);
    }
    return found;
}

static const char *last(void) { return ((const char *(*)(void))symbol(real, "stand_in_last"))(); }

static int launch_with(Launch launch) {
    return launch((void *)1, 2, 3, 4, 5, 6, 7, 8, (void *)9, (void **)10, (void **)11);
}

/* The file that an address belongs to, without its folder. */
static const char *owner(void *address) {
    Dl_info info;
    if (address == NULL) return "nothing";
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL) return "nobody";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash == NULL ? info.dli_fname : slash + 1;
}

static void *launches(void *unused) {
    (void)unused;
    Launch launch = (Launch)symbol(named, "cuLaunchKernel");
    for (;;) launch_with(launch);
    return NULL;
}

static void run_all(int count, char **commands, char *self);

/* Runs one command; how many arguments it took. */
static int run(int count, char **commands, char *self) {
    char text[256], *rest = text;
    snprintf(text, sizeof text, "%s", commands[0]);
    const char *command = strsep(&rest, ":");
    const char *first = rest ? strsep(&rest, ":") : "", *second = rest ? strsep(&rest, ":") : "0", *third = rest ? rest : "0";
    if (strcmp(command, "open") == 0) {
        named = dlopen("libcuda.so.1", RTLD_NOW);
        printf("open %s\n", named ? "yes" : dlerror());
    } else if (strcmp(command, "open-real") == 0) {
        real = dlopen(getenv("REAL"), RTLD_NOW);
        printf("open-real %s\n", real ? "yes" : dlerror());
    } else if (strcmp(command, "init") == 0) {
        printf("init %d\n", ((Init)symbol(named, "cuInit"))(0));
    } else if (strcmp(command, "launch") == 0) {
        printf("launch %d\n", launch_with((Launch)symbol(named, "cuLaunchKernel")));
    } else if (strcmp(command, "launch-real") == 0) {
        printf("launch-real %d\n", launch_with((Launch)symbol(real, "cuLaunchKernel")));
    } else if (strcmp(command, "float") == 0) {
        printf("float %d\n", ((Setf)symbol(named, "cuParamSetf"))((void *)1, 2, 1.5f));
    } else if (strcmp(command, "stack") == 0) {
        Occupancy call = (Occupancy)symbol(named, "cuOccupancyMaxPotentialBlockSizeWithFlags");
        printf("stack %d\n", call((int *)1, (int *)2, (void *)3, (void *)4, 5, 6, 7));
    } else if (strcmp(command, "last") == 0) {
        printf("last %s\n", last());
    } else if (strcmp(command, "find") == 0) { /* find:NAME in the handle of the name */
        dlerror();
        void *found = dlsym(named, first);
        printf("find %s %s %s\n", first, owner(found), dlerror() ? "error" : "fine");
    } else if (strcmp(command, "find-real") == 0) {
        printf("find-real %s %s\n", first, owner(dlsym(real, first)));
    } else if (strcmp(command, "find-version") == 0) {
        printf("find-version %s %s\n", first, owner(dlvsym(named, first, "ANY")));
    } else if (strcmp(command, "find-default") == 0) {
        printf("find-default %s %s\n", first, owner(dlsym(RTLD_DEFAULT, first)));
    } else if (strcmp(command, "find-next") == 0) {
        printf("find-next %s %s\n", first, owner(dlsym(RTLD_NEXT, first)));
    } else if (strcmp(command, "ask") == 0 || strcmp(command, "ask-v1") == 0) { /* ask:NAME:VERSION:FLAGS */
        void *found = NULL;
        int status = -1, result;
        if (command[3] == '\0')
            result = ((AskV2)symbol(named, "cuGetProcAddress_v2"))(first, &found, atoi(second), strtoull(third, NULL, 0), &status);
        else
            result = ((Ask)symbol(named, "cuGetProcAddress"))(first, &found, atoi(second), strtoull(third, NULL, 0));
        printf("%s %s %d %s\n", command, first, result, owner(found));
        if (result == 0 && strcmp(first, "cuLaunchKernel") == 0) printf("launch %d\n", launch_with((Launch)found));
#ifdef LINKED
    } else if (strcmp(command, "linked") == 0) {
        int init = cuInit(0);
        printf("linked %d %d\n", init, launch_with(cuLaunchKernel));
#endif
    } else if (strcmp(command, "nvml") == 0 || strcmp(command, "nvml-default") == 0) { /* memory in GiB, as NVML has it */
        void *nvml = command[4] == '\0' ? dlopen("libnvidia-ml.so.1", RTLD_NOW) : RTLD_DEFAULT;
        unsigned long long memory[3] = {0, 0, 0};
        int result = ((int (*)(void *, void *))symbol(nvml, "nvmlDeviceGetMemoryInfo"))((void *)1, memory);
        printf("%s %d %llu %llu %llu\n", command, result, memory[0] >> 30, memory[1] >> 30, memory[2] >> 30);
    } else if (strcmp(command, "threads") == 0) { /* launching, and still at it when main returns */
        for (int i = 0; i < 4; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, launches, NULL);
        }
    } else if (strcmp(command, "child") == 0) { /* child COMMAND... end: in a child; the parent waits for it */
        int end = 1;
        while (end < count && strcmp(commands[end], "end") != 0) end++;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            run_all(end - 1, commands + 1, self);
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        fflush(stdout);
        return end + 1;
    } else if (strcmp(command, "exec") == 0) { /* the rest in a new image */
        fflush(stdout);
        char **arguments = calloc(count + 1, sizeof *arguments);
        arguments[0] = self;
        memcpy(arguments + 1, commands + 1, (count - 1) * sizeof *arguments);
        execv(self, arguments);
        exit(4);
    } else if (strcmp(command, "files") == 0) { /* descriptors that are open */
        int open = 0;
        for (int i = 0; i < 256; i++) open += lseek(i, 0, SEEK_CUR) >= 0 || dup2(i, i) == i;
        printf("files %d\n", open);
    } else if (strcmp(command, "wait") == 0) { /* until a line comes */
        char line[16];
        printf("waiting\n");
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL) exit(5);
    } else {
        printf("no command %s\n", command);
        exit(6);
    }
    fflush(stdout);
    return 1;
}

static void run_all(int count, char **commands, char *self) {
    for (int at = 0; at < count;) at += run(count - at, commands + at, self);
}

int main(int count, char **arguments) {
    run_all(count - 1, arguments + 1, arguments[0]);
    return 0;
}
