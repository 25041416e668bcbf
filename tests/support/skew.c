/* Preloaded: a clock that is off, for a process and for all that it starts: by SKEW_S seconds, or
   by the 8 bytes of SKEW_FILE, which may change while it runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static long fixed;

static volatile long *skew(void) {
  static volatile long *found;
  if (found) return found;
  const char *by = getenv("SKEW_S"), *file = getenv("SKEW_FILE");
  if (by) fixed = atol(by);
  int opened = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
  void *mapped = opened < 0 ? MAP_FAILED : mmap(0, sizeof fixed, PROT_READ, MAP_SHARED, opened, 0);
  return found = mapped == MAP_FAILED ? &fixed : mapped;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  if (!failed && id == CLOCK_REALTIME) now->tv_sec += *skew();
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  (void)zone;
  struct timespec found;
  int failed = clock_gettime(CLOCK_REALTIME, &found);
  if (!failed && now) *now = (struct timeval){found.tv_sec, found.tv_nsec / 1000};
  return failed;
}

time_t time(time_t *into) {
  struct timespec found = {0};
  clock_gettime(CLOCK_REALTIME, &found);
  if (into) *into = found.tv_sec;
  return found.tv_sec;
}
