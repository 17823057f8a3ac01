/*
 * Fuzz the reader of distributed checkpoints: unless it rejects a directory, all tiles are within the files and within
 * their tensors.  The input is the length of .metadata in 4 bytes, .metadata, and __0_0.distcp.
 */
#include "ckpt/torch_dist/torch_dist.h"
#include "fuzz.h"

static volatile uint8_t sum; /* volatile, so that all bytes are read */

static void check_tile(const struct meg_st_tensor *t, const struct meg_st_tile *tile)
{
    const int64_t cols = t->ndim > 1 ? t->dim[1] : 1;
    void *block;
    const uint8_t *data = meg_st_data(&tile->t, &block);

    if (tile->row < 0 || tile->col < 0 || tile->t.dim[0] > t->dim[0] - tile->row || tile->t.dim[1] > cols - tile->col)
        abort();
    for (int64_t k = 0; data && k < tile->t.nbytes; k++)
        sum ^= data[k];
    free(block);
}

/* Compose all tensors as those of a model or, if their names begin with "optimizer.state.", as a state. */
static void compose(struct ckpt_dist *d)
{
    static const char prefix[] = "optimizer.state.exp_avg.";
    struct meg_st *st = meg_new(sizeof *st);
    struct meg_err e;
    struct dist_composer x = { .d = d, .st = st, .e = &e };
    int r = 0;

    st->path = meg_strdup(".metadata");
    for (int64_t i = 0; r == 0 && i < d->metadata.tensor_names.n; i++) {
        const struct dist_tensor *t = &d->metadata.tensor[i];
        const bool is_state = strncmp(t->name, prefix, sizeof prefix - 1) == 0;

        r = dist_compose(&x, t, dist_skip_wrappers(is_state ? t->name + sizeof prefix - 1 : t->name),
                         is_state ? "exp_avg" : NULL);
    }
    if (dist_compose_end(&x, r) == 0)
        for (int i = 0; i < st->n; i++)
            for (int64_t k = 0; k < st->t[i].ntiles; k++)
                check_tile(&st->t[i], &st->t[i].tile[k]);
    meg_st_close(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct ckpt_dist d = { 0 };
    struct dist_common common = { 0 };
    struct meg_err e;
    char path[512];
    uint32_t nmetadata;
    json_t *run;

    if (n < 4)
        return 0;
    memcpy(&nmetadata, bytes, 4);
    nmetadata = nmetadata < n - 4 ? nmetadata : (uint32_t)n - 4;
    fuzz_file("__0_0.distcp", bytes + 4 + nmetadata, n - 4 - nmetadata);
    snprintf(path, sizeof path, "%s", fuzz_file(".metadata", bytes + 4, nmetadata));
    d.dir = meg_strndup(path, strlen(path) - strlen("/.metadata"));
    if (dist_metadata_read(&d.metadata, path, &e) == 0) {
        d.file = meg_new((size_t)d.metadata.files.n * sizeof *d.file + 1);
        if (dist_open_common(&common, &d, &e) == 0 && dist_run_state(&run, &d, &common, &e) == 0)
            json_decref(run);
        dist_close_common(&common);
        compose(&d);
    }
    for (int64_t i = 0; d.file && i < d.metadata.files.n; i++)
        meg_st_close(d.file[i]);
    free(d.file);
    free(d.dir);
    dist_metadata_free(&d.metadata);
    return 0;
}
