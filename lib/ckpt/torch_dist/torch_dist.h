/*
 * torch_dist.h - distributed checkpoints (private to lib/ckpt/torch_dist).
 *
 * A checkpoint is a directory with the file .metadata and the files *.distcp of torch.distributed.checkpoint.  Megatron
 * adds metadata.json, which marks a complete checkpoint.  An item of a file *.distcp is a file of torch.save (pt.h).
 * The settings of Megatron's run are in common.pt or, since core 0.20, in the item common_state/shard_0_1.
 *
 * The tensors are global: they do not depend on the parallel sizes of the run.  The layers of a stack are usually one
 * tensor with a leading axis.  The chunks of a tensor are shards, layers, or parts of them.
 */
#pragma once
#include "ckpt/megatron/pt.h"
#include "ckpt/torch_dist/metadata.h"
#include "ckpt/torch_dist/open.h"

/* How the optimizer's state is stored. */
enum dist_optim {
    DIST_OPTIM_NONE,
    DIST_OPTIM_BY_NAME, /* tensors optimizer.state.STATE.PARAMETER, which may be flattened */
    DIST_OPTIM_BUFFERS, /* tensors optimizer.distributed.…: the flat buffers of Megatron's distributed optimizer */
};

/* An open directory. */
struct ckpt_dist {
    char *dir;
    struct dist_metadata metadata;
    struct meg_st **file; /* [metadata.files.n] mapped files without tensors; NULL: not mapped yet */
    enum dist_optim optim;
    /* Message that says why the optimizer's state cannot be read; NULL: it can, or there is none. */
    char *optim_refusal;
};

/* ---- item.c ---- */

/*
 * Open an item, whose pickle contains its value, and set *st to its mapped file, unless st is NULL.  Returns MEG_ENOENT
 * if the file does not exist, and MEG_EFORMAT if the item exceeds the file or is not a file of torch.save.  Messages
 * contain the path and the offset.
 */
int dist_open_item(struct meg_pt **out, struct meg_st **st, struct ckpt_dist *d, const struct dist_item *item,
                   struct meg_err *e);

/* ---- names.c ---- */

/* Return a name without the prefixes model. and module. of a plain checkpoint of torch.distributed.checkpoint. */
const char *dist_skip_wrappers(const char *name);
/* Return whether a name, without these prefixes, belongs to a tensor of the model. */
bool dist_is_model_name(const char *name);
/* Return whether a tensor has a leading axis for the layers of a stack, because the name contains no layer number. */
bool dist_is_stacked(const char *name);
/*
 * Return the native name of a tensor, malloc'ed.  `layer` is the layer number if the tensor is stacked.  Set *half to 0
 * or 1 if the tensor is the first or second half of the rows of the native tensor, and to -1 if it is all of them.
 */
char *dist_native_name(const char *name, int64_t layer, int *half);

/* ---- compose.c: native tensors that consist of tiles ---- */

/* Native tensors in the making.  Initialize with { .d = d, .st = st, .e = e }; st must have no tensors. */
struct dist_composer {
    struct ckpt_dist *d;
    struct meg_st *st; /* receives the tensors and owns their memory */
    struct meg_strtab names;
    int64_t tiles_cap, tensor_cap; /* of tiles and of st->t */
    struct dist_tiles {
        struct meg_st_tile *v;
        int64_t n, cap, numel;
        const struct dist_tensor *part[2]; /* the tensors of the two halves of the rows */
    } * tiles;                             /* [names.n] */
    struct meg_err *e;
};
/*
 * Add a tensor of the checkpoint.  `name` is the part of its name that dist_native_name converts.  The native names get
 * the prefix optimizer.state.STATE. if `state` is not NULL.  Returns MEG_EFORMAT if an item is damaged or does not
 * match the tensor.
 */
int dist_compose(struct dist_composer *x, const struct dist_tensor *t, const char *name, const char *state);
/*
 * Add the elements [first, first + numel) of a flat tensor as the native tensor `name` of shape dim [ndim].  first and
 * the end must be within t, whose dtype must be known.
 */
int dist_compose_range(struct dist_composer *x, const struct dist_tensor *t, int64_t first, const char *name,
                       const int64_t *dim, int ndim);
/* Check that the tensors are complete, and move them to x->st.  Frees the memory of x, also after an error r < 0. */
int dist_compose_end(struct dist_composer *x, int r);

/* ---- run.c ---- */

/* The objects of a checkpoint that are not tensors.  A member is NULL if it is missing. */
struct dist_common {
    struct meg_pt *pt[4];
    int npt;
    const char *from; /* file of args, for messages */
    const struct meg_py *args, *iteration, *schedule, *optimizer;
};
/* Read the settings of the run.  Call dist_close_common after success and after an error. */
int dist_open_common(struct dist_common *out, struct ckpt_dist *d, struct meg_err *e);
void dist_close_common(struct dist_common *k);
/* Set *out to the state of the run as state.json has it, or to NULL if it is incomplete. */
int dist_run_state(json_t **out, struct ckpt_dist *d, const struct dist_common *k, struct meg_err *e);

/* ---- optim.c ---- */

/* Set d->optim and d->optim_refusal. */
void dist_find_optim(struct ckpt_dist *d, const struct dist_common *k);
/* Compose the optimizer's state of a model, whose word embedding has vocab_rows rows, with padding. */
int dist_compose_optim(struct dist_composer *x, const struct meg_params *p, int64_t vocab_rows);
