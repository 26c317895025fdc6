/* A program that has memory of every kind, says "ready", and stays until it is ended. */
#define _GNU_SOURCE
#include <alloca.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB 1024UL
#define MIB (1024 * KIB)
#define PMD (2 * MIB)

/* So many bytes, which begin `beside` bytes after a boundary of the PMD, with nothing that could be joined to them. */
static char *at(size_t size, size_t beside)
{
    char *all = mmap(NULL, size + 3 * PMD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *start = (char *)((((uintptr_t)all + PMD) & ~(PMD - 1)) + beside);
    if (all == MAP_FAILED || mprotect(start, size, PROT_READ | PROT_WRITE))
        exit(3);
    return start;
}

static char *filled(size_t size, size_t beside, int advice)
{
    char *start = at(size, beside);
    madvise(start, size, advice);
    memset(start, 1, size);
    return start;
}

int main(int argc, char **argv)
{
    volatile char sum = 0;
    for (size_t got = 0; got < 6 * MIB; got += 1000)
        memset(malloc(1000), 1, 1000);
    filled(5 * MIB, 8 * KIB, MADV_NOHUGEPAGE);
    filled(4 * PMD, 0, MADV_HUGEPAGE);
    filled(PMD + 600 * KIB, 1 * MIB, MADV_HUGEPAGE);     /* no room for the PMD's size: smaller ones, if they are on */
    for (int number = 0; number < 20; number++)
        filled(48 * KIB, 16 * KIB, MADV_HUGEPAGE);
    char *split = filled(2 * PMD, 0, MADV_HUGEPAGE);     /* whole, by base entries */
    mprotect(split + 4096, 4096, PROT_READ);
    mprotect(split + 4096, 4096, PROT_READ | PROT_WRITE);
    char *part = filled(2 * PMD, 0, MADV_HUGEPAGE);      /* in part */
    munmap(part + 40 * KIB, 60 * KIB);
    madvise(part + PMD + 4096, 8192, MADV_DONTNEED);
    char *moved = filled(PMD, 0, MADV_HUGEPAGE);         /* off its alignment */
    char *place = at(PMD, 12 * KIB);
    if (mremap(moved, PMD, PMD, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED)
        return 4;
    char *small = filled(512 * KIB, 64 * KIB, MADV_HUGEPAGE);
    place = at(512 * KIB, 20 * KIB);
    if (mremap(small, 512 * KIB, 512 * KIB, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED)
        return 4;
    char *zero = at(PMD, 4096);                          /* the zero page, and one that was written */
    for (size_t page = 0; page < PMD; page += 4096)
        sum += zero[page];
    zero[40960] = 1;
    char *huge = at(2 * PMD, 0);                         /* the huge zero page, where it is used */
    madvise(huge, 2 * PMD, MADV_HUGEPAGE);
    sum += huge[0] + huge[PMD];
    char *pool = mmap(NULL, PMD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (pool != MAP_FAILED)
        memset(pool, 1, PMD);
    for (int advised = 0; advised < 2; advised++) {      /* shared memory, mapped twice */
        int memory = memfd_create("hw-kinds", 0);
        if (memory < 0 || ftruncate(memory, 3 * PMD))
            return 5;
        char *shared = at(3 * PMD, 0);
        shared = mmap(shared, 3 * PMD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0);
        if (advised)
            madvise(shared, 3 * PMD, MADV_HUGEPAGE);
        memset(shared, 1, 2 * PMD + 20 * KIB);
        char *again = mmap(NULL, PMD, PROT_READ, MAP_SHARED, memory, 0);
        for (size_t page = 0; page < PMD / 2; page += 4096)
            sum += again[page];
    }
    int file = open(argc > 1 ? argv[1] : "/proc/self/exe", O_RDONLY);
    char *mapped = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    for (size_t page = 0; page < 4 * MIB && argc > 1; page += 4096)
        sum += mapped[page];
    if (argc > 1)
        mapped[8192] = 1;
    memset(alloca(200 * KIB), 1, 200 * KIB);
    mprotect(filled(1 * MIB, 0, MADV_NOHUGEPAGE), 1 * MIB, PROT_NONE);
    puts("ready");
    fflush(stdout);
    pause();
    return sum;
}
