/* A program at a fixed place that passes malloc on by its address, which then is one of the program's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *(*const allocate)(size_t) = malloc;

int main(void)
{
    char *piece = allocate(3000000);
    if (!piece)
        return 1;
    memset(piece, 7, 3000000);
    puts("fine");
    return 0;
}
