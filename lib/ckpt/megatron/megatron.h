/*
 * Megatron's checkpoints of ranks: iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt, each what torch.save
 * made of a dict with args, a Namespace of all options, and model, the tensors of that rank.
 */
#ifndef MEG_CKPT_MEGATRON_MEGATRON_H
#define MEG_CKPT_MEGATRON_MEGATRON_H
#include "ckpt/internal.h"
#include "ckpt/megatron/pickle.h"

#define MEGATRON_FILE "model_optim_rng.pt"

/* Whether dir holds the files of ranks. */
bool ckpt_is_megatron(const char *dir);
/* Whether dir is a distributed checkpoint of Megatron's (torch_dist, zarr, fsdp_dtensor); these are not read. */
bool ckpt_is_distributed(const char *dir);
/* MEG_EFORMAT: what such a folder is, and how to get one that is read. */
int ckpt_refuse_distributed(const char *dir, struct meg_err *e);
/* "mp_rank_01", or with more than one stage "mp_rank_01_000", and the file in it; returned. */
const char *ckpt_rank_file(char buf[64], int64_t t, int64_t p, int64_t stages);

/* The attribute of args that is an option of the model; NULL: there is none. */
const char *ckpt_arg_name(char buf[64], const struct meg_opt *row);

/*
 * Check the settings in args, an object with attributes, against those that our GPT can compute: MEG_EFORMAT
 * names every setting with its value that is known to change the output and is not neutral, or that is not
 * known and is not off.  from is the file that args comes from.
 */
int ckpt_check_args(const struct meg_py *args, const char *from, struct meg_err *e);

/* Names in a layer, and beside the layers: those of Megatron before its core, and of its core. */
struct ckpt_prefix_map {
    const char *theirs, *ours;
};
extern const struct ckpt_prefix_map ckpt_legacy_names[], ckpt_te_names[];

#endif
