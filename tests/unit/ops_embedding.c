/* Embeddings forward and backward: the definition in plain loops, shards of the vocabulary, dropout. */
#include "ops.h"

enum { N = 26, B = 2, H = 150, V = 11, P = 20 };

struct embed {
    struct meg_mat word, pos, x, dx, kept, dword, dpos;
    int32_t token[N], position[N];
    int64_t sample[B];
    struct meg_drop drop;
};

static struct embed embed_new(float p)
{
    struct embed e = { rnd_mat(V, H, 1),
                       rnd_mat(P, H, 2),
                       rnd_mat(N, H, 0),
                       rnd_mat(N, H, 3),
                       rnd_mat(N, H, 3),
                       rnd_mat(V, H, 0),
                       rnd_mat(P, H, 0),
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

static void embed(const struct meg_ops *ops)
{
    for (int p = 0; p < 2; p++) {
        struct embed e = embed_new(p ? 0.4f : 0.0f);
        uint64_t h[2] = { 0, 0 };
        double dword[V][H], dpos[P][H];
        e.drop.sample = e.sample;
        for (int k = 0; k < 2; k++) {
            omp_set_num_threads(k ? 2 : 1);
            for (int64_t i = 0; i < V * H; i++)
                ((float *)e.dword.p)[i] = 1.0f;
            for (int64_t i = 0; i < P * H; i++)
                ((float *)e.dpos.p)[i] = -1.0f;
            memcpy(e.kept.p, e.dx.p, (size_t)(N * e.dx.ld) * sizeof(float));
            ops->embed_fwd(NULL, e.x, e.token, e.word, 0);
            ops->position_fwd(NULL, e.x, e.position, e.pos, &e.drop);
            ops->position_bwd(NULL, e.dpos, e.kept, e.position, &e.drop);
            ops->embed_bwd(NULL, e.dword, 0, e.kept, e.token);
            digest_mat(h + k, e.x);
            digest_mat(h + k, e.dword);
            digest_mat(h + k, e.dpos);
        }
        assert_int_equal(h[0], h[1]);
        for (int64_t c = 0; c < H; c++) {
            for (int64_t v = 0; v < V; v++)
                dword[v][c] = 1.0;
            for (int64_t v = 0; v < P; v++)
                dpos[v][c] = -1.0;
            for (int64_t r = 0; r < N; r++) {
                const double f = drop_factor64(&e.drop, 9 + c, 2 + r / B, e.sample[r % B]);
                /* a sum below 2, a factor below 2 and a product below 4 are each rounded */
                near(at(e.x, r, c),
                     f * ((double)at(e.word, e.token[r], c) + at(e.pos, e.position[r], c)), 6 * EPS,
                     "x", r, c);
                dword[e.token[r]][c] += f * at(e.dx, r, c);
                dpos[e.position[r]][c] += f * at(e.dx, r, c);
            }
            for (int64_t v = 0; v < V; v++)
                near(at(e.dword, v, c), dword[v][c], 32 * EPS, "dword", v, c);
            for (int64_t v = 0; v < P; v++)
                near(at(e.dpos, v, c), dpos[v][c], 32 * EPS, "dpos", v, c);
        }
        embed_free(&e);
    }
}

/* Two shards of the words sum to the whole; the gradient of a shard is its rows of the whole's. */
static void shards_of_the_vocabulary(const struct meg_ops *ops)
{
    struct embed e = embed_new(0.0f);
    struct meg_mat part[2] = { meg_mat_rows(e.word, 0, 6), meg_mat_rows(e.word, 6, V - 6) };
    struct meg_mat y[2] = { rnd_mat(N, H, 0), rnd_mat(N, H, 0) };
    struct meg_mat d[2] = { meg_mat(zeros(6 * H, 4), MEG_DTYPE_F32, 6, H),
                            meg_mat(zeros((V - 6) * H, 4), MEG_DTYPE_F32, V - 6, H) };
    memset(e.dword.p, 0, V * H * 4);
    ops->embed_fwd(NULL, e.x, e.token, e.word, 0);
    ops->embed_bwd(NULL, e.dword, 0, e.dx, e.token);
    for (int k = 0; k < 2; k++) {
        ops->embed_fwd(NULL, y[k], e.token, part[k], 6 * k);
        ops->embed_bwd(NULL, d[k], 6 * k, e.dx, e.token);
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
        { "word and position, with dropout, and their gradients", embed },
        { "shards of the vocabulary", shards_of_the_vocabulary },
    };
    return run_cases(cases, LEN(cases));
}
