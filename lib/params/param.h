/*
 * param.h - the parameter table of a model: one row per parameter tensor, in the order of the forward pass.
 * Allocation, initial weights, checkpoint files, conversion, the memory estimate of --dry-run and the optimizer's
 * hyper-parameter ranges are derived from this table.
 *
 * A rank stores its parameters in one flat buffer in the order of the backward pass (the last row of the table first).
 * A parameter begins at a multiple of MEG_PARAM_ALIGN elements.  Padding between parameters is zero.  Gradients, main
 * parameters and optimizer state have the same layout, so one loop over ranges updates all of these arrays.
 *
 * Frozen parameters follow all others, so that these arrays do not contain them.  A state that the model updates and
 * that is saved and resumed, such as a bias that balances the load of experts, is a frozen parameter in f32.
 *
 * Parameters that are in f32 in a model of another dtype follow those in the dtype of the model, both among the
 * parameters with gradients and among the frozen ones.
 */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "base/strtab.h"
#include "parallel/mesh.h"
#include "tensor/ops.h"

enum { MEG_PARAM_ALIGN = 64, MEG_PARAM_MAXDIM = 4, MEG_PARAM_MAXPARTS = 5 };

struct meg_param;
/*
 * Return the initial value of element i of a parameter, an index in the global tensor.  `name` is the XXH3-64 of the
 * parameter's name.  Random numbers are functions of seed, name and i (base/philox.h), so that weights do not depend on
 * the layout.  The parameters of the distribution are row->init.a and b.
 */
typedef double meg_init_fn(const struct meg_param *row, uint32_t seed, uint64_t name, uint64_t i);
meg_init_fn meg_init_constant; /* a */
meg_init_fn meg_init_normal;   /* a * N(0, 1) */
/* Uniform in [-x, x] with x = sqrt(6 / (fan_in + fan_out)), where the fans are the last two dimensions. */
meg_init_fn meg_init_xavier;

/* How a parameter is initialized, for example { meg_init_normal, .a = 0.02 }. */
struct meg_init {
    meg_init_fn *value;
    double a, b;
};

/*
 * The parts of one dimension of a parameter, such as gate and up projection, or z, x, B, C and dt of the projection of
 * a Mamba layer.  Each part is divided over the ranks of its axis, so that a rank's shard has a range of every part.
 * MEG_AXIS_NONE: all ranks have the complete part.  The parameters of experts have a dimension sharded over
 * MEG_AXIS_EP; their other dimensions may be sharded over MEG_AXIS_ETP, those of dense parameters over MEG_AXIS_TP.
 */
struct meg_sharding {
    int nparts;
    struct {
        int64_t n;
        enum meg_mesh_axis axis;
        struct meg_elem_range shard; /* this rank's indices of the dimension, set by meg_params_shard */
    } part[MEG_PARAM_MAXPARTS];
};
/* Return nparts equal parts of a dimension of n elements, all of them sharded over one axis. */
struct meg_sharding meg_equal_parts(int64_t n, int nparts, enum meg_mesh_axis axis);

/*
 * A parameter.  Its gradient is reduced over its data-parallel group.  If the parameter is tied, its gradient is also
 * reduced over the pipeline stages that use it.  meg_param_sums_grad_over_tp states whether it is also reduced over the
 * tensor-parallel ranks; those of the parameters of experts are the ranks of MEG_AXIS_ETP.
 */
struct meg_param {
    char name[96]; /* name in Megatron core; layers are numbered across pipeline stages, from 0 in each stack */
    int ndim;
    int64_t dim[MEG_PARAM_MAXDIM];                  /* global shape; the vocabulary has no padding rows */
    struct meg_sharding sharding[MEG_PARAM_MAXDIM]; /* of each dimension */
    struct meg_init init;
    bool is_decayed;   /* weight decay applies */
    bool is_frozen;    /* it has neither gradient nor optimizer state */
    bool is_decoupled; /* --decoupled-lr applies (word embedding and output weight) */
    bool is_f32;       /* in f32 also in a model in bf16 or f16; the gradient has the dtype of all gradients */
    bool is_vocab;     /* axis 0 is the vocabulary, which Megatron pads in its checkpoints */
    /* tensor-parallel ranks replicate the parameter, but apply it to different heads or columns */
    bool grad_is_partial_over_tp;
    int tie; /* index in meg_layout.tie of the pipeline stages that use the parameter; -1: not tied */
    int layer_group;
    int64_t numel; /* product of dim */
    /* This rank's shard, set by meg_params_shard. */
    int64_t shard_dim[MEG_PARAM_MAXDIM]; /* shape of the shard */
    int64_t shard_numel;        /* number of elements of the shard; 0 if only other stages have the parameter */
    bool is_tied_replica;       /* tied, and an earlier stage has the parameter, which is counted and saved there */
    int64_t offset;             /* index of the shard's first element in the flat buffer */
    int64_t grad_offset;        /* index of its first gradient in the flat buffer, or in the unsharded buffers */
    enum meg_dp_group dp_group; /* MEG_DP_EXPERT if experts have other groups, and this is a parameter of experts */
};

/*
 * A range of n elements.  They are contiguous in the global tensor, from index `global` on, and in the shard, from
 * index `local` on.
 */
struct meg_param_shard_range {
    int64_t global, local, n;
    bool is_tp_replica; /* all tensor-parallel ranks of the parameter have these elements */
};

/*
 * Elements [begin, end) of a shard.  Its ranges of `cols` elements begin ld elements apart in the global tensor:
 * element begin + i of the shard is element base + (i / cols) * ld + i % cols of the global tensor.
 */
struct meg_param_span {
    int64_t begin, end, base, cols, ld;
    bool is_tp_replica;
};

/*
 * With ZeRO-2 and ZeRO-3, the unsharded gradients of a layer group are in a temporary buffer; with ZeRO-3, so are its
 * parameters.  The embedding and the head have a buffer each, 0 and 1; even and odd layers have buffers 2 and 3.
 */
enum { MEG_UNSHARDED_BUFFERS = 4 };
/* Types of elements in these buffers: parameters in the dtype of the model, parameters in f32, and gradients. */
enum { MEG_UNSHARDED_PARAMS, MEG_UNSHARDED_F32, MEG_UNSHARDED_GRADS, MEG_UNSHARDED_TYPES };

/*
 * Parameters whose gradients are reduced together, over one data-parallel group.  Buckets end
 *   - between dense parameters and experts, whose data-parallel group is smaller with expert parallelism
 *   - on the first pipeline stage, after the parameter with which a bucket reaches zero.bucket_numel elements; as in
 *     Megatron, other stages, whose reduction is not on the critical path, ignore this limit
 *   - before and after the parameters of a tie, such as a tied embedding, with pipeline parallelism and a distributed
 *     optimizer, so that all stages with replicas shard them identically
 *   - with ZeRO-2 and ZeRO-3, after each layer group, which has at most one bucket of each data-parallel group and
 *     dtype; with ZeRO-3, it has other buckets for frozen parameters
 * A distributed optimizer divides a bucket into equal shards, regardless of parameter boundaries (parallel/zero.h).
 * With zero.has_complete_params, the parameters of a bucket are first distributed to its shards, each of which is as
 * long as the largest.
 */
struct meg_bucket {
    struct meg_elem_range range; /* in the flat buffer */
    enum meg_dp_group dp_group;
    int layer_group;                        /* ZeRO-2/3: of all parameters of the bucket */
    int64_t unsharded[MEG_UNSHARDED_TYPES]; /* ZeRO-2/3: numbers of elements before it in the unsharded buffers */
};

/*
 * Every rank's table lists all parameters of the model.  A rank has shards only of the parameters of its pipeline
 * stage, and of tied parameters that its stage uses (struct meg_tie).
 *
 * Layer group 0 has the embeddings and the relative biases of T5, groups 1..L have one layer each, and group L+1 has
 * the final norm and the heads.  The norm after an encoder is in the group of the encoder's last layer.
 */
struct meg_params {
    struct meg_param *row;
    int n;
    struct meg_strtab names; /* the names of the rows, in their order, for meg_params_find */
    int nlayer_groups;       /* L + 2 */
    int *first_row;          /* [nlayer_groups + 1] index of a layer group's first row; the last element is n */
    /* [nlayer_groups] ranges of the gradients of parameters in the dtype of the model; empty if this stage has none */
    struct meg_elem_range *layer_group;
    struct meg_bucket *bucket; /* [nbuckets] ranges that cover [0, grad_numel) or, with ZeRO-3, [0, flat_numel) */
    int nbuckets;
    int64_t unsharded[MEG_UNSHARDED_TYPES]; /* numbers of elements of the unsharded buffers */
    int64_t numel;                          /* number of elements of the complete model */
    int64_t grad_numel;           /* number of elements of this rank's flat buffer of gradients, including padding */
    int64_t flat_numel;           /* the same of parameters, of which the frozen ones follow the others */
    struct meg_elem_range f32[2]; /* elements of the flat buffer in f32: those with gradients, and frozen ones */
};

/*
 * Append a parameter and return its row, which is valid until the next call.  The name is formatted as by printf.  The
 * arguments determine name, shape, numel and layer_group.  The caller sets the other fields: tie is initially -1, each
 * dimension is one part without an axis, and the rest are 0, also all initial values.
 */
struct meg_param *meg_params_add(struct meg_params *p, int layer_group, int ndim, const int64_t *dim, const char *fmt,
                                 ...) __attribute__((format(printf, 5, 6)));

/*
 * Compute the shards and offsets of all parameters, the layer groups and the buckets for the mesh's rank.  Call this
 * function after all parameters are added.
 */
void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh);

/* Return the dtype of a parameter in a model in `dtype`. */
static inline enum meg_dtype meg_param_dtype(const struct meg_param *row, enum meg_dtype dtype)
{
    return row->is_f32 ? MEG_DTYPE_F32 : dtype;
}
/*
 * Return the dtype, or the address, of element i of the flat buffer w of the parameters of a model in `dtype`; or the
 * number of bytes of this buffer.
 */
enum meg_dtype meg_params_dtype(const struct meg_params *p, int64_t i, enum meg_dtype dtype);
void *meg_params_element(const struct meg_params *p, const void *w, int64_t i, enum meg_dtype dtype);
size_t meg_params_nbytes(const struct meg_params *p, enum meg_dtype dtype);

/*
 * Return the address of element i of an array that concatenates n ranges of the flat buffer of the parameters of a
 * model in `dtype`.
 */
void *meg_params_shard_element(const struct meg_params *p, const struct meg_elem_range *range, int n, const void *w,
                               int64_t i, enum meg_dtype dtype);

/* Return the unsharded buffer of a layer group. */
int meg_unsharded_buffer(const struct meg_params *p, int layer_group);
/*
 * Return the number of bytes of the unsharded buffers of the parameters of a model in `dtype`, or the address of bucket
 * b or of a parameter in the buffers at w.
 */
size_t meg_params_unsharded_nbytes(const struct meg_params *p, enum meg_dtype dtype);
void *meg_params_unsharded_bucket(const struct meg_params *p, const void *w, int b, enum meg_dtype dtype);
void *meg_params_unsharded_element(const struct meg_params *p, const void *w, const struct meg_param *row,
                                   enum meg_dtype dtype);

/* Return whether a part of the parameter is sharded over this axis.  If not, the ranks along it have replicas. */
bool meg_param_is_sharded(const struct meg_param *row, enum meg_mesh_axis axis);
static inline bool meg_param_is_expert(const struct meg_param *row)
{
    return meg_param_is_sharded(row, MEG_AXIS_EP);
}
/* Return the axis of the tensor-parallel ranks of the parameter. */
static inline enum meg_mesh_axis meg_param_tp_axis(const struct meg_param *row)
{
    return meg_param_is_expert(row) ? MEG_AXIS_ETP : MEG_AXIS_TP;
}

/*
 * Return the number of contiguous ranges in a parameter's shard, or the i-th range.  The ranges are in ascending order
 * in both the global tensor and the shard.
 */
int64_t meg_param_num_shard_ranges(const struct meg_param *row);
struct meg_param_shard_range meg_param_shard_range_at(const struct meg_param *row, int64_t i);

/*
 * Return the number of spans of a parameter's shard, or the i-th span.  There is one span for all ranges if these are
 * equally long and equally spaced; otherwise, there is one for each range.
 */
int64_t meg_param_num_spans(const struct meg_param *row);
struct meg_param_span meg_param_span_at(const struct meg_param *row, int64_t i);

/*
 * Return whether this rank includes a span or range of the parameter's shard, with this is_tp_replica, in sums over the
 * tensor- and pipeline-parallel ranks.  Exactly one of these ranks includes a given element.
 */
bool meg_param_is_counted(const struct meg_param *row, bool is_tp_replica, const struct meg_mesh *mesh);
/*
 * Return whether the gradient of a span is summed over the tensor-parallel ranks.  These ranks have replicas of the
 * span, and each computes a part of the gradient: of dense parameters with sequence parallelism, that of the rank's
 * positions; in a parameter with other, sharded parts or with grad_is_partial_over_tp, that of its heads or columns.
 */
bool meg_param_sums_grad_over_tp(const struct meg_param *row, const struct meg_param_span *span,
                                 const struct meg_layout *l);

/* Return the parameter with this name, or NULL.  Call this function after meg_params_shard. */
const struct meg_param *meg_params_find(const struct meg_params *p, const char *name);

/* Compute elements [first, first + n) of a parameter's initial weights. */
void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);
/* Compute elements [first, first + n) of the initial weights of this rank's shard of a parameter. */
void meg_param_init_shard(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);

void meg_params_free(struct meg_params *p);
