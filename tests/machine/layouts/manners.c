/* What a program may rely on, with a layout as without one. It says what is not so, and ends with 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
static int wrong;
#define HOLDS(fact) ((fact) ? (void)0 : (void)(wrong = 1, fprintf(stderr, "line %d: not so: %s\n", __LINE__, #fact)))

static char *map(void *at, size_t bytes, int flags)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static int is_zero(const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 512)
        if (from[at])
            return 0;
    return 1;
}

/* Maps, writes and gives back, in many threads or in one; its mark where all was as it should be. */
static void *churn(void *mark)
{
    for (int turn = 0; turn < 30; turn++) {
        char *piece = map(NULL, MIB, turn % 2 ? MAP_NORESERVE : 0);
        if (piece == MAP_FAILED || !is_zero(piece, MIB))
            return NULL;
        memset(piece, (int)(long)mark, MIB);
        void *kept = malloc(3000);
        memset(kept, (int)(long)mark, 3000);
        for (size_t at = 0; at < MIB; at += 512)
            if (piece[at] != (char)(long)mark)
                return NULL;
        free(kept);
        if (munmap(piece, MIB))
            return NULL;
    }
    return mark;
}

static int child(void (*does)(void))
{
    int status;
    pid_t pid = fork();
    if (!pid) {
        does();
        _exit(wrong);
    }
    return waitpid(pid, &status, 0) == pid ? status : -1;
}

static void uses_memory(void)
{
    HOLDS(churn((void *)7L));
    char *piece = malloc(5 * MIB);
    HOLDS(piece != NULL);
    memset(piece, 1, 5 * MIB);
    free(piece);
}

static void maps(void)
{
    char *one = map(NULL, 4 * MIB, 0), *other = map(NULL, 4 * MIB, 0);
    HOLDS(one != MAP_FAILED && other != MAP_FAILED && one != other);
    memset(one, 1, 4 * MIB);
    HOLDS(is_zero(other, 4 * MIB));
    /* A part of it goes, is protected, is given back, and comes again at its place. */
    HOLDS(!munmap(one + MIB, MIB));
    HOLDS(map(one + MIB, MIB, MAP_FIXED) == one + MIB && is_zero(one + MIB, MIB) && one[0] == 1);
    HOLDS(!mprotect(one + 2 * MIB, 4096, PROT_NONE) && !mprotect(one + 2 * MIB, 4096, PROT_READ | PROT_WRITE));
    HOLDS(!madvise(one + 3 * MIB, MIB, MADV_DONTNEED) && is_zero(one + 3 * MIB, MIB) && one[2 * MIB] == 1);
    char *grown = mremap(other, 4 * MIB, 9 * MIB, MREMAP_MAYMOVE);
    HOLDS(grown != MAP_FAILED && is_zero(grown, 9 * MIB));
    memset(grown, 2, 9 * MIB);
    HOLDS(!munmap(grown, 9 * MIB) && !munmap(one, 4 * MIB));
    /* Odd lengths and small ones. */
    char *odd = map(NULL, 700001, 0);
    HOLDS(odd != MAP_FAILED && ((unsigned long)odd & 4095) == 0);
    odd[700000] = 1;
    HOLDS(!munmap(odd, 700001));
    char *small = map(NULL, 100, 0);
    HOLDS(small != MAP_FAILED && is_zero(small, 100));
    /* What is refused is refused with its reason, and what succeeds leaves errno alone. */
    errno = 0;
    HOLDS(map(NULL, 0, 0) == MAP_FAILED && errno == EINVAL);
    HOLDS(map(NULL, 1UL << 60, 0) == MAP_FAILED && errno == ENOMEM);
    errno = 77;
    char *fine = map(NULL, MIB, 0);
    HOLDS(fine != MAP_FAILED && errno == 77);
    char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HOLDS(shared != MAP_FAILED);
    int status, pid = fork();
    if (!pid) {
        shared[0] = fine[0] = 9;
        _exit(0);
    }
    waitpid(pid, &status, 0);
    HOLDS(shared[0] == 9 && fine[0] == 0);
}

static void heaps(void)
{
    /* sbrk of one's own, beside malloc's. */
    char *end = sbrk(3 * MIB);
    HOLDS(end != (char *)-1);
    memset(end, 5, 3 * MIB);
    char *pieces[100];
    for (int each = 0; each < 100; each++) {
        pieces[each] = malloc(300000);
        HOLDS(pieces[each] != NULL);
        memset(pieces[each], 6, 300000);
    }
    HOLDS(end[0] == 5 && end[3 * MIB - 1] == 5);
    for (int each = 0; each < 100; each++)
        free(pieces[each]);
    void *aligned = NULL;
    HOLDS(!posix_memalign(&aligned, 2 * MIB, 2 * MIB) && ((unsigned long)aligned & (2 * MIB - 1)) == 0);
    free(aligned);
    char *much = malloc(100 * MIB);
    HOLDS(much != NULL);
    much[0] = much[100 * MIB - 1] = 1;
    char *more = realloc(much, 150 * MIB);
    HOLDS(more && more[0] == 1 && more[100 * MIB - 1] == 1);
    free(more);
    errno = 0;
    HOLDS(malloc(1UL << 62) == NULL && errno == ENOMEM);
    char *zero = calloc(1000, 1000);
    HOLDS(zero && is_zero(zero, 1000000));
    free(zero);
}

int main(void)
{
    HOLDS(errno == 0);
    heaps();
    maps();
    pthread_t threads[4];
    for (long each = 0; each < 4; each++)
        HOLDS(!pthread_create(&threads[each], NULL, churn, (void *)(each + 1)));
    /* Children are made while others map. */
    for (int turn = 0; turn < 20; turn++)
        HOLDS(child(uses_memory) == 0);
    for (long each = 0; each < 4; each++) {
        void *mark;
        HOLDS(!pthread_join(threads[each], &mark) && mark == (void *)(each + 1));
    }
    HOLDS(system("test \"$(echo child)\" = child") == 0);
    if (!wrong)
        puts("fine");
    return wrong;
}
