/* A stand-in for libcuda: answers what the environment variable ANSWER says, "INIT CONTEXT MEMORY"
 * as CUDA errors, or "hang"; after STUB_DELAY seconds. The note, if there is one, is a real ELF note section.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef NOTE
__attribute__((used, section(".note.cuda.fwd_compatibility"))) static const char note[] = NOTE;
#endif

static char memory[1 << 16];

static int answer(int index) {
    int codes[3] = {0, 0, 0};
    const char *text = getenv(ANSWER);
    if (text && !strcmp(text, "hang")) sleep(600);
    if (text) sscanf(text, "%d %d %d", &codes[0], &codes[1], &codes[2]);
    return codes[index];
}

int cuInit(unsigned flags) {
    (void)flags;
    if (getenv("STUB_DELAY")) usleep((unsigned)(atof(getenv("STUB_DELAY")) * 1e6));
    return answer(0);
}
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = memory; return answer(1); }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuMemAlloc_v2(unsigned long long *where, size_t size) {
    (void)size;
    *where = (unsigned long long)memory;
    return answer(2);
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) {
    memcpy((void *)to, from, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) {
    memcpy(to, (void *)from, size);
    return 0;
}
