/* A process with so many bytes in a layout, for others to look at: says "ready" and stays until its stdin ends.

   base     base pages                       pmd      pages of the PMD size
   split    pages of the PMD size, which base entries map
   mixed    every other block of the PMD size in one page
   churn    base pages; maps, touches and unmaps memory of its own meanwhile, and says at the end how many times, and
            how long the longest and the 99.9th percentile of a turn took (ns) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PMD (2UL << 20)
#define MOST (1UL << 24)

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static int less(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t size = strtoull(argv[2], NULL, 10);
    char *all = mmap(NULL, size + PMD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return 3;
    char *start = (char *)(((uintptr_t)all + PMD - 1) & ~(PMD - 1));
    int base = !strcmp(argv[1], "base") || !strcmp(argv[1], "churn");
    madvise(start, size, base ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    for (size_t at = 0; at < size; at += PMD) {
        if (!strcmp(argv[1], "mixed") && at / PMD % 2)
            madvise(start + at, PMD, MADV_NOHUGEPAGE);
        memset(start + at, 1, PMD);
        if (!strcmp(argv[1], "split")) /* what has another protection has entries of its own: the page stays whole */
            mprotect(start + at, 4096, PROT_READ);
    }
    if (!strcmp(argv[1], "split"))
        mprotect(start, size, PROT_READ | PROT_WRITE);
    puts("ready");
    fflush(stdout);
    if (strcmp(argv[1], "churn")) {
        while (getchar() != EOF)
            ;
        return 0;
    }
    uint32_t *took = mmap(NULL, MOST * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t turns = 0;
    char gone;
    fcntl(0, F_SETFL, O_NONBLOCK);
    while (turns < MOST && read(0, &gone, 1) != 0) {
        uint64_t began = now();
        char *one = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (one == MAP_FAILED)
            return 4;
        one[0] = one[8192] = 1;
        munmap(one, 16384);
        took[turns++] = (uint32_t)(now() - began);
    }
    qsort(took, turns, 4, less);
    printf("%zu %u %u\n", turns, took[turns - 1], took[turns - 1 - turns / 1000]);
    return 0;
}
