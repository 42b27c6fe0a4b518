/* A CUDA driver over this process' own memory, with the real one's prototypes: what is passed wrongly
 * arrives wrongly. Memory is shared with everybody who has a handle; an event counts its records. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
typedef struct { unsigned char reserved[64]; } Handle;
typedef struct { int records; } Event;
typedef struct { uint64_t address; size_t size; } Block;

static int depth, opened, events, refuses_pins;
static Block pins[8];
static char context;
static int runs_on;
static uint64_t held;
static uint32_t held_value;
static Block blocks[64];
static int num_blocks;

int fake_depth(void) { return depth; }
int fake_opened(void) { return opened; }
int fake_events(void) { return events; }
size_t fake_pinned(void) {
  size_t found = 0;
  for (int i = 0; i < 8; i++) found += pins[i].size;
  return found;
}
void fake_run_on(void) { runs_on = 1; } /* flags are set by fake_end */
void fake_end(void) { if (held) *(volatile uint32_t *)(uintptr_t)held = held_value; }
void fake_refuse_pins(void) { refuses_pins = 1; }
void fake_reset(void) {
  opened = events = num_blocks = refuses_pins = runs_on = 0;
  memset(pins, 0, sizeof pins);
  held = 0;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }

int cuGetErrorName(int code, const char **name) {
  *name = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OTHER";
  return OK;
}

int cuDevicePrimaryCtxRetain(void **found, int device) {
  *found = &context;
  return device == 0 ? OK : INVALID_VALUE;
}

int cuCtxPushCurrent_v2(void *pushed) { depth++; return pushed == &context ? OK : INVALID_CONTEXT; }
int cuCtxPopCurrent_v2(void **popped) { depth--; *popped = &context; return OK; }

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (!depth) return INVALID_CONTEXT;
  *address = (uint64_t)(uintptr_t)malloc(size);
  blocks[num_blocks++] = (Block){*address, size};
  return OK;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  for (int i = 0; i < num_blocks; i++)
    if (blocks[i].address == address) { *base = address; *size = blocks[i].size; return OK; }
  return INVALID_VALUE;
}

int cuMemHostRegister_v2(uint64_t address, size_t size, unsigned flags) {
  if (!depth) return INVALID_CONTEXT;
  if (refuses_pins || address % 4096 || flags != 1) return INVALID_VALUE;
  for (int i = 0; i < 8; i++)
    if (!pins[i].size) { pins[i] = (Block){address, size}; return OK; }
  return INVALID_VALUE;
}

int cuMemHostUnregister(uint64_t address) {
  for (int i = 0; depth && i < 8; i++)
    if (pins[i].size && pins[i].address == address) { pins[i].size = 0; return OK; }
  return INVALID_VALUE;
}

static int is_pinned(uint64_t address) {
  for (int i = 0; i < 8; i++)
    if (address >= pins[i].address && address + 4 <= pins[i].address + pins[i].size) return 1;
  return 0;
}

int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags) {
  if (!depth || stream || flags || address % 4 || !is_pinned(address)) return INVALID_VALUE;
  if (runs_on) held = address, held_value = value;
  else *(volatile uint32_t *)(uintptr_t)address = value;
  return OK;
}

/* The wait itself is the tests': nothing of this driver takes time. */
int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags) {
  return !depth || stream || flags || address % 4 || !is_pinned(address) ? INVALID_VALUE : OK;
}

static Handle handle_of(uint64_t value) {
  Handle made;
  memset(made.reserved, 0x5a, 64);
  memcpy(made.reserved, &value, 8);
  return made;
}

static uint64_t value_of(Handle handle) {
  uint64_t value;
  for (int i = 8; i < 64; i++) if (handle.reserved[i] != 0x5a) return 0;
  memcpy(&value, handle.reserved, 8);
  return value;
}

int cuIpcGetMemHandle(Handle *handle, uint64_t address) { *handle = handle_of(address); return OK; }

int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags) {
  *address = value_of(handle);
  if (!depth || !*address || flags != 1) return INVALID_VALUE;
  opened++;
  return OK;
}

int cuIpcCloseMemHandle(uint64_t address) { opened--; return address ? OK : INVALID_VALUE; }

int cuEventCreate(Event **event, unsigned flags) {
  *event = calloc(1, sizeof(Event));
  return flags == 6 ? OK : INVALID_VALUE;
}

int cuIpcGetEventHandle(Handle *handle, Event *event) {
  *handle = handle_of((uint64_t)(uintptr_t)event);
  return OK;
}

int cuIpcOpenEventHandle(Event **event, Handle handle) {
  *event = (Event *)(uintptr_t)value_of(handle);
  if (!*event) return INVALID_VALUE;
  events++;
  return OK;
}

int cuEventDestroy_v2(Event *event) { events--; return event ? OK : INVALID_HANDLE; }
int cuEventRecord(Event *event, void *stream) { event->records++; return stream ? INVALID_HANDLE : OK; }

int cuStreamWaitEvent(void *stream, Event *event, unsigned flags) {
  return stream || flags || !event->records ? INVALID_HANDLE : OK;
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
  if (!depth || stream) return INVALID_CONTEXT;
  memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
  return OK;
}
