/* A heap of so many MiB in allocations of 1008 bytes, each written to; then it waits, to be looked at.
   heap MIB [THREADS]: with threads each of them has as much. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long mib;

static void *fill(void *unused)
{
    for (long left = mib * 1024; left > 0; left--) {
        char *piece = malloc(1008);
        if (!piece)
            abort();
        memset(piece, 1, 1008);
    }
    return unused;
}

int main(int count, char **words)
{
    pthread_t threads[16];
    int many = count > 2 ? atoi(words[2]) : 0;
    mib = atol(words[1]);
    for (int each = 0; each < many; each++)
        if (pthread_create(&threads[each], NULL, fill, NULL))
            abort();
    if (!many)
        fill(NULL);
    for (int each = 0; each < many; each++)
        pthread_join(threads[each], NULL);
    puts("ready");
    fflush(stdout);
    return getchar() == 'x';
}
