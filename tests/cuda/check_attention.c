/* check_attention.c - cases of cuda/attention that depend on the device or on other calls. */
#include <string.h>
#include "../ops/attention.h"
#include "check.h"
#include "cuda/internal.h"

/*
 * Use the tiles for GPUs on which a block has at most 99 KiB of shared memory, too little for the largest tiles.  Such
 * GPUs have no wgmma, and a GPU with wgmma has no kernels without it for heads of at most 128 columns.
 */
static void small_shared(void)
{
    static const int64_t d[] = { 64, 96, 128, 256 };
    const struct meg_cuda_device device = meg_cuda_device;
    struct attn_conf c = { .s_q = 33, .b = 1, .a = 1, .left = -1 };

    meg_cuda_device.cc = 89;
    for (size_t i = 0; i < LEN(d); i++)
        for (int drops = 0; drops < 2 && (d[i] > 128 || !device.has_wgmma); drops++) {
            c.d = d[i];
            c.p = drops ? 0.2f : 0;
            attn_fwd_case(attn_of_type(c, MEG_DTYPE_BF16));
            attn_bwd_case(attn_of_type(c, MEG_DTYPE_BF16));
        }
    c.d = 500;
    c.p = 0;
    attn_fwd_case(attn_of_type(c, MEG_DTYPE_F32));
    attn_bwd_case(attn_of_type(c, MEG_DTYPE_F32));
    meg_cuda_device = device;
}

/* The dropout mask is computed for some of the heads at a time. */
static void dropout_chunks(void)
{
    /* in heads; they allow one group (although it exceeds the limit), two groups, one sequence, two sequences */
    static const int limit[] = { 1, 4, 7, 13 };
    const int64_t nbytes = meg_cuda_kept_nbytes, head = 128 * 2 * 8; /* bytes of a head's mask: 128 rows of two words */
    const struct attn_conf c = { .s_q = 70, .b = 3, .a = 6, .g = 3, .left = -1, .p = 0.2f };

    for (int n = 0; n < 4; n++) {
        meg_cuda_kept_nbytes = limit[n] * head;
        attn_fwd_case(attn_of_type(c, n % 2 ? MEG_DTYPE_F16 : MEG_DTYPE_BF16));
        attn_bwd_case(attn_of_type(c, n % 2 ? MEG_DTYPE_F16 : MEG_DTYPE_BF16));
    }
    meg_cuda_kept_nbytes = nbytes;
}

/* A sequence has the same output, bit for bit, alone and with longer and shorter sequences in separate caches. */
static void decoding_alone(void)
{
    enum { B = 3, S_K = 1100, A = 4, G = 2, D = 64 };
    static const int32_t length[B] = { S_K, S_K / 2, 0 }, start[B] = { S_K - 1, S_K / 2 - 1, 0 };
    static const int64_t offset[B] = { 0, S_K * G * D, 2 * S_K * G * D };

    for (int t = 0; t < OP_FLOATS; t++) {
        const enum meg_dtype type = (enum meg_dtype)t;
        const struct twin q = twin_random(type, B, A * D, 0), o = twin_output(type, B, A * D, 0);
        const struct twin k = twin_random(type, B * S_K, G * D, 0), v = twin_random(type, B * S_K, G * D, 0);
        const struct twin lse = twin_output(MEG_DTYPE_F32, B, A, 0);
        struct twin alone = twin_output(type, B, A * D, 0);
        const struct meg_heads keys = { k.dev.p, type, G * D, 0, D, 0 };
        struct meg_heads heads = { q.dev.p, type, B * A * D, A * D, A / G * D, D }, one_k = keys, one_v = keys;
        struct meg_heads out = heads;
        const struct meg_attn_desc all = { .s_q = 1,
                                           .s_k = S_K,
                                           .b = B,
                                           .a = A,
                                           .g = G,
                                           .d = D,
                                           .d_v = D,
                                           .s = S_K,
                                           .scale = 0.5f,
                                           .window_left = -1,
                                           .key_length = twin_bytes(length, sizeof length).dev,
                                           .query_start = twin_bytes(start, sizeof start).dev,
                                           .block_offset = twin_bytes(offset, sizeof offset).dev,
                                           .block_size = S_K,
                                           .blocks_per_seq = 1 };

        out.p = o.dev.p;
        one_v.p = v.dev.p;
        MEG_CALL(gpu, stream, attn_fwd, .desc = &all, .o = out, .lse = lse.dev.p, .q = heads, .k = one_k, .v = one_v);
        for (int64_t i = 0; i < B; i++) {
            struct meg_attn_desc desc = all;

            desc.b = 1;
            desc.s_k = length[i];
            desc.q0 = start[i];
            desc.query_start = desc.key_length = NULL;
            desc.block_offset = NULL;
            heads.p = meg_element(q.dev.p, i * A * D, type);
            out.p = meg_element(alone.dev.p, i * A * D, type);
            one_k.p = meg_element(k.dev.p, offset[i], type);
            one_v.p = meg_element(v.dev.p, offset[i], type);
            MEG_CALL(gpu, stream, attn_fwd, .desc = &desc, .o = out, .lse = lse.dev.p, .q = heads, .k = one_k,
                     .v = one_v);
        }
        twin_download(&alone);
        alone.dev = o.dev;
        expect_equal(&alone, "o");
    }
}

const struct check_case cases_attention[] = {
    { "attn: small shared memory", small_shared },
    { "attn: dropout, chunks of heads", dropout_chunks },
    { "attn_fwd: decoding does not depend on other sequences", decoding_alone },
    { 0 },
};
