/* Calls an exported kernel: NAME is its name, THREADS how many threads it gets. Arguments: sizes, then a file for each
   buffer, which is read before the call and written after it. */
#include HEADER

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define JOIN(a, b) a##b
#define WITH(a, b) JOIN(a, b)
#define COUNT WITH(NAME, _BUFFERS)

typedef struct job {
  void (*task)(void *argument, int32_t worker);
  void *argument;
  int32_t worker;
} job;

static void *work(void *given) {
  job *mine = given;
  mine->task(mine->argument, mine->worker);
  return NULL;
}

static void run(void *context, void (*task)(void *argument, int32_t worker), void *argument, int32_t workers) {
  pthread_t threads[64];
  job jobs[64];
  ++*(int *)context;
  for (int32_t n = 0; n < workers; ++n) {
    jobs[n] = (job){task, argument, n};
    if (pthread_create(&threads[n], NULL, work, &jobs[n])) abort();
  }
  for (int32_t n = 0; n < workers; ++n) pthread_join(threads[n], NULL);
}

static void *aligned_bytes(int64_t count) {
  return aligned_alloc(WITH(NAME, _ALIGNMENT), (size_t)(count / WITH(NAME, _ALIGNMENT) + 1) * WITH(NAME, _ALIGNMENT));
}

#if defined(__x86_64__) && defined(__linux__)
long syscall(long number, ...);

static void ask_for_tile_registers(void) {  /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) */
  syscall(158, 0x1023, 18);
}
#else
static void ask_for_tile_registers(void) {}
#endif

int main(int argc, char **argv) {
  int64_t sizes[16];
  void *buffers[COUNT];
  long lengths[COUNT];
  int launches = 0;
  ask_for_tile_registers();
  int given = argc - 1 - COUNT;
  for (int n = 0; n < given; ++n) sizes[n] = atoll(argv[1 + n]);
  for (int n = 0; n < COUNT; ++n) {
    FILE *file = fopen(argv[1 + given + n], "rb");
    if (!file || fseek(file, 0, SEEK_END)) return 100;
    lengths[n] = ftell(file);
    rewind(file);
    buffers[n] = malloc((size_t)lengths[n]);
    if (fread(buffers[n], 1, (size_t)lengths[n], file) != (size_t)lengths[n]) return 101;
    fclose(file);
  }
  const tw_pool threads = {&launches, run, THREADS};
  const tw_pool *pool = THREADS > 1 ? &threads : NULL;
  void *kept = aligned_bytes(WITH(NAME, _kept_bytes)(sizes));
  void *workspace = aligned_bytes(WITH(NAME, _workspace_bytes)(sizes, THREADS));
  int32_t code = WITH(NAME, _bind)(buffers, sizes, kept, workspace, pool);
  if (code == TW_OK) code = NAME(buffers, sizes, kept, workspace, pool);
  if (code != TW_OK) {
    fprintf(stderr, "%d %d: %s\n", (int)TW_ERROR_KIND(code), (int)TW_ERROR_PLACE(code), WITH(NAME, _message)(code));
    return 1;
  }
  for (int n = 0; n < COUNT; ++n) {
    FILE *file = fopen(argv[1 + given + n], "wb");
    if (!file || fwrite(buffers[n], 1, (size_t)lengths[n], file) != (size_t)lengths[n] || fclose(file)) return 102;
    free(buffers[n]);
  }
  free(kept);
  free(workspace);
  printf("%d\n", launches);
  return 0;
}
