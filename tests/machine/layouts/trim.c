/* trim MIB: a heap of so many MiB, given back to malloc and by it to the system as far as it will; then as much again
   in small pieces, and it waits, to be looked at. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words)
{
    long mib = count > 1 ? atol(words[1]) : 64;
    char **held = malloc(mib * sizeof *held);
    for (long at = 0; at < mib; at++)
        memset(held[at] = malloc(1 << 20), 1, 1 << 20);
    for (long at = 0; at < mib; at++)
        free(held[at]);
    malloc_trim(0);
    for (long left = mib * 1024; left > 0; left--) {
        char *piece = malloc(1008);
        if (!piece)
            abort();
        memset(piece, 1, 1008);
    }
    malloc_trim(0);
    puts("ready");
    fflush(stdout);
    return getchar() == 'x';
}
