/* The least that a launch can cost: vfork, execve, wait4. Prints the nanoseconds of each of N launches. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int count, char **arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: floor N PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  int runs = atoi(arguments[1]);
  long long *took = calloc(runs, sizeof *took);
  if (!took) return 1;
  for (int run = 0; run < runs; run++) {
    long long start = now();
    pid_t child = vfork();
    if (child == 0) {
      execve(arguments[2], arguments + 2, environ);
      _exit(127);
    }
    int status;
    if (child < 0 || wait4(child, &status, 0, NULL) != child || status != 0) return 1;
    took[run] = now() - start;
  }
  for (int run = 0; run < runs; run++) printf("%lld\n", took[run]);
  return 0;
}
