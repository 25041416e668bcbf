/* Preloaded: a clock that is off by SKEW_S seconds, for a process and for all that it starts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  const char *by = getenv("SKEW_S");
  if (!failed && id == CLOCK_REALTIME && by) now->tv_sec += atol(by);
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
