/* check_embedding.c - cases of embed_bwd that depend on the sort of cuda/embedding.cu; tests/ops has the others. */
#include "check.h"
#include "cuda/internal.h"

/* The first id of a shard of the vocabulary. */
enum { V0 = 1000 };

/* The scratch memory behind the sorted tokens contains numbers of another operation, which are not used as tokens. */
static void embed_bwd_old_scratch(void)
{
    const struct twin x = twin_random(MEG_DTYPE_F32, 64, 1000, 0), sums = twin_output(MEG_DTYPE_F32, 1, 1000, 0);
    const struct twin dx = twin_random(MEG_DTYPE_F32, 5, 8, 0), dword = twin_output(MEG_DTYPE_F32, 8, 8, 0);
    const struct twin_bytes token = twin_bytes((const int32_t[]){ V0, V0, V0, V0, V0 }, 5 * sizeof(int32_t));

    meg_cuda_column_sums(stream, sums.dev.p, MEG_DTYPE_F32, x.dev, false);
    MEG_CALL(cpu, NULL, embed_bwd, .dword = dword.host, .v0 = V0, .dx = dx.host, .token = token.host);
    MEG_CALL(gpu, stream, embed_bwd, .dword = dword.dev, .v0 = V0, .dx = dx.dev, .token = token.dev);
    expect_equal(&dword, "dword");
}

/*
 * All tokens belong to one row: a list of many chunks, in f32, with the order of additions that embedding.cu documents.
 */
static void embed_bwd_one_row(void)
{
    enum { N = 1500, CHUNK = 128 };
    const struct twin dx = twin_random(MEG_DTYPE_F32, N, 3, 0), dword = twin_random(MEG_DTYPE_F32, 2, 3, 0);
    int32_t id[N];

    for (int i = 0; i < N; i++)
        id[i] = V0 + 1;
    for (int c = 0; c < 3; c++) {
        float total = twin_get(&dword, 1, c);

        for (int first = 0; first < N; first += CHUNK) {
            float sum = 0;

            for (int i = first; i < N && i < first + CHUNK; i++)
                sum += twin_get(&dx, i, c);
            total += sum;
        }
        ((float *)dword.host.p)[3 + c] = total;
    }
    MEG_CALL(gpu, stream, embed_bwd, .dword = dword.dev, .v0 = V0, .dx = dx.dev, .token = twin_bytes(id, sizeof id).dev,
             .accumulate = true);
    expect_equal(&dword, "dword");
}

const struct check_case cases_embedding[] = {
    { "embed_bwd: numbers of another operation in scratch memory", embed_bwd_old_scratch },
    { "embed_bwd: one row", embed_bwd_one_row },
    { NULL, NULL },
};
