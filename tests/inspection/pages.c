/* A program that has its memory as it is told, says "ready", and stays until it is ended. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SIZE (64UL << 20)
#define PMD (2UL << 20)
#define IS(word) (strcmp(argv[1], word) == 0)

static char *fresh(size_t size)
{
    char *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        exit(3);
    return found;
}

/* SIZE bytes at a boundary of the PMD, with nothing that could be joined to them. */
static char *aligned(void)
{
    char *all = mmap(NULL, SIZE + 2 * PMD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *start = (char *)(((uintptr_t)all + 4096 + PMD - 1) & ~(PMD - 1));
    if (all == MAP_FAILED || mprotect(start, SIZE, PROT_READ | PROT_WRITE))
        exit(3);
    return start;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    if (IS("malloc")) {
        for (size_t got = 0; got < SIZE; got += 100000)
            memset(malloc(100000), 1, 100000);
    } else if (IS("many")) {
        size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 60000;
        char *all = fresh(count * 4096);
        madvise(all, count * 4096, MADV_NOHUGEPAGE);
        memset(all, 1, count * 4096);
        for (size_t page = 0; page < count; page += 2)
            if (mprotect(all + page * 4096, 4096, PROT_READ))
                return 4;
    } else if (IS("churn")) {
        puts("ready");
        fflush(stdout);
        for (;;) {
            char *one = fresh(16UL << 20);
            memset(one, 1, 16UL << 20);
            munmap(one, 16UL << 20);
        }
    } else if (!IS("idle")) {
        if (IS("off") && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
            return 4;
        if (IS("except-advised") && prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0))
            return 5;
        char *all = aligned();
        if (IS("first") || IS("off"))
            madvise(all, SIZE, MADV_HUGEPAGE);
        if (IS("against"))
            madvise(all, SIZE, MADV_NOHUGEPAGE);
        memset(all, 1, SIZE);
        if (IS("after"))
            madvise(all, SIZE, MADV_HUGEPAGE);
        if (IS("fork") && fork() == 0)
            memset(all, 2, SIZE);
        if (IS("shared") && fork() == 0)
            pause();
    }
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
