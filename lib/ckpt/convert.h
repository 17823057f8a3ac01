/*
 * convert.h - convert a checkpoint from one format to another: meg's own, Hugging Face's and Megatron's.
 */
#ifndef MEG_CKPT_CONVERT_H
#define MEG_CKPT_CONVERT_H
#include "ckpt/ckpt.h"

MEG_BEGIN_DECLS

struct meg_convert_conf {
    const char *load_dir, *save_dir, *loader, *saver, *model_type, *saver_impl, *vocab_file, *info, *dtype, *shard_size;
    int64_t ckpt_step, tensor, pipeline, vocab_multiple, true_vocab;
    bool overwrite, json, verify;
};
extern const struct meg_opt meg_convert_opts[];

/* Check options that contradict each other or the formats; MEG_EUSAGE names the option and the rule. */
int meg_convert_check(const struct meg_convert_conf *c, struct meg_err *e);

/*
 * Convert the checkpoint in load_dir to save_dir, in the format of saver; c is checked.  The format and the ranks of
 * the source are detected.  The lock of save_dir is held until the end, and its contents are replaced atomically.
 * MEG_EUSAGE: save_dir is not empty and --overwrite is not given; save_dir has files that are not a checkpoint's; or
 * the target format cannot express the model.  Other errors are those of meg_ckpt_open, meg_ckpt_load and the writer.
 */
int meg_convert(const struct meg_convert_conf *c, struct meg_err *e);

MEG_END_DECLS
#endif
