/* A libcupti and a CUDA driver that aren't there: enough of both for the driver hook's tests.
 *
 * The fake driver's calls (fake_*) invoke the subscriber's callback as the real one does, with
 * the layouts of cupti_callbacks.h, and only where the callback was enabled. Knobs: fake_set_*.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef void (*callback_fn)(void *, int, uint32_t, const void *);

struct callback_data { /* CUpti_CallbackData */
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

struct module_data { /* CUpti_ModuleResourceData */
    uint32_t module_id;
    size_t cubin_size;
    const char *cubin;
};

struct resource_data { /* CUpti_ResourceData */
    void *context;
    void *stream;
    void *descriptor;
};

enum { API = 1, RESOURCE = 3, MAX_CODE = 1200 };

static const struct {
    uint32_t code;
    const char *name;
} NAMES[] = {
    {18, "cuModuleLoad"},        {19, "cuModuleLoadData"},
    {20, "cuModuleLoadDataEx"},  {21, "cuModuleLoadFatBinary"},
    {22, "cuModuleUnload"},      {23, "cuModuleGetFunction"},
    {307, "cuLaunchKernel"},     {362, "cuLinkCreate"},
    {365, "cuLinkComplete"},     {442, "cuLaunchKernel_ptsz"},
    {652, "cuLaunchKernelEx"},   {678, "cuLibraryLoadData"},
    {681, "cuLibraryGetKernel"}, {683, "cuKernelGetFunction"},
    {742, "cuFuncLoad"},         {900, "cuModuleLoadData_v2"},
    {901, "cuModuleLoadDataSomethingElse"},
};

static callback_fn callback;
static void *user;
static unsigned char enabled[4][MAX_CODE];
static int names_known = 1, taken, result_code, hang_fd = -1, lookup_ms;

/* ---- libcupti ---- */

int cuptiSubscribe(void **subscriber, callback_fn function, void *data) {
    if (taken || callback) return 39;
    callback = function;
    user = data;
    *subscriber = &callback;
    return 0;
}

int cuptiUnsubscribe(void *subscriber) {
    if (subscriber != &callback) return 1;
    callback = NULL;
    memset(enabled, 0, sizeof enabled);
    return 0;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t code) {
    if (subscriber != &callback || domain < 0 || domain > 3 || code >= MAX_CODE) return 1;
    enabled[domain][code] = enable != 0;
    return 0;
}

int cuptiGetVersion(uint32_t *version) {
    *version = 130001;
    return 0;
}

int cuptiGetCallbackName(int domain, uint32_t code, const char **name) {
    for (size_t i = 0; names_known && domain == API && i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (NAMES[i].code == code) {
            *name = NAMES[i].name;
            return 0;
        }
    return 1;
}

int cuptiGetResultString(int result, const char **text) {
    *text = result == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR";
    return 0;
}

/* ---- knobs ---- */

void fake_set_taken(int value) { taken = value; }
void fake_set_names_known(int value) { names_known = value; }
void fake_set_result(int code) { result_code = code; }
/* The next load says so on `fd` and never comes back. */
void fake_set_hang(int fd) { hang_fd = fd; }
void fake_set_lookup_ms(int value) { lookup_ms = value; }
int fake_is_enabled(int domain, uint32_t code) { return enabled[domain][code]; }

/* ---- the driver ---- */

struct call {
    struct callback_data data;
    uint64_t correlation;
    int result;
    uint32_t code;
};

static void enter(struct call *call, uint32_t code, const char *name, const char *symbol) {
    memset(call, 0, sizeof *call);
    call->code = code;
    call->data.function_name = name;
    call->data.symbol_name = symbol;
    call->data.return_value = &call->result;
    call->data.correlation_data = &call->correlation;
    if (callback && enabled[API][code]) callback(user, API, code, &call->data);
}

static int leave(struct call *call) {
    call->result = result_code;
    call->data.site = 1;
    if (callback && enabled[API][call->code]) callback(user, API, call->code, &call->data);
    return call->result;
}

static void module_event(uint32_t code, const char *image, size_t size) {
    struct module_data module = {1, size, image};
    struct resource_data resource = {NULL, NULL, &module};
    if (callback && enabled[RESOURCE][code]) callback(user, RESOURCE, code, &resource);
}

static void hang_if_asked(void) {
    if (hang_fd < 0) return;
    if (write(hang_fd, "x", 1) != 1) _exit(3);
    for (;;) pause();
}

static int load_through(uint32_t code, const char *name, const char *image, size_t size) {
    struct call call;
    enter(&call, code, name, NULL);
    hang_if_asked();
    if (!result_code) module_event(6, image, size);
    return leave(&call);
}

int fake_cuModuleLoadData(const char *image, size_t size) {
    return load_through(19, "cuModuleLoadData", image, size);
}

int fake_cuModuleLoadData_v2(const char *image, size_t size) {
    return load_through(900, "cuModuleLoadData_v2", image, size);
}

void fake_load_many(int count, const char *image, size_t size) {
    for (int i = 0; i < count; i++) fake_cuModuleLoadData(image, size);
}

static pthread_barrier_t barrier;
void fake_set_barrier(unsigned parties) { pthread_barrier_init(&barrier, NULL, parties); }

/* Wait for the other threads, then load as fast as possible. */
void fake_load_together(int count, const char *image, size_t size) {
    pthread_barrier_wait(&barrier);
    fake_load_many(count, image, size);
}

int fake_cuModuleUnload(const char *image, size_t size) {
    struct call call;
    enter(&call, 22, "cuModuleUnload", NULL);
    module_event(7, image, size);
    return leave(&call);
}

int fake_cuLibraryLoadData(void) {
    struct call call;
    enter(&call, 678, "cuLibraryLoadData", NULL);
    return leave(&call); /* lazily: the module comes with the first function */
}

/* A call whose exit the subscriber never hears of. */
void fake_begin_library_load(void) {
    struct call call;
    enter(&call, 678, "cuLibraryLoadData", NULL);
}

/* A lookup; with an image it loads the library's module first. */
int fake_cuKernelGetFunction(const char *image, size_t size) {
    struct call call;
    struct timespec wait = {0, lookup_ms * 1000000L};
    enter(&call, 683, "cuKernelGetFunction", NULL);
    if (lookup_ms) nanosleep(&wait, NULL);
    if (image) module_event(6, image, size);
    return leave(&call);
}

/* A launch; with an image, of a kernel whose module is loaded lazily. */
int fake_launch(const char *name, const char *image, size_t size) {
    struct call call;
    enter(&call, 307, "cuLaunchKernel", name);
    if (image) module_event(6, image, size);
    return leave(&call);
}

void fake_launch_many(int count, const char *name) {
    for (int i = 0; i < count; i++) fake_launch(name, NULL, 0);
}

/* Calls in calls, `depth` of them, around one load. */
int fake_nested_load(int depth, const char *image, size_t size) {
    struct call call;
    if (depth == 0) return fake_cuModuleLoadData(image, size);
    enter(&call, 678, "cuLibraryLoadData", NULL);
    fake_nested_load(depth - 1, image, size);
    return leave(&call);
}

struct foreign {
    const char *image;
    size_t size;
};

static void *load_there(void *argument) {
    struct foreign *f = argument;
    fake_cuModuleLoadData(f->image, f->size);
    return NULL;
}

/* A load on a thread that Python doesn't know. */
int fake_foreign_load(const char *image, size_t size) {
    struct foreign argument = {image, size};
    pthread_t thread;
    int error = pthread_create(&thread, NULL, load_there, &argument);
    return error ? error : pthread_join(thread, NULL);
}

/* Load a copy of the image that ends (or starts) at a page nobody may touch. */
int fake_guarded_load(const char *image, size_t size, int guard_at_end) {
    size_t page = 4096, room = (size + page - 1) / page * page;
    char *p = mmap(NULL, room + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    if (p == MAP_FAILED) return -1;
    mprotect(p, page, PROT_NONE);
    mprotect(p + page + room, page, PROT_NONE);
    char *at = guard_at_end ? p + page + room - size : p + page;
    memcpy(at, image, size);
    int result = fake_cuModuleLoadData(at, size);
    munmap(p, room + 2 * page);
    return result;
}

static int started_fd, release_fd;

static void blocking_handler(int number) {
    char byte;
    (void)number;
    if (write(started_fd, "x", 1) != 1 || read(release_fd, &byte, 1) != 1) _exit(4);
}

/* A handler that says on `started` that it runs, and returns when `release` has a byte. */
int fake_install_blocking_handler(int number, int started, int release) {
    struct sigaction action = {.sa_handler = blocking_handler};
    started_fd = started;
    release_fd = release;
    return sigaction(number, &action, NULL);
}

/* Load what CUDA_INJECTION64_PATH names and initialize it, once, as the driver does. */
int fake_cuInit(void) {
    static int done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (done++ || !path) return 0;
    void *library = dlopen(path, RTLD_NOW);
    int (*initialize)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : 0;
    return initialize ? initialize() - 1 : 999;
}
