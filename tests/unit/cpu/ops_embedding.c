/* ops_embedding.c - embeddings forward and backward against plain loops; shards of the vocabulary; dropout. */
#include "ops.h"

enum { N = 26, B = 2, H = 150, V = 11, P = 20 };

struct embed {
    struct meg_mat word, pos, x, dx, kept, dword, dpos;
    int32_t token[N], position[N];
    int64_t sample[B];
    struct meg_drop drop;
};

/* Create a problem with residual stream and parameters in the types of t and parameter gradients in type grad. */
static struct embed embed_new(float p, struct mix t, enum meg_dtype grad)
{
    struct embed e = { rnd_mat_of(t.branch, V, H, 1),
                       rnd_mat_of(t.branch, P, H, 2),
                       rnd_mat_of(t.stream, N, H, 0),
                       rnd_mat_of(t.stream, N, H, 3),
                       rnd_mat_of(t.stream, N, H, 3),
                       rnd_mat_of(grad, V, H, 0),
                       rnd_mat_of(grad, P, H, 0),
                       { 0 },
                       { 0 },
                       { 10, 20 },
                       { p, 5, 0, MEG_DROP_EMBED, 9, 2, B, NULL, NULL } };
    for (int i = 0; i < N; i++) {
        e.token[i] = i * 7 % V;
        e.position[i] = i / B % P;
    }
    return e;
}

static void embed_free(struct embed *e)
{
    free(e->word.p);
    free(e->pos.p);
    free(e->x.p);
    free(e->dx.p);
    free(e->kept.p);
    free(e->dword.p);
    free(e->dpos.p);
}

static void embed_of(const struct meg_ops *ops, struct embed *e, bool accumulate)
{
    const double dword0 = accumulate ? 1.0 : 0.0, dpos0 = accumulate ? -1.0 : 0.0;
    const enum meg_dtype stream = e->x.dtype, grad = e->dword.dtype;
    uint64_t h[2] = { 0, 0 };
    double dword[V][H], dpos[P][H];
    e->drop.sample = e->sample;
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        fill_mat(e->dword, accumulate ? (float)dword0 : NAN);
        fill_mat(e->dpos, accumulate ? (float)dpos0 : NAN);
        memcpy(e->kept.p, e->dx.p, (size_t)(N * e->dx.ld) * meg_dtype_size(stream));
        MEG_CALL(ops, NULL, embed_fwd, .x = e->x, .token = e->token, .word = e->word);
        MEG_CALL(ops, NULL, position_fwd, .x = e->x, .position = e->position, .pos = e->pos, .drop = &e->drop);
        MEG_CALL(ops, NULL, position_bwd, .dpos = e->dpos, .dx = e->kept, .position = e->position, .drop = &e->drop,
                 .accumulate = accumulate);
        MEG_CALL(ops, NULL, embed_bwd, .dword = e->dword, .dx = e->kept, .token = e->token, .accumulate = accumulate);
        digest_mat(h + k, e->x);
        digest_mat(h + k, e->dword);
        digest_mat(h + k, e->dpos);
    }
    assert_int_equal(h[0], h[1]);
    for (int64_t c = 0; c < H; c++) {
        for (int64_t v = 0; v < V; v++)
            dword[v][c] = dword0;
        for (int64_t v = 0; v < P; v++)
            dpos[v][c] = dpos0;
        for (int64_t r = 0; r < N; r++) {
            const double f = drop_factor64(&e->drop, 9 + c, 2 + r / B, e->sample[r % B]);
            /* a sum below 2, a factor below 2 and a product below 4 are each rounded */
            near_of(stream, at(e->x, r, c), f * ((double)at(e->word, e->token[r], c) + at(e->pos, e->position[r], c)),
                    6 * EPS, "x", r, c);
            near_of(stream, at(e->kept, r, c), f * at(e->dx, r, c), 2 * EPS, "dx", r, c);
            dword[e->token[r]][c] += at(e->kept, r, c);
            dpos[e->position[r]][c] += at(e->kept, r, c);
        }
        for (int64_t v = 0; v < V; v++)
            near_of(grad, at(e->dword, v, c), dword[v][c], 32 * EPS, "dword", v, c);
        for (int64_t v = 0; v < P; v++)
            near_of(grad, at(e->dpos, v, c), dpos[v][c], 32 * EPS, "dpos", v, c);
    }
}

static void embed(const struct meg_ops *ops)
{
    for (int p = 0; p < 2; p++)
        for (size_t t = 0; t < LEN(mixes); t++)
            for (int k = 0; k < 2; k++) {
                struct embed e = embed_new(p ? 0.4f : 0.0f, mixes[t], k ? mixes[t].branch : MEG_DTYPE_F32);
                embed_of(ops, &e, true);
                embed_of(ops, &e, false);
                embed_free(&e);
            }
}

/* Add 1 for each of 550 occurrences of a token.  If each addition were rounded to bf16, the sum would stay at 256. */
static void frequent_words(const struct meg_ops *ops)
{
    enum { MANY = 1100 };
    for (int t = MEG_DTYPE_F32; t <= MEG_DTYPE_F16; t++) {
        struct meg_mat d = meg_mat(zeros(2 * 130, 4), (enum meg_dtype)t, 2, 130);
        struct meg_mat dx = rnd_mat_of((enum meg_dtype)t, MANY, 130, 0);
        int32_t token[MANY];
        for (int r = 0; r < MANY; r++)
            token[r] = r % 2;
        fill_mat(dx, 1.0f);
        MEG_CALL(ops, NULL, embed_bwd, .dword = d, .dx = dx, .token = token, .accumulate = true);
        for (int v = 0; v < 2; v++)
            for (int c = 0; c < 130; c++)
                near(at(d, v, c), t == MEG_DTYPE_BF16 ? 552.0 : 550.0, 0.0, "dword", v, c);
        free(d.p);
        free(dx.p);
    }
}

/*
 * The outputs of two shards of the word embedding sum to the unsharded output.  The gradient of a shard equals the
 * corresponding rows of the unsharded gradient.
 */
static void shards_of_the_vocabulary(const struct meg_ops *ops)
{
    struct embed e = embed_new(0.0f, mixes[0], MEG_DTYPE_F32);
    struct meg_mat part[2] = { meg_mat_rows(e.word, 0, 6), meg_mat_rows(e.word, 6, V - 6) };
    struct meg_mat y[2] = { rnd_mat(N, H, 0), rnd_mat(N, H, 0) };
    struct meg_mat d[2] = { rnd_mat(6, H, 0), rnd_mat(V - 6, H, 0) };
    MEG_CALL(ops, NULL, embed_fwd, .x = e.x, .token = e.token, .word = e.word);
    MEG_CALL(ops, NULL, embed_bwd, .dword = e.dword, .dx = e.dx, .token = e.token);
    for (int k = 0; k < 2; k++) {
        MEG_CALL(ops, NULL, embed_fwd, .x = y[k], .token = e.token, .word = part[k], .v0 = 6 * k);
        MEG_CALL(ops, NULL, embed_bwd, .dword = d[k], .v0 = 6 * k, .dx = e.dx, .token = e.token);
        assert_memory_equal(d[k].p, (float *)e.dword.p + 6 * k * H, (size_t)(d[k].rows * H) * 4);
    }
    for (int64_t i = 0; i < N * H; i++)
        assert_true(((float *)y[0].p)[i] + ((float *)y[1].p)[i] == ((float *)e.x.p)[i]);
    for (int k = 0; k < 2; k++) {
        free(y[k].p);
        free(d[k].p);
    }
    embed_free(&e);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "word and position embedding, dropout and gradients agree with plain loops", embed },
        { "gradients of frequent words are summed before rounding", frequent_words },
        { "shards of the vocabulary sum to the unsharded embedding", shards_of_the_vocabulary },
    };
    return run_cases(cases, LEN(cases));
}
