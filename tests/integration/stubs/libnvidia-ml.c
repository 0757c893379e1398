/* A stand-in for NVML: STUB_DRIVER is the driver's version, STUB_GPUS the brand of each GPU, or
 * "hang" for a driver that does not answer. STUB_CAPABILITIES has the compute capability of each GPU,
 * such as "9.0,12.0"; without it the capabilities are not known. STUB_DELAY is its slowness in seconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *gpus(void) { return getenv("STUB_GPUS") ? getenv("STUB_GPUS") : ""; }

/* A word of a list with commas; NULL if the list is shorter. */
static const char *word(const char *text, unsigned index) {
    for (; index && text; index--) text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL;
    return text && *text ? text : NULL;
}

static int brand(unsigned index) {
    const char *text = word(gpus(), index);
    return text ? atoi(text) : -1;
}

int nvmlInit_v2(void) {
    if (!strcmp(gpus(), "hang")) sleep(600);
    if (getenv("STUB_DELAY")) usleep((unsigned)(atof(getenv("STUB_DELAY")) * 1e6));
    return 0;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "%s", getenv("STUB_DRIVER") ? getenv("STUB_DRIVER") : "");
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 0;
    while (brand(*count) >= 0) (*count)++;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(unsigned long)(index + 1);
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "GPU %lu", (unsigned long)device - 1);
    return 0;
}
int nvmlDeviceGetBrand(void *device, unsigned *found) {
    *found = (unsigned)brand((unsigned)((unsigned long)device - 1));
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    const char *text = word(getenv("STUB_CAPABILITIES"), (unsigned)((unsigned long)device - 1));
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? 0 : 3; /* not supported */
}
