/*
 * megatron.h - Megatron's per-rank checkpoints (private to lib/ckpt).
 *
 * A checkpoint consists of the files iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt.  Each is a dict saved by
 * torch.save, with "args", a Namespace of all options, and "model", the tensors of the rank.
 */
#ifndef MEG_CKPT_MEGATRON_MEGATRON_H
#define MEG_CKPT_MEGATRON_MEGATRON_H
#include "ckpt/internal.h"
#include "ckpt/megatron/pickle.h"

MEG_BEGIN_DECLS

#define MEGATRON_FILE "model_optim_rng.pt"

/* Return whether dir has per-rank files. */
bool ckpt_is_megatron(const char *dir);
/*
 * Return whether dir is a distributed checkpoint of Megatron (torch_dist, zarr, fsdp_dtensor), which is not supported.
 */
bool ckpt_is_distributed(const char *dir);
/* Fail with MEG_EFORMAT and a message that explains how to convert a distributed checkpoint. */
int ckpt_refuse_distributed(const char *dir, struct meg_err *e);
/* Print "mp_rank_01/FILE", or, if there are several pipeline stages, "mp_rank_01_000/FILE", to buf; return buf. */
const char *ckpt_rank_file(char buf[64], int64_t t, int64_t p, int64_t stages);

/* Return the name of the attribute of args for an option of the model; NULL: none. */
const char *ckpt_arg_name(char buf[64], const struct meg_opt *row);

/*
 * Check that meg's GPT supports the settings in `args`, an object with attributes.  Otherwise returns MEG_EFORMAT with
 * a message that lists the unsupported settings and their values.  `from` is the name of the file in the message.  A
 * known setting is unsupported if its value is known to change the output of the model.  An unknown setting is
 * unsupported unless its value is off (None, False, 0 or empty), a path, or an object of Python or torch.
 */
int ckpt_check_args(const struct meg_py *args, const char *from, struct meg_err *e);

/* A foreign prefix of tensor names, after "decoder." or "decoder.layers.N." is removed, and its native equivalent. */
struct ckpt_prefix_map {
    const char *foreign, *native;
};
extern const struct ckpt_prefix_map ckpt_legacy_names[], ckpt_te_names[];

MEG_END_DECLS
#endif
