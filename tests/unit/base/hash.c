/* MD5 and XXH3: test vectors from other implementations, and hashing in blocks. */
#include "child.h"

#include "base/hash.h"

static void md5_of_rfc_1321(void **state)
{
    static const char *const want[][2] = {
        { "", "d41d8cd98f00b204e9800998ecf8427e" },
        { "a", "0cc175b9c0f1b6a831c399e269772661" },
        { "abc", "900150983cd24fb0d6963f7d28e17f72" },
        { "message digest", "f96b697d7cb7938d525a2f31aaf161d0" },
        { "abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b" },
        { "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f" },
        { "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
          "57edf4a22be3c955ac49da2e2107b67a" },
    };
    char hex[33];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof want / sizeof *want; i++) {
        meg_md5_hex(hex, want[i][0], strlen(want[i][0]));
        assert_string_equal(hex, want[i][1]);
    }
}

/* Test lengths around those at which the padding needs one more block.  Digests are from Python's hashlib. */
static void md5_at_the_edges_of_a_block(void **state)
{
    static const struct {
        size_t n;
        const char *hex;
    } want[] = {
        { 55, "04364420e25c512fd958a70738aa8f72" },  { 56, "668a72d5ba17f08e62dabcafad6db14b" },
        { 57, "693037871c4a9d3d8685018905cb530a" },  { 63, "7dc2ca208106a2f703567bdff99d8981" },
        { 64, "c1bb4f81d892b2d57947682aeb252456" },  { 65, "1bc932052302d074bdec39795fe00cf6" },
        { 119, "ab347a5f68c8a443cfcddc633f12c24f" }, { 120, "fb98667f98096de92620b64f46e1c5b5" },
        { 128, "d69cb61a6ee87200676eb0d4b90edbcb" }, { 256, "c7a139a2b8e92164276f778917ba10b9" },
    };
    char hex[33], x[256];
    size_t i;

    (void)state;
    memset(x, 'x', sizeof x);
    for (i = 0; i < sizeof want / sizeof *want; i++) {
        meg_md5_hex(hex, x, want[i].n);
        assert_string_equal(hex, want[i].hex);
    }
}

/* Hashes from the xxHash manual (empty input) and from Python's xxhash. */
static void xxh3_of_published_vectors(void **state)
{
    char hex[33];

    (void)state;
    assert_int_equal(meg_xxh3_64("", 0), 0x2d06800538d394c2);
    meg_xxh3_128_hex(hex, "", 0);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    assert_int_equal(meg_xxh3_64("word_embeddings.weight", 22), 0xa036774d961ee6ea);
    meg_xxh3_128_hex(hex, "word_embeddings.weight", 22);
    assert_string_equal(hex, "729eb68130b940434e93bc54416d8d98");
}

static void xxh3_of_blocks_is_that_of_all_bytes(void **state)
{
    char x[3000], want[33], hex[33];

    (void)state;
    for (size_t i = 0; i < sizeof x; i++)
        x[i] = (char)(7 * i * i);
    meg_xxh3_128_hex(want, x, sizeof x);
    for (size_t block = 1; block <= sizeof x; block += 499) {
        struct meg_xxh3_128 *state128 = meg_xxh3_128_begin();

        for (size_t i = 0; i < sizeof x; i += block)
            meg_xxh3_128_add(state128, x + i, i + block < sizeof x ? block : sizeof x - i);
        meg_xxh3_128_end(state128, hex);
        assert_string_equal(hex, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(md5_of_rfc_1321),
        cmocka_unit_test(md5_at_the_edges_of_a_block),
        cmocka_unit_test(xxh3_of_published_vectors),
        cmocka_unit_test(xxh3_of_blocks_is_that_of_all_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
