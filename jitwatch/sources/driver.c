/* The driver hook: which modules the CUDA driver loads, when, and on whose behalf.
 *
 * Owns the record file and the one CUPTI subscription of this process. Knows
 * nothing of Python beyond a signal that somebody's handler answers with a stack,
 * and nothing of requests beyond a step number.
 *
 * Rules for everything reachable from on_event():
 *   - it allocates nothing, makes no CUDA call, takes no GIL and no lock that the
 *     host could hold: a callback may run on any thread, under the driver's locks;
 *   - a record is published before the work it describes, so that a hang or a kill
 *     leaves it open (end_ns 0);
 *   - it never fails: a full file is a counted drop.
 *
 * The record format names no CUPTI type, so that another back end can write it.
 * Its reader is driver_log.py; both change together, with FORMAT_VERSION.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The package's build gives it; driver_library.py looks for it in the object's bytes,
 * to tell this source's object from a stale one. */
#ifndef JW_SOURCE_SHA256
#define JW_SOURCE_SHA256 "unknown"
#endif
EXPORT const char jw_source_sha256[] = JW_SOURCE_SHA256;

/* ---- the record file ---------------------------------------------------- */

#define FORMAT_VERSION 1
#define FILE_BYTES (8u << 20)
#define HEADER_BYTES 4096u
#define RECORD_BYTES 256u
#define NAME_BYTES 176u
#define CAPACITY ((FILE_BYTES - HEADER_BYTES) / RECORD_BYTES)
#define NO_STEP INT64_MIN

enum record_type { EMPTY = 0, API_CALL = 1, MODULE_LOADED = 2, MODULE_UNLOAD = 3, LAUNCH = 4 };
enum record_flag { EXPLAINED = 1, STACK_REQUESTED = 2, NAMES_CUT = 4 };
enum missing_stack {
    NO_STACK_FILE,    /* nobody gave us a file and a signal */
    STACK_BUSY,       /* another of our callbacks was dumping */
    SIGNAL_BLOCKED,   /* it would arrive later, with a stale stack */
    HANDLER_REPLACED, /* the signal is no longer answered by whom we expect */
    NOTHING_WRITTEN,  /* a thread without Python state */
    MISSING_REASONS
};

struct record {
    int64_t start_ns;
    _Atomic int64_t end_ns; /* 0: still open */
    int64_t stack_ns;       /* our own stack dumps, here and in nested records */
    int64_t step;
    uint64_t nbytes;
    uint64_t image_hash;
    _Atomic uint32_t type; /* written last; EMPTY: torn or given back */
    uint32_t code;         /* the back end's number of the call */
    int32_t result;
    uint32_t tid;
    uint32_t parent; /* slot + 1 of the enclosing record, 0: none */
    uint32_t flags;
    uint32_t num_kernels;
    uint32_t reserved;
    char name[NAME_BYTES];
};

struct header {
    char magic[8];
    uint32_t version;
    uint32_t pid;
    uint32_t capacity;
    uint32_t record_bytes;
    _Atomic uint64_t next;
    _Atomic uint64_t dropped;
    _Atomic uint64_t loads;
    _Atomic uint64_t launches;
    int64_t start_ns;
    _Atomic uint64_t missing[8];
    char backend[64];
};

_Static_assert(sizeof(struct record) == RECORD_BYTES, "record layout");
_Static_assert(offsetof(struct record, name) == RECORD_BYTES - NAME_BYTES, "record layout");
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "header layout");
_Static_assert(MISSING_REASONS <= 8, "header layout");

static const char MAGIC[8] = "JWDRIVER";

/* ---- CUPTI, as far as we use it ----------------------------------------- */

enum { DOMAIN_DRIVER_API = 1, DOMAIN_RESOURCE = 3 };
/* 8, MODULE_PROFILED, fires on every launch: never enable it. */
enum { RESOURCE_MODULE_LOADED = 6, RESOURCE_MODULE_UNLOAD_STARTING = 7 };
enum { SITE_ENTER = 0 };
enum { CUPTI_LIMIT_REACHED = 12, CUPTI_MULTIPLE_SUBSCRIBERS = 39 };

struct api_data {
    int site;
    const char *function_name;
    const void *params;
    void *return_value;
    const char *symbol_name;
    void *context;
    uint32_t context_uid;
    uint64_t *correlation_data;
    uint32_t correlation_id;
};

struct resource_data {
    void *context;
    void *handle;
    void *descriptor;
};

struct module_data {
    uint32_t module_id;
    size_t image_bytes;
    const char *image;
};

typedef void (*callback_fn)(void *, int, uint32_t, const void *);

static struct {
    int (*subscribe)(void **, callback_fn, void *);
    int (*unsubscribe)(void *);
    int (*enable)(uint32_t, void *, int, uint32_t);
    int (*version)(uint32_t *);
    int (*callback_name)(int, uint32_t, const char **); /* may be absent */
    int (*result_string)(int, const char **);           /* may be absent */
} cupti;

enum call_class { IGNORED = 0, CALL = 1, LOOKUP = 2, LAUNCH_CALL = 3 };

/* `number` is used where CUPTI can't name its callbacks (CUDA 12 and 13 agree). */
static const struct {
    const char *name;
    uint16_t number;
    uint8_t class;
} CALLS[] = {
    {"cuModuleLoad", 18, CALL},
    {"cuModuleLoadData", 19, CALL},
    {"cuModuleLoadDataEx", 20, CALL},
    {"cuModuleLoadFatBinary", 21, CALL},
    {"cuModuleUnload", 22, CALL},
    {"cuModuleGetFunction", 23, LOOKUP},
    {"cuLinkComplete", 365, CALL},
    {"cuLibraryLoadData", 678, CALL},
    {"cuLibraryLoadFromFile", 679, CALL},
    {"cuLibraryUnload", 680, CALL},
    {"cuLibraryGetKernel", 681, LOOKUP},
    {"cuLibraryGetModule", 682, LOOKUP},
    {"cuKernelGetFunction", 683, LOOKUP},
    {"cuFuncLoad", 742, LOOKUP},
    {"cuLaunchKernel", 307, LAUNCH_CALL},
    {"cuLaunchKernel", 442, LAUNCH_CALL},
    {"cuLaunchCooperativeKernel", 477, LAUNCH_CALL},
    {"cuLaunchCooperativeKernel", 478, LAUNCH_CALL},
    {"cuLaunchCooperativeKernelMultiDevice", 480, LAUNCH_CALL},
    {"cuLaunchKernelEx", 652, LAUNCH_CALL},
    {"cuLaunchKernelEx", 653, LAUNCH_CALL},
};
#define NUM_CALLS (sizeof CALLS / sizeof CALLS[0])
#define MAX_CODE 1200

/* ---- state ---------------------------------------------------------------- */

static pthread_mutex_t arm_mutex = PTHREAD_MUTEX_INITIALIZER; /* never in callbacks */
static char last_error[512];
static char record_path[PATH_MAX];
static char run_stem[64]; /* this process's name in an injected run's directory */
static void *subscriber;
static int subscribed;
static uint32_t cupti_version_number;
static uint8_t call_class[MAX_CODE];
static uint64_t final_counts[4]; /* of the last arm, once it is disarmed */

static _Atomic(struct header *) current_log; /* NULL: not armed */
static _Atomic uint32_t arm_epoch = 1;       /* changes with every arm and disarm */
static _Atomic uint32_t launch_epoch = 1;    /* changes with every launches(0) */
static _Atomic uint32_t in_flight;           /* callbacks running now */
static _Atomic int ready;
static _Atomic int stack_fd = -1;
static _Atomic int stack_signal;
static _Atomic(void *) stack_handler; /* who answered the signal when we were told of it */
static atomic_flag stack_lock = ATOMIC_FLAG_INIT;

/* A lookup that took this long worked: it may have loaded a function without any
 * MODULE_LOADED, so that its record is kept. Exported for the tests' sake. */
EXPORT _Atomic int64_t jw_slow_lookup_ns = 1000000;

#define LAUNCHED_NAMES 4096u
static _Atomic uint64_t launched[LAUNCHED_NAMES]; /* names' hashes since launches(1); 0: free */

#define MAX_DEPTH 8

struct frame {
    uint32_t slot; /* slot + 1; 0: it got no slot */
    uint32_t epoch;
    uint16_t is_launch;
    uint16_t nested; /* something inside it was recorded */
};

/* initial-exec: the first access on a thread must not allocate. Keep it small, it
 * lives in the loader's spare static TLS. */
static __thread struct {
    struct frame frames[MAX_DEPTH];
    int depth;
    int explained;
    int has_step;
    uint32_t tid;
    int64_t step;
} self __attribute__((tls_model("initial-exec")));

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct record *record_at(struct header *log, uint32_t slot) {
    return (struct record *)((char *)log + HEADER_BYTES) + (slot - 1);
}

/* ---- what a module holds --------------------------------------------------- */

static uint64_t hash_block(uint64_t hash, const unsigned char *p, size_t n) {
    const uint64_t prime = 1099511628211u;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * prime;
        hash ^= hash >> 32; /* a product only carries upwards */
    }
    for (; n > 0; p++, n--) hash = (hash ^ *p) * prime;
    return hash;
}

/* FNV-1a by 64-bit words, of the size and of at most 64 KiB: above that, of 16
 * blocks of 4 KiB spread from the first byte to the last. */
static uint64_t hash_image(const char *image, size_t size) {
    const size_t blocks = 16, block = 4096;
    const unsigned char *p = (const unsigned char *)image;
    uint64_t bytes = size;
    uint64_t hash = hash_block(14695981039346656037u, (const unsigned char *)&bytes, 8);
    if (size <= blocks * block) return hash_block(hash, p, size);
    size_t stride = (size - block) / (blocks - 1);
    for (size_t i = 0; i + 1 < blocks; i++) hash = hash_block(hash, p + i * stride, block);
    return hash_block(hash, p + size - block, block);
}

static uint64_t read_le(const unsigned char *p, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | p[i];
    return value;
}

struct section_names {
    const unsigned char *table; /* section headers */
    uint64_t num_sections;
    const char *strings;
    uint64_t strings_bytes;
};

/* Find the section headers and their names. 0 unless both lie wholly inside the image. */
static int find_sections(const unsigned char *p, uint64_t size, struct section_names *out) {
    const uint64_t entry = 64;
    if (size < 64 || memcmp(p, "\177ELF\2\1", 6) != 0) return 0; /* 64 bits, little endian */
    uint64_t offset = read_le(p + 40, 8), count = read_le(p + 60, 2), names = read_le(p + 62, 2);
    if (read_le(p + 58, 2) != entry || offset > size || size - offset < entry) return 0;
    const unsigned char *table = p + offset;
    if (count == 0) count = read_le(table + 32, 8);     /* more than 65,279 sections: */
    if (names == 0xffff) names = read_le(table + 40, 4); /* the ELF puts these in section 0 */
    if (count > (size - offset) / entry || names >= count) return 0;
    uint64_t strings = read_le(table + names * entry + 24, 8);
    uint64_t strings_bytes = read_le(table + names * entry + 32, 8);
    if (strings > size || strings_bytes > size - strings) return 0;
    out->table = table;
    out->num_sections = count;
    out->strings = (const char *)p + strings;
    out->strings_bytes = strings_bytes;
    return 1;
}

/* Join the first names of `.text.<kernel>` sections into r->name; each but a first
 * one that is longer than the field is whole. Anything but a cubin has 0 kernels. */
static void name_kernels(struct record *r, const char *image, size_t size) {
    static const char prefix[] = ".text.";
    const size_t prefix_bytes = sizeof prefix - 1;
    struct section_names s;
    size_t used = 0;
    if (!find_sections((const unsigned char *)image, size, &s)) return;
    for (uint64_t i = 0; i < s.num_sections; i++) {
        uint64_t at = read_le(s.table + i * 64, 4);
        if (at >= s.strings_bytes || s.strings_bytes - at <= prefix_bytes) continue;
        const char *name = s.strings + at;
        if (memcmp(name, prefix, prefix_bytes) != 0) continue;
        name += prefix_bytes;
        size_t length = strnlen(name, s.strings_bytes - at - prefix_bytes);
        if (length == 0) continue;
        r->num_kernels++;
        size_t comma = used > 0;
        if (r->flags & NAMES_CUT) continue;
        if (used + comma + length > NAME_BYTES - 1) {
            r->flags |= NAMES_CUT;
            if (used > 0) continue;
            length = NAME_BYTES - 1;
        }
        if (comma) r->name[used++] = ',';
        memcpy(r->name + used, name, length);
        used += length;
    }
}

/* ---- slots and nesting ------------------------------------------------------ */

static uint32_t claim_slot(struct header *log) {
    uint64_t next = atomic_load_explicit(&log->next, memory_order_relaxed);
    do {
        if (next >= CAPACITY) return 0;
    } while (!atomic_compare_exchange_weak(&log->next, &next, next + 1));
    return (uint32_t)next + 1;
}

/* Undo claim_slot() where nothing came after it: lookups would flood the file. */
static int give_back_slot(struct header *log, uint32_t slot) {
    struct record *r = record_at(log, slot);
    uint32_t type = atomic_load_explicit(&r->type, memory_order_relaxed);
    uint64_t newest = slot;
    if (atomic_load(&log->next) != newest) return 0;
    atomic_store_explicit(&r->type, EMPTY, memory_order_release);
    if (atomic_compare_exchange_strong(&log->next, &newest, (uint64_t)slot - 1)) return 1;
    atomic_store_explicit(&r->type, type, memory_order_release);
    return 0;
}

/* Forget frames whose exit will never come: disarmed, or launches(0), meanwhile. */
static void prune_frames(void) {
    while (self.depth > 0) {
        if (self.depth <= MAX_DEPTH) {
            struct frame *top = &self.frames[self.depth - 1];
            if (top->epoch == atomic_load(top->is_launch ? &launch_epoch : &arm_epoch)) return;
        } else if (self.frames[0].epoch == atomic_load(&arm_epoch)) {
            return;
        }
        self.depth--;
    }
}

static struct frame *top_frame(void) {
    int depth = self.depth < MAX_DEPTH ? self.depth : MAX_DEPTH;
    return depth > 0 ? &self.frames[depth - 1] : NULL;
}

static uint32_t enclosing_slot(void) {
    int depth = self.depth < MAX_DEPTH ? self.depth : MAX_DEPTH;
    while (depth-- > 0)
        if (self.frames[depth].slot) return self.frames[depth].slot;
    return 0;
}

static void mark_nested(void) {
    struct frame *top = top_frame();
    if (top) top->nested = 1;
}

static void push_frame(uint32_t slot, int is_launch) {
    if (self.depth < MAX_DEPTH) {
        struct frame *f = &self.frames[self.depth];
        f->slot = slot;
        f->epoch = atomic_load(is_launch ? &launch_epoch : &arm_epoch);
        f->is_launch = (uint16_t)is_launch;
        f->nested = 0;
    }
    self.depth++;
}

/* Leave the frame of `slot` and those above it. Returns whether something was nested. */
static int pop_frame(uint32_t slot) {
    int depth = self.depth;
    if (depth > MAX_DEPTH) { /* deeper than we keep: assume nesting */
        self.depth--;
        return 1;
    }
    while (depth > 0 && self.frames[depth - 1].slot != slot) depth--;
    if (depth == 0) return 1;
    self.depth = depth - 1;
    return self.frames[depth - 1].nested;
}

static struct record *open_record(struct header *log, uint32_t slot, int64_t start_ns,
                                  uint32_t code) {
    struct record *r = record_at(log, slot);
    memset(r, 0, sizeof *r);
    if (!self.tid) self.tid = (uint32_t)syscall(SYS_gettid);
    r->start_ns = start_ns;
    r->step = self.has_step ? self.step : NO_STEP;
    r->code = code;
    r->tid = self.tid;
    r->parent = enclosing_slot();
    r->flags = self.explained ? EXPLAINED : 0;
    return r;
}

static void copy_name(struct record *r, const char *name) {
    if (!name) return;
    size_t length = strnlen(name, NAME_BYTES);
    if (length == NAME_BYTES) {
        r->flags |= NAMES_CUT;
        length--;
    }
    memcpy(r->name, name, length);
}

static void publish(struct record *r, enum record_type type) {
    atomic_store_explicit(&r->type, type, memory_order_release);
}

/* ---- stacks ------------------------------------------------------------------- */

static void *handler_of(int number) {
    struct sigaction action;
    if (sigaction(number, NULL, &action) != 0) return NULL;
    if (action.sa_flags & SA_SIGINFO) return (void *)action.sa_sigaction;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return NULL;
    return (void *)action.sa_handler;
}

static int lock_stacks(int64_t give_up_ns) {
    while (atomic_flag_test_and_set_explicit(&stack_lock, memory_order_acquire))
        if (now_ns() >= give_up_ns) return 0;
    return 1;
}

/* Write "#<slot>\n", counted from 0, and let the signal's handler write a stack below it. */
static int write_stack(int fd, int number, uint32_t slot) {
    char line[16];
    size_t at = sizeof line;
    uint32_t value = slot - 1;
    line[--at] = '\n';
    do {
        line[--at] = (char)('0' + value % 10);
    } while (value /= 10);
    line[--at] = '#';
    ssize_t wanted = (ssize_t)(sizeof line - at);
    if (write(fd, line + at, (size_t)wanted) != wanted) return 0;
    off_t before = lseek(fd, 0, SEEK_CUR);
    raise(number);
    return before < 0 || lseek(fd, 0, SEEK_CUR) != before;
}

/* Returns the reason why there is no stack, or MISSING_REASONS where there is one. */
static int dump_stack(uint32_t slot, int64_t start_ns) {
    int fd = atomic_load(&stack_fd), number = atomic_load(&stack_signal);
    void *handler = atomic_load(&stack_handler);
    sigset_t blocked;
    if (fd < 0 || !handler) return NO_STACK_FILE;
    if (pthread_sigmask(SIG_BLOCK, NULL, &blocked) != 0 || sigismember(&blocked, number))
        return SIGNAL_BLOCKED;
    /* Another's handler is not ours to call, and the default action kills. */
    if (handler_of(number) != handler) return HANDLER_REPLACED;
    if (!lock_stacks(start_ns + 1000000)) return STACK_BUSY;
    int written = write_stack(fd, number, slot);
    atomic_flag_clear_explicit(&stack_lock, memory_order_release);
    return written ? MISSING_REASONS : NOTHING_WRITTEN;
}

static void add_stack(struct header *log, uint32_t slot) {
    int64_t start_ns = now_ns();
    int outcome = dump_stack(slot, start_ns);
    struct record *r = record_at(log, slot);
    if (outcome == MISSING_REASONS)
        r->flags |= STACK_REQUESTED;
    else
        atomic_fetch_add(&log->missing[outcome], 1);
    int64_t cost_ns = now_ns() - start_ns;
    r->stack_ns = cost_ns;
    int depth = self.depth < MAX_DEPTH ? self.depth : MAX_DEPTH;
    while (depth-- > 0) /* only this thread writes to its own open records */
        if (self.frames[depth].slot) record_at(log, self.frames[depth].slot)->stack_ns += cost_ns;
}

/* ---- launched kernels ------------------------------------------------------------ */

enum launch_name { NEW_NAME, KNOWN_NAME, NO_ROOM };

/* Enter a name, once: a kernel gets one record, or ten probes would fill the file. */
static enum launch_name enter_launched(const char *name) {
    const char *text = name ? name : "";
    uint64_t hash =
        hash_block(14695981039346656037u, (const unsigned char *)text, strlen(text));
    if (hash == 0) hash = 1;
    for (uint32_t i = 0; i < LAUNCHED_NAMES; i++) {
        _Atomic uint64_t *cell = &launched[(hash + i) % LAUNCHED_NAMES];
        uint64_t found = atomic_load_explicit(cell, memory_order_relaxed);
        if (found == 0 && atomic_compare_exchange_strong(cell, &found, hash)) return NEW_NAME;
        if (found == hash) return KNOWN_NAME;
    }
    return NO_ROOM;
}

static void forget_launched(void) {
    for (uint32_t i = 0; i < LAUNCHED_NAMES; i++)
        atomic_store_explicit(&launched[i], 0, memory_order_relaxed);
}

/* ---- callbacks ------------------------------------------------------------------ */

static void on_enter(struct header *log, uint32_t code, const struct api_data *data) {
    int class = call_class[code];
    int64_t start_ns = now_ns();
    if (class == IGNORED) return;
    prune_frames();
    enum launch_name launch = NEW_NAME;
    if (class == LAUNCH_CALL) {
        atomic_fetch_add(&log->launches, 1);
        launch = enter_launched(data->symbol_name);
    }
    uint32_t slot = launch == NEW_NAME ? claim_slot(log) : 0;
    if (slot) {
        struct record *r = open_record(log, slot, start_ns, code);
        copy_name(r, class == LAUNCH_CALL ? data->symbol_name : data->function_name);
        publish(r, class == LAUNCH_CALL ? LAUNCH : API_CALL);
    } else if (class != LOOKUP && launch != KNOWN_NAME) { /* a lookup: only with a nested load */
        atomic_fetch_add(&log->dropped, 1);
    }
    if (class != LOOKUP && launch != KNOWN_NAME) mark_nested();
    if (data->correlation_data)
        *data->correlation_data = (uint64_t)atomic_load(&arm_epoch) << 32 | slot;
    push_frame(slot, class == LAUNCH_CALL);
}

static void on_exit_call(struct header *log, uint32_t code, const struct api_data *data) {
    int64_t end_ns = now_ns();
    uint64_t correlation = data->correlation_data ? *data->correlation_data : 0;
    uint32_t slot = (uint32_t)correlation;
    if (correlation >> 32 != atomic_load(&arm_epoch) || slot > CAPACITY) return;
    int is_lookup = call_class[code] == LOOKUP;
    int nested = pop_frame(slot);
    if (!slot) {
        if (is_lookup && nested) atomic_fetch_add(&log->dropped, 1);
        return;
    }
    struct record *r = record_at(log, slot);
    if (r->code != code || r->tid != self.tid || atomic_load(&r->end_ns)) return;
    int is_idle = is_lookup && !nested && end_ns - r->start_ns < atomic_load(&jw_slow_lookup_ns);
    if (is_idle && give_back_slot(log, slot)) return;
    if (is_lookup) mark_nested();
    r->result = data->return_value ? *(const int *)data->return_value : 0;
    atomic_store_explicit(&r->end_ns, end_ns, memory_order_release);
}

static void on_module(struct header *log, uint32_t code, const struct module_data *module) {
    int is_load = code == RESOURCE_MODULE_LOADED;
    int64_t start_ns = now_ns();
    prune_frames();
    if (is_load) atomic_fetch_add(&log->loads, 1);
    mark_nested();
    uint32_t slot = claim_slot(log);
    if (!slot) {
        atomic_fetch_add(&log->dropped, 1);
        return;
    }
    struct record *r = open_record(log, slot, start_ns, code);
    atomic_store_explicit(&r->end_ns, start_ns, memory_order_relaxed); /* an instant */
    if (module && module->image) {
        r->nbytes = module->image_bytes;
        r->image_hash = hash_image(module->image, module->image_bytes);
        name_kernels(r, module->image, module->image_bytes);
    }
    publish(r, is_load ? MODULE_LOADED : MODULE_UNLOAD);
    if (is_load && !self.explained && atomic_load(&ready)) add_stack(log, slot);
}

static void on_event(void *unused, int domain, uint32_t code, const void *data) {
    (void)unused;
    int saved_errno = errno;
    atomic_fetch_add(&in_flight, 1);
    struct header *log = atomic_load(&current_log);
    if (log && data && domain == DOMAIN_DRIVER_API && code < MAX_CODE) {
        const struct api_data *api = data;
        if (api->site == SITE_ENTER)
            on_enter(log, code, api);
        else
            on_exit_call(log, code, api);
    } else if (log && data && domain == DOMAIN_RESOURCE &&
               (code == RESOURCE_MODULE_LOADED || code == RESOURCE_MODULE_UNLOAD_STARTING)) {
        on_module(log, code, ((const struct resource_data *)data)->descriptor);
    }
    atomic_fetch_sub(&in_flight, 1);
    errno = saved_errno;
}

/* ---- arming: ordinary code, under arm_mutex --------------------------------------- */

enum arm_error {
    ARMED = 0,
    CANNOT_OPEN_CUPTI = 1,
    CUPTI_SYMBOL_MISSING = 2,
    SUBSCRIBER_TAKEN = 3,
    SUBSCRIBE_FAILED = 4,
    ENABLE_FAILED = 5,
    FILE_NOT_CREATED = 6,
    FILE_HAS_NO_SPACE = 7,
    FILE_NOT_MAPPED = 8,
    NOT_ARMED = 9,
};

__attribute__((format(printf, 2, 3))) static int fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return code;
}

static const char *result_text(int result) {
    const char *text = NULL;
    if (cupti.result_string && cupti.result_string(result, &text) == 0 && text) return text;
    return "no text";
}

static int open_cupti(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return fail(CANNOT_OPEN_CUPTI, "%s", dlerror());
    struct {
        const char *name;
        void *target;
        int required;
    } symbols[] = {
        {"cuptiSubscribe", &cupti.subscribe, 1},
        {"cuptiUnsubscribe", &cupti.unsubscribe, 1},
        {"cuptiEnableCallback", &cupti.enable, 1},
        {"cuptiGetVersion", &cupti.version, 1},
        {"cuptiGetCallbackName", &cupti.callback_name, 0},
        {"cuptiGetResultString", &cupti.result_string, 0},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = dlsym(library, symbols[i].name);
        if (!address && symbols[i].required)
            return fail(CUPTI_SYMBOL_MISSING, "%s has no %s", path, symbols[i].name);
        memcpy(symbols[i].target, &address, sizeof address);
    }
    if (cupti.version(&cupti_version_number) != 0) cupti_version_number = 0;
    return ARMED;
}

/* Is `name` the call `base`, in any version (_v2) and stream flavour (_ptsz)? */
static int is_call(const char *name, const char *base) {
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0) return 0;
    const char *rest = name + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9')
        rest += 3 + strspn(rest + 3, "0123456789");
    return *rest == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

static void classify_calls(void) {
    int found = 0;
    memset(call_class, IGNORED, sizeof call_class);
    for (uint32_t code = 1; cupti.callback_name && code < MAX_CODE; code++) {
        const char *name = NULL;
        if (cupti.callback_name(DOMAIN_DRIVER_API, code, &name) != 0 || !name) continue;
        for (size_t i = 0; i < NUM_CALLS && !call_class[code]; i++)
            if (is_call(name, CALLS[i].name)) call_class[code] = CALLS[i].class;
        found |= call_class[code] == CALL;
    }
    if (found) return;
    for (size_t i = 0; i < NUM_CALLS; i++) call_class[CALLS[i].number] = CALLS[i].class;
}

static int enable_calls(void) {
    int result = cupti.enable(1, subscriber, DOMAIN_RESOURCE, RESOURCE_MODULE_LOADED);
    if (!result)
        result = cupti.enable(1, subscriber, DOMAIN_RESOURCE, RESOURCE_MODULE_UNLOAD_STARTING);
    for (uint32_t code = 1; !result && code < MAX_CODE; code++)
        if (call_class[code] == CALL || call_class[code] == LOOKUP)
            result = cupti.enable(1, subscriber, DOMAIN_DRIVER_API, code);
    if (!result) return ARMED;
    return fail(ENABLE_FAILED, "cuptiEnableCallback returned %d (%s)", result, result_text(result));
}

static int subscribe(void) {
    int result = cupti.subscribe(&subscriber, on_event, NULL);
    if (result == CUPTI_MULTIPLE_SUBSCRIBERS || result == CUPTI_LIMIT_REACHED)
        return fail(SUBSCRIBER_TAKEN,
                    "cuptiSubscribe returned %d (%s): this process already has a subscriber",
                    result, result_text(result));
    if (result)
        return fail(SUBSCRIBE_FAILED, "cuptiSubscribe returned %d (%s)", result,
                    result_text(result));
    classify_calls();
    int error = enable_calls();
    if (error)
        cupti.unsubscribe(subscriber);
    else
        subscribed = 1;
    return error;
}

/* Blocks are allocated now: a page of a sparse file can SIGBUS in a callback. */
static int create_file(const char *path, struct header **log) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return fail(FILE_NOT_CREATED, "%s: %s", path, strerror(errno));
    int error = posix_fallocate(fd, 0, FILE_BYTES);
    if (error) {
        fail(FILE_HAS_NO_SPACE, "%s: %u bytes: %s", path, FILE_BYTES, strerror(error));
        close(fd);
        unlink(path);
        return FILE_HAS_NO_SPACE;
    }
    struct header *h = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                            fd, 0);
    error = errno;
    close(fd);
    if (h == MAP_FAILED) {
        unlink(path);
        return fail(FILE_NOT_MAPPED, "%s: %s", path, strerror(error));
    }
    h->version = FORMAT_VERSION;
    h->pid = (uint32_t)getpid();
    h->capacity = CAPACITY;
    h->record_bytes = RECORD_BYTES;
    h->start_ns = now_ns();
    snprintf(h->backend, sizeof h->backend, "cupti %u", cupti_version_number);
    memcpy(h->magic, MAGIC, sizeof MAGIC); /* last: a reader believes nothing without it */
    snprintf(record_path, sizeof record_path, "%s", path);
    *log = h;
    return ARMED;
}

static void read_counts(struct header *log, uint64_t out[4]) {
    out[0] = atomic_load(&log->loads);
    out[1] = atomic_load(&log->next);
    out[2] = atomic_load(&log->dropped);
    out[3] = atomic_load(&log->launches);
}

/* Unmap once no callback can be inside; after 100 ms leave it mapped, which is harmless. */
static void retire(struct header *log) {
    int64_t give_up_ns = now_ns() + 100000000;
    while (atomic_load(&in_flight) && now_ns() < give_up_ns) sched_yield();
    read_counts(log, final_counts);
    if (!atomic_load(&in_flight)) munmap(log, FILE_BYTES);
}

/* A forked child must not write to its parent's file; it keeps the inherited
 * subscription and gets a file of its own from its own jw_arm(). */
static void in_forked_child(void) {
    struct header *log = atomic_exchange(&current_log, NULL);
    if (log) munmap(log, FILE_BYTES);
    atomic_fetch_add(&arm_epoch, 1);
    atomic_store(&in_flight, 0);
    atomic_store(&stack_fd, -1);
    atomic_store(&ready, 0);
    atomic_flag_clear(&stack_lock);
    forget_launched();
    record_path[0] = run_stem[0] = '\0';
    self.tid = 0;
    self.depth = 0;
    pthread_mutex_init(&arm_mutex, NULL);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_forked_child);
}

static void set_stack(int fd, int number) {
    if (fd < 0) return;
    atomic_store(&stack_fd, -1);
    atomic_store(&stack_signal, number);
    atomic_store(&stack_handler, handler_of(number));
    atomic_store(&stack_fd, fd);
}

static int arm(const char *cupti_path, const char *path) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct header *log = NULL;
    pthread_once(&once, watch_forks);
    if (atomic_load(&current_log)) return ARMED;
    int error = subscribed ? ARMED : open_cupti(cupti_path);
    if (error) return error;
    if ((error = create_file(path, &log))) return error;
    atomic_fetch_add(&arm_epoch, 1);
    atomic_store(&current_log, log); /* before callbacks are enabled */
    if (!subscribed && (error = subscribe())) {
        atomic_store(&current_log, NULL);
        retire(log);
        unlink(path);
        record_path[0] = '\0';
    }
    return error;
}

/* Arm once per process; a second call keeps the first record file, and takes a
 * stack file and signal if it brings them. The signal's handler must be in place.
 * stack_fd -1: no stacks. Returns an arm_error; jw_error() has its text. */
EXPORT int jw_arm(const char *cupti_path, const char *path, int fd, int number) {
    pthread_mutex_lock(&arm_mutex);
    int error = arm(cupti_path, path);
    if (!error) set_stack(fd, number);
    pthread_mutex_unlock(&arm_mutex);
    return error;
}

EXPORT int jw_disarm(void) {
    int result = 0;
    pthread_mutex_lock(&arm_mutex);
    struct header *log = atomic_exchange(&current_log, NULL);
    if (log) {
        result = cupti.unsubscribe(subscriber);
        subscribed = 0;
        atomic_store(&stack_fd, -1);
        atomic_fetch_add(&arm_epoch, 1);
        retire(log);
    }
    pthread_mutex_unlock(&arm_mutex);
    return result;
}

EXPORT void jw_error(char *buffer, size_t size) {
    pthread_mutex_lock(&arm_mutex);
    snprintf(buffer, size, "%s", last_error);
    pthread_mutex_unlock(&arm_mutex);
}

EXPORT void jw_record_path(char *buffer, size_t size) {
    pthread_mutex_lock(&arm_mutex);
    snprintf(buffer, size, "%s", record_path);
    pthread_mutex_unlock(&arm_mutex);
}

EXPORT uint32_t jw_cupti_version(void) { return cupti_version_number; }

EXPORT void jw_set_step(int64_t step) {
    self.step = step;
    self.has_step = step != NO_STEP;
}

EXPORT void jw_set_explained(int explained) { self.explained = explained; }

EXPORT void jw_set_ready(int value) { atomic_store(&ready, value); }

/* Free: nobody handles it, so that we may. */
EXPORT int jw_signal_is_free(int number) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && !(action.sa_flags & SA_SIGINFO) &&
           action.sa_handler == SIG_DFL;
}

/* While enabled every launch is counted; the first of each kernel name gets a record. */
EXPORT int jw_launches(int enable) {
    int error = ARMED;
    pthread_mutex_lock(&arm_mutex);
    if (!atomic_load(&current_log)) error = fail(NOT_ARMED, "the hook is not armed");
    if (!error && enable) forget_launched();
    for (uint32_t code = 1; !error && code < MAX_CODE; code++) {
        if (call_class[code] != LAUNCH_CALL) continue;
        int result = cupti.enable(enable != 0, subscriber, DOMAIN_DRIVER_API, code);
        if (result)
            error = fail(ENABLE_FAILED, "cuptiEnableCallback(%u) returned %d (%s)", code, result,
                         result_text(result));
    }
    if (!enable) atomic_fetch_add(&launch_epoch, 1);
    pthread_mutex_unlock(&arm_mutex);
    return error;
}

/* loads, records, drops, launches: of this arm, or of the last one. */
EXPORT void jw_counts(uint64_t out[4]) {
    pthread_mutex_lock(&arm_mutex);
    struct header *log = atomic_load(&current_log);
    if (log)
        read_counts(log, out);
    else
        memcpy(out, final_counts, sizeof final_counts);
    pthread_mutex_unlock(&arm_mutex);
}

/* ---- CUDA_INJECTION64_PATH --------------------------------------------------------- */

/* Triton's wheel carries an older CUPTI of its own, which must never be ours. */
static int find_mapped_cupti(struct dl_phdr_info *info, size_t size, void *path) {
    (void)size;
    const char *name = info->dlpi_name;
    if (!name || !strstr(name, "/libcupti.so") || strstr(name, "/triton/")) return 0;
    snprintf(path, PATH_MAX, "%s", name);
    return 1;
}

/* `driver-<pid>`, or with a time behind it where the program that this process was before an
 * exec, or an earlier process of that number, has the name. Stays the same from its first use. */
static void choose_stem(const char *directory) {
    char path[PATH_MAX];
    if (run_stem[0]) return;
    snprintf(run_stem, sizeof run_stem, "driver-%d", (int)getpid());
    for (const char *const *end = (const char *const[]){".bin", ".stacks", ".failed", NULL}; *end;
         end++) {
        struct stat found;
        snprintf(path, sizeof path, "%s/%s%s", directory, run_stem, *end);
        if (lstat(path, &found) != 0) continue;
        snprintf(run_stem, sizeof run_stem, "driver-%d-%lld", (int)getpid(), (long long)now_ns());
        return;
    }
}

/* Arm with a record file in shared memory and a link to it in the run's directory, or, where
 * that can't be, with a file there. */
static int arm_in(const char *directory, const char *cupti_path) {
    char path[PATH_MAX], name[PATH_MAX];
    snprintf(name, sizeof name, "%s/%s.bin", directory, run_stem);
    snprintf(path, sizeof path, "/dev/shm/jitwatch-%d-%lld.bin", (int)getpid(),
             (long long)now_ns());
    if (symlink(path, name) == 0) {
        int error = jw_arm(cupti_path, path, -1, 0);
        if (!error && strcmp(record_path, path) == 0) return ARMED;
        unlink(name);
        if (error != FILE_NOT_CREATED && error != FILE_HAS_NO_SPACE && error != FILE_NOT_MAPPED)
            return error;
    }
    return jw_arm(cupti_path, name, -1, 0);
}

static void leave_note(const char *directory) {
    char path[PATH_MAX], text[sizeof last_error];
    jw_error(text, sizeof text);
    snprintf(path, sizeof path, "%s/%s.failed", directory, run_stem);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return;
    if (write(fd, text, strlen(text)) < 0) unlink(path);
    close(fd);
}

static void arm_injected(const char *directory) {
    char mapped[PATH_MAX] = "";
    const char *told = getenv("JITWATCH_CUPTI");
    dl_iterate_phdr(find_mapped_cupti, mapped);
    const char *candidates[] = {mapped, told ? told : "", "libcupti.so.13", "libcupti.so.12"};
    int error = CANNOT_OPEN_CUPTI;
    choose_stem(directory);
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        if (!candidates[i][0]) continue;
        error = arm_in(directory, candidates[i]);
        if (error != CANNOT_OPEN_CUPTI) break;
    }
    if (error) leave_note(directory);
}

/* What this process is called in the run's directory, whether or not it is armed yet. */
EXPORT void jw_run_stem(const char *directory, char *buffer, size_t size) {
    choose_stem(directory);
    snprintf(buffer, size, "%s", run_stem);
}

/* Where stacks go from now on; arming may come later. */
EXPORT void jw_set_stack(int fd, int number) {
    pthread_mutex_lock(&arm_mutex);
    set_stack(fd, number);
    pthread_mutex_unlock(&arm_mutex);
}

/* The driver calls this in cuInit; whatever goes wrong must not be the program's problem. */
EXPORT int InitializeInjection(void) {
    const char *directory = getenv("JITWATCH_RECORD_DIR");
    if (directory && directory[0]) arm_injected(directory);
    return 1;
}
