/* ckpt_pt_builder.h - build a file in torch.save's format value by value: a pickle and the elements of its tensors. */
#ifndef CKPT_PT_BUILDER_H
#define CKPT_PT_BUILDER_H
#include "ckpt_fixture.h"
#include "ckpt/megatron/pt_write.h"
#include "ckpt/megatron/zip.h"

struct pt_builder {
    struct meg_pickle_writer pickle;
    struct meg_str numbers;
    size_t nbytes[64];
};

/* Add the tensor `native` of b to the dict under the name `foreign`. */
static inline void pt_add_param(struct pt_builder *f, const struct ckpt_fixture *b, const char *native,
                                const char *foreign)
{
    const struct meg_param *row = meg_params_find(&b->p, native);

    assert_non_null(row);
    meg_pickle_put_str(&f->pickle, foreign);
    f->nbytes[f->pickle.ntensors] = (size_t)row->numel * 4;
    meg_str_add(&f->numbers, b->w + row->offset, (size_t)row->numel * 4);
    meg_pickle_put_tensor(&f->pickle, row->dim, row->ndim);
}

/* Make the last tensor, of n times n elements, a transposed view of its storage. */
static inline void pt_transpose_last(struct pt_builder *f, int32_t n)
{
    char stride[] = { 'J', 0, 0, 0, 0, 'J', 1, 0, 0, 0, 't' };
    char *at = f->pickle.s.s + f->pickle.s.n - sizeof stride;

    memcpy(stride + 1, &n, 4);
    while (memcmp(at, stride, sizeof stride) != 0)
        at--;
    memcpy(at, stride + 5, 5);
    memcpy(at + 5, stride, 5);
}

/* Expand the last tensor, of [1, n] elements, to [rows, n] with stride 0, as torch.Tensor.expand does. */
static inline void pt_expand_last(struct pt_builder *f, int32_t rows, int32_t n)
{
    char shape[] = { 'J', 1, 0, 0, 0, 'J', 0, 0, 0, 0, 't', '(', 'J', 0, 0, 0, 0, 'J', 1, 0, 0, 0, 't' };
    char *at = f->pickle.s.s + f->pickle.s.n - sizeof shape;

    memcpy(shape + 6, &n, 4);
    memcpy(shape + 13, &n, 4);
    while (memcmp(at, shape, sizeof shape) != 0)
        at--;
    memcpy(at + 1, &rows, 4);
    memset(at + 13, 0, 4);
}

/* End the dict, write the file and free the memory of f. */
static inline void pt_end(struct pt_builder *f, const char *path)
{
    struct meg_file file = { 0 };
    struct meg_zip_writer z = { .f = &file };
    const char *numbers = f->numbers.s;
    struct meg_err e;

    meg_pickle_put_dict_end(&f->pickle);
    meg_pickle_end(&f->pickle);
    assert_int_equal(meg_file_create(&file, path, &e), 0);
    for (int i = 0; i < f->pickle.ntensors; i++) {
        char name[32];

        snprintf(name, sizeof name, "archive/data/%d", i);
        assert_int_equal(meg_zip_add(&z, name, numbers, f->nbytes[i], &e), 0);
        numbers += f->nbytes[i];
    }
    assert_int_equal(meg_zip_add(&z, "archive/data.pkl", f->pickle.s.s, f->pickle.s.n, &e), 0);
    assert_int_equal(meg_zip_finish(&z, &e), 0);
    assert_int_equal(meg_file_commit(&file, &e), 0);
    meg_zip_writer_free(&z);
    meg_pickle_writer_free(&f->pickle);
    meg_str_free(&f->numbers);
}

#endif
