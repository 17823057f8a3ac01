/*
 * param.h - the parameter table of a model: a row per tensor, in the order of the forward pass.  Allocation, initial
 * weights, checkpoint files, conversion, the memory estimate of --dry-run and the optimizer's hyper-parameter ranges
 * are derived from this table.
 *
 * The parameters of a rank are in one flat buffer in backward order (the last row first), each aligned to
 * MEG_PARAM_ALIGN elements.  Gradients, main parameters and optimizer state have the same layout, so that one loop over
 * ranges updates all of them.  Padding elements between parameters are zero.
 *
 * The flat buffer is split into buckets.  Gradients are reduced one bucket at a time, and with a distributed optimizer
 * each bucket is divided into equal shards, regardless of parameter boundaries (parallel/zero.h).  On the first
 * pipeline stage, a bucket ends after the parameter with which it reaches zero.bucket_numel elements; other stages
 * ignore this limit, because they could not overlap the reduction of a bucket.  With pipeline parallelism and a
 * distributed optimizer, a tied embedding is a separate bucket, so that the first and the last stage shard it
 * identically.  With ZeRO-2 and ZeRO-3, each layer group is a bucket.
 *
 * Layer group 0 is the embedding, groups 1..L are the layers, and group L+1 is the head.  The table has all rows on
 * every rank, but a rank has shards only of the rows of its pipeline stage and, on the last stage, of a tied embedding.
 * Tensor-parallel ranks shard a row along tp_axis.
 */
#ifndef MEG_MODEL_PARAM_H
#define MEG_MODEL_PARAM_H
#include <stdint.h>
#include "base/err.h"
#include "parallel/mesh.h"
#include "tensor/ops.h"

MEG_BEGIN_DECLS

enum { MEG_PARAM_ALIGN = 64, MEG_PARAM_MAXDIM = 4 };

enum meg_init_method { MEG_INIT_ZERO, MEG_INIT_ONE, MEG_INIT_NORMAL, MEG_INIT_XAVIER };

/*
 * Ranks over which a parameter's gradient is reduced.  DENSE: the data- and context-parallel ranks.  TIED: in addition,
 * the first and the last pipeline stage, which both have the tied embedding.  (Sequence parallelism also requires a
 * reduction over the tensor-parallel ranks, which depends on tp_axis.)
 */
enum meg_param_reduce_group { MEG_PARAM_DENSE, MEG_PARAM_TIED };

struct meg_param {
    char name[96]; /* name in Megatron core, with the global layer number */
    int ndim;
    int64_t dim[MEG_PARAM_MAXDIM]; /* global shape; the vocabulary has no padding rows */
    int tp_axis;                   /* axis sharded over tensor-parallel ranks, -1: replicated */
    int nblocks;                   /* blocks along tp_axis that are sharded separately: 2 for [gate; up] */
    enum meg_init_method init;
    double std;       /* standard deviation of MEG_INIT_NORMAL */
    int is_decayed;   /* weight decay applies */
    int is_decoupled; /* --decoupled-lr applies (word embedding and output weight) */
    enum meg_param_reduce_group reduce_group;
    int layer_group;
    int64_t numel; /* product of dim */
    /* This rank's shard, set by meg_params_shard. */
    int64_t shard_dim[MEG_PARAM_MAXDIM]; /* shape of the shard */
    int64_t shard_begin;                 /* first index of the shard along tp_axis, in each block */
    int64_t shard_numel;                 /* number of elements of the shard; 0: the row is on other stages */
    bool is_tied_replica;                /* the last stage's replica of a tied tensor: neither counted nor saved */
    int64_t offset;                      /* index of the shard's first element in the flat buffer */
};

/*
 * A range of n elements that are contiguous in the global tensor, beginning at index `global`, and in the shard,
 * beginning at index `local`.
 */
struct meg_param_shard_range {
    int64_t global, local, n;
};

struct meg_params {
    struct meg_param *row;
    int n;
    int nlayer_groups;                  /* L + 2 */
    struct meg_elem_range *layer_group; /* [nlayer_groups] range of each in the flat buffer; empty if on other stages */
    struct meg_elem_range *bucket;      /* [nbuckets] consecutive ranges that cover the flat buffer */
    int nbuckets;
    int64_t numel;      /* number of elements of the model: sum over the rows */
    int64_t flat_numel; /* number of elements of this rank's flat buffer, including padding */
};

/* Append a row with a formatted name; the caller sets the fields that are not arguments. */
struct meg_param *meg_params_add(struct meg_params *p, int layer_group, int ndim, const int64_t *dim, const char *fmt,
                                 ...) __attribute__((format(printf, 5, 6)));

/*
 * On the mesh's rank, compute the shard and the offset of each row, the layer groups and the buckets.  Call it after
 * all rows are added.
 */
void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh);

/*
 * ZeRO-2/3 (for gradients) and ZeRO-3 (for parameters) have these unsharded buffers: one for the embedding, one for the
 * head, and two that layers use alternately.  Return the element offset of a layer group's buffer, or the number of
 * elements of all buffers.
 */
int64_t meg_params_unsharded_offset(const struct meg_params *p, int layer_group);
int64_t meg_params_unsharded_numel(const struct meg_params *p);

/* Return the number of contiguous ranges in a row's shard, or the i-th range. */
int64_t meg_param_num_shard_ranges(const struct meg_param *row);
struct meg_param_shard_range meg_param_shard_range_at(const struct meg_param *row, int64_t i);

/*
 * Return whether this rank counts the row's shard in sums over the model-parallel ranks, which count each element once.
 */
bool meg_param_is_counted(const struct meg_param *row, const struct meg_mesh *mesh);

/* Return the row with this name, or NULL. */
const struct meg_param *meg_params_find(const struct meg_params *p, const char *name);

/*
 * Split the flat buffer into ranges of equal weight decay and learning rate, in order; padding belongs to the range
 * before it.  Store the ranges in *range, which the caller frees, and return their number.
 */
int meg_params_hparam_ranges(const struct meg_params *p, struct meg_hparam_range **range);

/*
 * Compute elements [first, first + n) of a row's initial weights: 0, 1, std * N(0, 1), or uniform with limit sqrt(6 /
 * (fan_in + fan_out)).  The random number of element i of the global tensor is a function of the seed, the row's name
 * and i (base/philox.h), so weights do not depend on the layout.
 */
void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);
/* Compute elements [first, first + n) of the initial weights of the row's shard. */
void meg_param_init_shard(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);

void meg_params_free(struct meg_params *p);

MEG_END_DECLS
#endif
