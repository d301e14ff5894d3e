/* A stand-in for libnvidia-ml.so.1 with two GPUs, compiled by the tests.
 *
 * NVML_STUB names a file whose first word says how it behaves, read at each
 * call: ok, unsupported, lost (GPU 1), ended, denied, nodriver, empty, hang,
 * or xid N (an event, given once). NVML_STUB_PID is the process on GPU 0.
 * -DOLD leaves out what drivers of 2019 do not have, -DNOINIT the beginning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       TOO_SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct gpu { int index; const char *uuid; } gpu;

static gpu gpus[2] = {{0, "GPU-00000000-1111-2222-3333-444444444444"}, {1, "GPU-99999999-8888-7777-6666-555555555555"}};
static int told; /* the last event given */

static int mode(const char *word) {
    char buf[64] = "ok";
    const char *path = getenv("NVML_STUB");
    FILE *f = path ? fopen(path, "r") : 0;
    int n = 0;
    if (f) {
        if (fscanf(f, "%63s %d", buf, &n) < 1)
            strcpy(buf, "ok");
        fclose(f);
    }
    if (strcmp(word, buf))
        return 0;
    return n ? n : 1;
}

/* answer is what a reading of d returns. */
static int answer(gpu *d) {
    if (mode("hang"))
        for (;;)
            pause();
    if (mode("ended"))
        return UNINITIALIZED;
    if (mode("lost") && d->index == 1)
        return LOST;
    return mode("unsupported") ? NOT_SUPPORTED : OK;
}

#define READING(set) { int ret = answer(d); if (ret) return ret; set; return OK; }

#ifndef NOINIT
int nvmlInit_v2(void) { return mode("denied") ? NO_PERMISSION : mode("nodriver") ? NO_DRIVER : OK; }
#endif
int nvmlShutdown(void) { return OK; }

static int get_count(u32 *n) { *n = mode("empty") ? 0 : 2; return OK; }
static int get_handle(u32 i, gpu **d) { if (i > 1) return BAD_ARGUMENT; *d = &gpus[i]; return OK; }
#ifdef OLD
int nvmlDeviceGetCount(u32 *n) { return get_count(n); }
int nvmlDeviceGetHandleByIndex(u32 i, gpu **d) { return get_handle(i, d); }
#else
int nvmlDeviceGetCount_v2(u32 *n) { return get_count(n); }
int nvmlDeviceGetHandleByIndex_v2(u32 i, gpu **d) { return get_handle(i, d); }
#endif

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu **d) {
    static gpu share = {0, "MIG-abc"};
    if (strcmp(uuid, share.uuid))
        return NOT_FOUND;
    *d = &share;
    return OK;
}

int nvmlDeviceGetUUID(gpu *d, char *s, u32 n) { strncpy(s, d->uuid, n); return OK; }
int nvmlDeviceGetName(gpu *d, char *s, u32 n) { strncpy(s, "Stub Card", n); return OK; }

int nvmlDeviceGetUtilizationRates(gpu *d, u32 *gpu_and_memory) READING(gpu_and_memory[0] = 42; gpu_and_memory[1] = 7)

int nvmlDeviceGetMemoryInfo(gpu *d, u64 *total_free_used) READING(
    total_free_used[0] = 24ull << 30; total_free_used[1] = 7ull << 30; total_free_used[2] = 17ull << 30)

int nvmlDeviceGetTotalEccErrors(gpu *d, int type, int counter, u64 *n) READING(*n = type == 1 && counter == 0 ? 3 : 99)
int nvmlDeviceGetPowerUsage(gpu *d, u32 *mw) READING(*mw = 212500)
int nvmlDeviceGetTemperature(gpu *d, int sensor, u32 *c) READING(*c = sensor ? 999 : 61)
int nvmlDeviceGetClockInfo(gpu *d, int clock, u32 *mhz) READING(*mhz = clock == 1 ? 990 : 9)
int nvmlDeviceGetMaxClockInfo(gpu *d, int clock, u32 *mhz) READING(*mhz = clock == 1 ? 1980 : 9)

#ifdef OLD
typedef struct { u32 pid; u64 memory; } process;
#define PROCESSES(kind) nvmlDeviceGet##kind##RunningProcesses
#define REASONS nvmlDeviceGetCurrentClocksThrottleReasons
#else
typedef struct { u32 pid; u64 memory; u32 gi, ci; } process;
#define PROCESSES(kind) nvmlDeviceGet##kind##RunningProcesses_v3
#define REASONS nvmlDeviceGetCurrentClocksEventReasons

typedef struct { u32 version; u64 total, reserved, free, used; } memory;
int nvmlDeviceGetMemoryInfo_v2(gpu *d, memory *m) {
    if (m->version != (sizeof(memory) | 2u << 24))
        return BAD_ARGUMENT;
    READING(m->total = 24ull << 30; m->reserved = 1ull << 30; m->free = 7ull << 30; m->used = 16ull << 30)
}

int nvmlDeviceGetTotalEnergyConsumption(gpu *d, u64 *mj) READING(*mj = 1234567)

typedef struct { u32 version; int sensor, c; } temperature;
int nvmlDeviceGetTemperatureV(gpu *d, temperature *t) READING(t->c = t->version == (sizeof(temperature) | 1u << 24) ? 62 : -1)
#endif

int REASONS(gpu *d, u64 *why) READING(*why = 0x24)

int PROCESSES(Compute)(gpu *d, u32 *n, process *list) {
    const char *pid = getenv("NVML_STUB_PID");
    int want = d->index == 0 && pid ? 2 : 0, room = *n;
    *n = want;
    if (room < want)
        return TOO_SMALL;
    if (want) {
        list[0].pid = 1;
        list[1].pid = atoi(pid);
    }
    return OK;
}

int PROCESSES(Graphics)(gpu *d, u32 *n, process *list) { return NOT_SUPPORTED; }

#ifndef OLD
int nvmlEventSetCreate(void **set) { *set = &told; return OK; }
int nvmlEventSetFree(void *set) { return OK; }
int nvmlDeviceGetSupportedEventTypes(gpu *d, u64 *types) { *types = 8 | 2; return OK; }
int nvmlDeviceRegisterEvents(gpu *d, u64 types, void *set) { return types == 8 ? OK : BAD_ARGUMENT; }
typedef struct { gpu *d; u64 type, data; u32 gi, ci; } event;
int nvmlEventSetWait_v2(void *set, event *e, u32 ms) {
    int xid = mode("xid");
    if (!xid || xid == told) {
        usleep(1000 * (ms < 20 ? ms : 20));
        return TIMEOUT;
    }
    told = xid;
    e->d = &gpus[0], e->type = 8, e->data = xid, e->gi = e->ci = ~0u;
    return OK;
}
#endif
