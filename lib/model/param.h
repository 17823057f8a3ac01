/*
 * The parameter table of a model: a row a tensor, in the order of the forward
 * pass.  Allocation, initial weights, checkpoint files, conversion, the memory
 * count of --dry-run and the optimizer's groups all walk it.
 *
 * The parameters lie in one flat buffer in backward order (the last row first),
 * each start aligned to MEG_PARAM_ALIGN elements; gradients, main parameters and
 * optimizer state have the same layout, so that a loop over ranges serves all.
 * Elements between two parameters are zero and stay so.
 *
 * The flat buffer is cut into buckets: gradients are added up a bucket at a time, and each is cut into
 * equal slices, whatever parameters lie there, for the ranks that share optimizer state.  A bucket ends
 * after the parameter that gives it layout.zero.bucket_numel elements, on the first stage only, as the others have
 * no time to hide it in; a tied embedding has one of its own, so that both stages slice it alike.  Where
 * gradients or parameters are shared, too, each section is a bucket.
 *
 * Every rank has all rows, and holds of each a box (or nothing): what its stages have of the layers, and
 * of that its tensor-parallel share.
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

/* Parameters reduced over one group of ranks. */
enum meg_param_reduce_group { MEG_PARAM_DENSE, MEG_PARAM_TIED };

struct meg_param {
    char name[96]; /* Megatron core's, with the global layer number */
    int ndim;
    int64_t dim[MEG_PARAM_MAXDIM]; /* global shape; vocabulary rows are the true ones */
    int tp_axis;                   /* axis cut over tensor-parallel ranks, -1: each has the whole */
    int nblocks;                   /* along that axis, each cut by itself: 2 for [gate; up] */
    enum meg_init_method init;
    double std;       /* of MEG_INIT_NORMAL */
    int is_decayed;   /* weight decay applies */
    int is_decoupled; /* word embedding and output weight: --decoupled-lr */
    enum meg_param_reduce_group reduce_group;
    int layer_group; /* 0 embedding, 1..L the layers, L+1 the head: a file each */
    int64_t numel;   /* product of dim */
    /* This rank's box, from meg_params_shard on. */
    int64_t shard_dim[MEG_PARAM_MAXDIM]; /* its shape */
    int64_t shard_begin;                 /* where it begins along the split axis, in each part */
    int64_t shard_numel;                 /* its elements; 0: the row is on other ranks */
    bool is_tied_replica;                /* the last stage's copy of a tied tensor: neither counted nor saved */
    int64_t offset;                      /* of its element 0 in the flat buffer */
};

/* A run of elements that lie side by side in the whole tensor and in the box. */
struct meg_param_shard_range {
    int64_t global, local, n;
};

struct meg_params {
    struct meg_param *row;
    int n;
    int nlayer_groups;                  /* L + 2 */
    struct meg_elem_range *layer_group; /* [nsections] what this rank has of each; empty: nothing */
    struct meg_elem_range *bucket;      /* [nbuckets] in order, the whole flat buffer */
    int nbuckets;
    int64_t numel;      /* elements of the model: the sum of the rows */
    int64_t flat_numel; /* elements of this rank's flat buffer, gaps included */
};

/* Append a row, its name printf'ed; the caller fills what is not an argument. */
struct meg_param *meg_params_add(struct meg_params *p, int section, int ndim, const int64_t *dim, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Give every row its box and place on the mesh's rank, once all rows are there. */
void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh);

/*
 * Memory in which sections take turns: the first and the last have a place of their own, and of the layers
 * two are there at a time.  Where a section begins, and elements in all.
 */
int64_t meg_params_unsharded_offset(const struct meg_params *p, int section);
int64_t meg_params_unsharded_numel(const struct meg_params *p);

/* The runs of a row's box: how many, and number i. */
int64_t meg_param_num_shard_ranges(const struct meg_param *row);
struct meg_param_shard_range meg_param_shard_range_at(const struct meg_param *row, int64_t i);

/* Whether this rank is the one that counts the row's box in sums over the model: others may hold it, too. */
bool meg_param_is_counted(const struct meg_param *row, const struct meg_mesh *mesh);

/* The row called name, or NULL. */
const struct meg_param *meg_params_find(const struct meg_params *p, const char *name);

/*
 * The flat buffer as runs of equal weight decay and rate, in order; gaps belong to the run before
 * them.  *range is malloc'ed, the caller's; the number of runs is returned.
 */
int meg_params_hparam_ranges(const struct meg_params *p, struct meg_hparam_range **range);

/* Elements [first, first + n) of a row's initial weights (DESIGN.md §6), whatever the layout. */
void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);
/* The same of elements [first, first + n) of the row's box. */
void meg_param_init_shard(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out);

void meg_params_free(struct meg_params *p);

MEG_END_DECLS
#endif
