/* A libnvidia-ml.so.1 that answers from a text file, so that the real pynvml path runs on a machine without a GPU.
 *
 * The file is $NVML_STUB, else `answers` beside the library; nvmlInitWithFlags reads it. One answer a line, the first of a key
 * stands:
 *
 *     nvmlDeviceGetEccMode/0<TAB>0<TAB>1<TAB>1          KEY, RETURN, VALUES...
 *     nvmlDeviceGetSerial/3<TAB>15                      GPU_IS_LOST
 *     nvmlDeviceGetFieldValues/0/230<TAB>hang
 *
 * KEY is the function, then the device's number and the other arguments that choose an answer. A key that is not there is
 * NOT_SUPPORTED. $NVML_STUB_HANG and $NVML_STUB_CRASH name a function that hangs or crashes whatever the file says;
 * $NVML_STUB_LOG is a file that gets the name of every function called. Struct layouts are those of NVIDIA's nvml.h.
 *
 * A device's handle is its number + 1; MIG device s of GPU g has the number 1000 * (g + 1) + s.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *handle;

static char *text;
static const char *values[8]; /* of the last answer; each ends at a tab or at the end of its line */

static void load(void) {
    char path[4096];
    const char *given = getenv("NVML_STUB");
    if (given && *given) {
        snprintf(path, sizeof path, "%s", given);
    } else {
        Dl_info info;
        dladdr((void *)load, &info);
        snprintf(path, sizeof path, "%s", info.dli_fname);
        char *slash = strrchr(path, '/');
        snprintf(slash ? slash + 1 : path, 16, "answers");
    }
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "NVML stub: cannot read %s\n", path);
        abort();
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    free(text);
    text = malloc(size + 2);
    text[0] = '\n'; /* so that every key has a newline before it */
    size = fread(text + 1, 1, size, file);
    text[size + 1] = 0;
    fclose(file);
}

static void hang(void) {
    /* As a driver call that never returns: nothing but SIGKILL ends it. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    for (;;) pause();
}

static int is(const char *variable, const char *function) {
    const char *value = getenv(variable);
    return value && !strcmp(value, function);
}

static void called(const char *function) {
    const char *path = getenv("NVML_STUB_LOG");
    if (path && *path) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd >= 0) {
            dprintf(fd, "%s\n", function);
            close(fd);
        }
    }
    if (is("NVML_STUB_HANG", function)) hang();
    if (is("NVML_STUB_CRASH", function)) raise(SIGSEGV);
}

/* The return of `function` with `n` arguments; its values are then in `values`. `otherwise` when there is no such key. */
static int answer(int otherwise, const char *function, int n, ...) {
    char key[256];
    int length = snprintf(key, sizeof key, "\n%s", function);
    va_list arguments;
    va_start(arguments, n);
    for (int i = 0; i < n; i++) length += snprintf(key + length, sizeof key - length, "/%ld", va_arg(arguments, long));
    va_end(arguments);
    snprintf(key + length, sizeof key - length, "\t");
    const char *at = text ? strstr(text, key) : NULL;
    if (!at) return otherwise;
    at += strlen(key);
    if (!strncmp(at, "hang", 4)) hang();
    const char *rest = at;
    for (int i = 0; i < 8; i++) {
        rest += strcspn(rest, "\t\n");
        if (*rest == '\t') rest++;
        values[i] = rest;
    }
    return atoi(at);
}

static long num(handle h) { return (long)(intptr_t)h - 1; }
static handle from(long n) { return (handle)(intptr_t)(n + 1); }
static u64 number(int i) { return strtoull(values[i], NULL, 0); }

static void copy(char *to, u32 size, int i) {
    size_t length = strcspn(values[i], "\t\n");
    if (length > size - 1) length = size - 1;
    memcpy(to, values[i], length);
    to[length] = 0;
}

/* ---- shapes of functions */

#define SYSTEM_TEXT(name) \
    int name(char *out, u32 size) { \
        called(#name); \
        int r = answer(NOT_SUPPORTED, #name, 0); \
        if (!r) copy(out, size, 0); \
        return r; \
    }
#define TEXT(name) \
    int name(handle h, char *out, u32 size) { \
        called(#name); \
        int r = answer(NOT_SUPPORTED, #name, 1, num(h)); \
        if (!r) copy(out, size, 0); \
        return r; \
    }
#define ONE(name) \
    int name(handle h, u32 *out) { \
        called(#name); \
        int r = answer(NOT_SUPPORTED, #name, 1, num(h)); \
        if (!r) *out = (u32)number(0); \
        return r; \
    }
#define TWO(name) \
    int name(handle h, u32 *a, u32 *b) { \
        called(#name); \
        int r = answer(NOT_SUPPORTED, #name, 1, num(h)); \
        if (!r) *a = (u32)number(0), *b = (u32)number(1); \
        return r; \
    }

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    load();
    called(__func__);
    return answer(SUCCESS, __func__, 0);
}
int nvmlShutdown(void) { called(__func__); return answer(SUCCESS, __func__, 0); }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 0);
    if (!r) *out = (int)number(0);
    return r;
}
int nvmlSystemGetConfComputeState(u32 *out /* environment, ccFeature, devToolsMode */) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 0);
    if (!r) out[0] = 0, out[1] = (u32)number(0), out[2] = (u32)number(1);
    return r;
}

int nvmlDeviceGetCount_v2(u32 *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 0);
    if (!r) *out = (u32)number(0);
    return r;
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, handle *out) {
    called(__func__);
    *out = from(index);
    return answer(INVALID_ARGUMENT, __func__, 1, (long)index);
}

TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetBoardPartNumber)
TEXT(nvmlDeviceGetVbiosVersion)
TEXT(nvmlDeviceGetInforomImageVersion)
int nvmlDeviceGetGspFirmwareVersion(handle h, char *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 1, num(h));
    if (!r) copy(out, 64, 0);
    return r;
}
ONE(nvmlDeviceGetMinorNumber)
ONE(nvmlDeviceGetArchitecture)
ONE(nvmlDeviceGetNumaNodeId)
ONE(nvmlDeviceGetRetiredPagesPendingStatus)
ONE(nvmlDeviceGetMaxPcieLinkGeneration)
ONE(nvmlDeviceGetMaxPcieLinkWidth)
ONE(nvmlDeviceGetCurrPcieLinkGeneration)
ONE(nvmlDeviceGetCurrPcieLinkWidth)
ONE(nvmlDeviceGetPowerUsage)
ONE(nvmlDeviceGetPersistenceMode)
ONE(nvmlDeviceGetComputeMode)
ONE(nvmlDeviceGetPowerManagementDefaultLimit)
ONE(nvmlDeviceGetPowerManagementLimit)
ONE(nvmlDeviceGetVirtualizationMode)
ONE(nvmlDeviceGetMaxMigDeviceCount)
ONE(nvmlDeviceGetPcieReplayCounter)
ONE(nvmlDeviceGetGpuInstanceId)
ONE(nvmlDeviceGetComputeInstanceId)
TWO(nvmlDeviceGetCudaComputeCapability)
TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetMigMode)
TWO(nvmlDeviceGetPowerManagementLimitConstraints)

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(handle h, struct pci *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 1, num(h));
    if (!r) copy(out->bus_id, 32, 0), out->id = (u32)number(1), out->subsystem = (u32)number(2);
    return r;
}

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
static u64 used(handle h) { return answer(NOT_SUPPORTED, "memoryUsed", 1, num(h)) ? 0 : number(0); }
int nvmlDeviceGetMemoryInfo(handle h, struct memory *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo", 1, num(h));
    if (!r) out->total = number(0), out->used = used(h);
    return r;
}
int nvmlDeviceGetMemoryInfo_v2(handle h, struct memory_v2 *out) {
    called(__func__);
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    int r = answer(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo", 1, num(h));
    if (!r) out->total = number(0), out->used = used(h);
    return r;
}

int nvmlDeviceGetUtilizationRates(handle h, u32 *out /* gpu, memory */) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 1, num(h));
    if (!r) out[0] = (u32)number(0), out[1] = (u32)number(1);
    return r;
}
int nvmlDeviceGetTemperature(handle h, u32 sensor, u32 *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 2, num(h), (long)sensor);
    if (!r) *out = (u32)number(0);
    return r;
}
struct process { u32 pid; u64 used; u32 gi, ci; };
static int processes(const char *function, handle h, u32 *count, struct process *out) {
    /* Values: pid and bytes of at most four processes; bytes "-" are not available. */
    int r = answer(NOT_SUPPORTED, function, 1, num(h));
    if (r) return r;
    u32 there = 0, room = *count;
    while (there < 4 && number(2 * there)) there++;
    *count = there;
    if (there && (!out || room < there)) return INSUFFICIENT_SIZE;
    for (u32 i = 0; i < there; i++) {
        out[i].pid = (u32)number(2 * i);
        out[i].used = *values[2 * i + 1] == '-' ? ~0ull : number(2 * i + 1);
        out[i].gi = out[i].ci = ~0u;
    }
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(handle h, u32 *count, struct process *out) { called(__func__); return processes(__func__, h, count, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle h, u32 *count, struct process *out) { called(__func__); return processes(__func__, h, count, out); }

int nvmlDeviceGetTotalEccErrors(handle h, u32 type, u32 counter, u64 *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 3, num(h), (long)type, (long)counter);
    if (!r) *out = number(0);
    return r;
}
int nvmlDeviceGetMemoryErrorCounter(handle h, u32 type, u32 counter, u32 location, u64 *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 4, num(h), (long)type, (long)counter, (long)location);
    if (!r) *out = number(0);
    return r;
}
struct sram { u32 version; u64 counts[11]; u32 exceeded; };
int nvmlDeviceGetSramEccErrorStatus(handle h, struct sram *out) {
    called(__func__);
    if (out->version != (sizeof *out | 1u << 24)) return VERSION_MISMATCH;
    int r = answer(NOT_SUPPORTED, __func__, 1, num(h));
    if (!r) out->exceeded = (u32)number(0);
    return r;
}
int nvmlDeviceGetRemappedRows(handle h, u32 *a, u32 *b, u32 *c, u32 *d) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 1, num(h));
    if (!r) *a = (u32)number(0), *b = (u32)number(1), *c = (u32)number(2), *d = (u32)number(3);
    return r;
}
int nvmlDeviceGetRetiredPages(handle h, u32 cause, u32 *count, u64 *addresses) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 2, num(h), (long)cause);
    if (r) return r;
    u32 pages = (u32)number(0), room = *count;
    *count = pages;
    if (!addresses || room < pages) return pages ? INSUFFICIENT_SIZE : SUCCESS;
    for (u32 i = 0; i < pages; i++) addresses[i] = 0x10000ull * i;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle h, u32 slot, handle *out) {
    called(__func__);
    *out = from(1000 * (num(h) + 1) + slot);
    return answer(NOT_FOUND, __func__, 2, num(h), (long)slot);
}
struct attributes { u32 counts[8]; u64 memory_mb; };
int nvmlDeviceGetAttributes_v2(handle h, struct attributes *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 1, num(h));
    if (!r) out->memory_mb = number(0);
    return r;
}
int nvmlDeviceGetGpuInstanceById(handle h, u32 id, handle *out) {
    called(__func__);
    *out = from(1000 * num(h) + id);
    return answer(NOT_FOUND, __func__, 2, num(h), (long)id);
}
struct gpu_instance { handle device; u32 id, profile, start, size; };
int nvmlGpuInstanceGetInfo(handle instance, struct gpu_instance *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 1, num(instance));
    if (!r) out->start = (u32)number(0), out->size = (u32)number(1);
    return r;
}

int nvmlDeviceGetNvLinkState(handle h, u32 link, u32 *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 2, num(h), (long)link);
    if (!r) *out = (u32)number(0);
    return r;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle h, u32 link, struct pci *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 2, num(h), (long)link);
    if (!r) copy(out->bus_id, 32, 0);
    return r;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(handle h, u32 link, u32 *out) {
    called(__func__);
    int r = answer(NOT_SUPPORTED, __func__, 2, num(h), (long)link);
    if (!r) *out = (u32)number(0);
    return r;
}

struct fabric { unsigned char cluster[16]; u32 status, clique, state; };
static int fabric(handle h, struct fabric *out) {
    int r = answer(NOT_SUPPORTED, "nvmlDeviceGetGpuFabricInfoV", 1, num(h));
    if (r) return r;
    for (int i = 0; i < 16; i++) {
        char digits[3] = {values[0][2 * i], values[0][2 * i + 1], 0};
        out->cluster[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    out->clique = (u32)number(1), out->state = (u32)number(2), out->status = (u32)number(3);
    return r;
}
int nvmlDeviceGetGpuFabricInfo(handle h, struct fabric *out) { called(__func__); return fabric(h, out); }
int nvmlDeviceGetGpuFabricInfoV(handle h, u32 *out) {
    called(__func__);
    u32 version = *out >> 24, newest = 3;
    if (!answer(NOT_SUPPORTED, "newestFabricStruct", 0)) newest = (u32)number(0);
    if (version > newest) return VERSION_MISMATCH;
    return fabric(h, (struct fabric *)(out + 1));
}

struct field { u32 id, scope; long long timestamp, latency; u32 type; int result; union { u32 number; u64 wide; } value; };
int nvmlDeviceGetFieldValues(handle h, int count, struct field *fields) {
    called(__func__);
    for (int i = 0; i < count; i++) {
        fields[i].result = answer(NOT_SUPPORTED, __func__, 2, num(h), (long)fields[i].id);
        if (!fields[i].result) fields[i].type = 1, fields[i].value.number = (u32)number(0);
    }
    return SUCCESS;
}
