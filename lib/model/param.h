/*
 * param.h - the parameter table of a model: a row per tensor, in the order of the forward pass.  Allocation, initial
 * weights, checkpoint files, conversion, the memory count of --dry-run and the optimizer's hyper-parameter ranges
 * iterate over it.
 *
 * The parameters of a rank are in one flat buffer in backward order (the last row first), each aligned to
 * MEG_PARAM_ALIGN elements.  Gradients, main parameters and optimizer state have the same layout, so that one loop over
 * ranges updates all.  Elements between two parameters are zero.
 *
 * The flat buffer is split into buckets.  Gradients are reduced one bucket at a time, and with a distributed optimizer
 * each bucket is divided into equal shards, regardless of parameter boundaries (parallel/zero.h).  A bucket ends after
 * the parameter with which it reaches zero.bucket_numel elements, on the first stage only: other stages could not
 * overlap the reduction of a bucket.  A tied embedding has a bucket of its own, so that the first and the last stage
 * shard it alike. With ZeRO-2 and ZeRO-3 each layer group is a bucket.
 *
 * Layer groups are numbered 0 the embedding, 1..L the layers, L+1 the head.  Every rank has all rows, but holds shards
 * of the rows of its pipeline stages only; a tensor-parallel rank holds its part of a row along tp_axis.
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

/* The ranks that reduce a parameter's gradient: all with a replica, and for a tied embedding also the other stage. */
enum meg_param_reduce_group { MEG_PARAM_DENSE, MEG_PARAM_TIED };

struct meg_param {
    char name[96]; /* Megatron core's, with the global layer number */
    int ndim;
    int64_t dim[MEG_PARAM_MAXDIM]; /* global shape; the vocabulary has no padding rows */
    int tp_axis;                   /* axis sharded over tensor-parallel ranks, -1: replicated */
    int nblocks;                   /* blocks along that axis that are sharded one by one: 2 for [gate; up] */
    enum meg_init_method init;
    double std;       /* of MEG_INIT_NORMAL */
    int is_decayed;   /* weight decay applies */
    int is_decoupled; /* word embedding and output weight: --decoupled-lr */
    enum meg_param_reduce_group reduce_group;
    int layer_group;
    int64_t numel; /* product of dim */
    /* This rank's shard; set by meg_params_shard. */
    int64_t shard_dim[MEG_PARAM_MAXDIM]; /* its shape */
    int64_t shard_begin;                 /* its first index along tp_axis, in each block */
    int64_t shard_numel;                 /* its elements; 0: the row is on other stages */
    bool is_tied_replica;                /* the last stage's replica of a tied tensor: neither counted nor saved */
    int64_t offset;                      /* index of its first element in the flat buffer */
};

/* n elements that are contiguous in the global tensor, from global on, and in the shard, from local on. */
struct meg_param_shard_range {
    int64_t global, local, n;
};

struct meg_params {
    struct meg_param *row;
    int n;
    int nlayer_groups;                  /* L + 2 */
    struct meg_elem_range *layer_group; /* [nlayer_groups] its range of the flat buffer; empty if on other stages */
    struct meg_elem_range *bucket;      /* [nbuckets] in order; together the flat buffer */
    int nbuckets;
    int64_t numel;      /* elements of the model: sum over the rows */
    int64_t flat_numel; /* elements of this rank's flat buffer, including padding */
};

/* Append a row with a formatted name; the caller sets the fields that are not arguments. */
struct meg_param *meg_params_add(struct meg_params *p, int layer_group, int ndim, const int64_t *dim, const char *fmt,
                                 ...) __attribute__((format(printf, 5, 6)));

/*
 * Compute each row's shard and offset on the mesh's rank, the layer groups and the buckets; call it after all rows are
 * added.
 */
void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh);

/*
 * Unsharded buffers of ZeRO-2 (gradients) and ZeRO-3 (parameters): one for the embedding, one for the head, and two
 * that layers use alternately.  Return the offset of a layer group's buffer, and the elements of all of them.
 */
int64_t meg_params_unsharded_offset(const struct meg_params *p, int layer_group);
int64_t meg_params_unsharded_numel(const struct meg_params *p);

/* Return the number of contiguous ranges of a row's shard, and the i-th one. */
int64_t meg_param_num_shard_ranges(const struct meg_param *row);
struct meg_param_shard_range meg_param_shard_range_at(const struct meg_param *row, int64_t i);

/* Return whether this rank counts the row's shard in sums over the model; exactly one of its replicas does. */
bool meg_param_is_counted(const struct meg_param *row, const struct meg_mesh *mesh);

/* Return the row called name, or NULL. */
const struct meg_param *meg_params_find(const struct meg_params *p, const char *name);

/*
 * Split the flat buffer into ranges of equal weight decay and learning rate, in order; padding belongs to the range
 * before it.  Store the ranges in *range, which the caller frees, and return their number.
 */
int meg_params_hparam_ranges(const struct meg_params *p, struct meg_hparam_range **range);

/*
 * Compute elements [first, first + n) of a row's initial weights: 0, 1, std * N(0, 1), or uniform in
 * +-sqrt(6 / (fan_in + fan_out)).  Random numbers are those of element i of the global tensor, a function of the seed,
 * the row's name and i (base/philox.h), so that weights do not depend on the layout.
 */
void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);
/* The same for elements [first, first + n) of the row's shard. */
void meg_param_init_shard(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);

void meg_params_free(struct meg_params *p);

MEG_END_DECLS
#endif
