/* ckpt/convert.h: sizes of shards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "ckpt/convert.h"

static void sizes_have_decimal_and_binary_units(void **state)
{
    static const struct {
        const char *size;
        int64_t nbytes;
    } sizes[] = {
        { "0", 0 },
        { "7", 7 },
        { "7KB", 7000 },
        { "7MB", 7000000 },
        { "7GB", 7000000000 },
        { "7KiB", 7168 },
        { "7MiB", 7340032 },
        { "7GiB", 7516192768 },
        { "7kb", 7000 },
        { "7gib", 7516192768 },
        { "999999999999999", 999999999999999 },
        { "", -1 },
        { "KB", -1 },
        { "-7", -1 },
        { "7 KB", -1 },
        { "7K", -1 },
        { "7B", -1 },
        { "7TB", -1 },
        { "7KBs", -1 },
        { "1.5GB", -1 },
        { "1000000000000000", -1 },
        { "999999999999999GiB", -1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (meg_convert_shard_nbytes(sizes[i].size) != sizes[i].nbytes)
            fail_msg("'%s' is %lld bytes", sizes[i].size, (long long)meg_convert_shard_nbytes(sizes[i].size));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(sizes_have_decimal_and_binary_units) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
