/*
 * convert.h - convert a checkpoint from one format to another: meg's own, Hugging Face's and Megatron's.
 */
#pragma once
#include "ckpt/given_model.h"

struct meg_convert_conf {
    const char *load_dir, *save_dir, *loader, *saver, *model_type, *saver_impl, *vocab_file, *info, *dtype, *shard_size;
    int64_t ckpt_step, tensor, pipeline, vocab_multiple, true_vocab;
    bool overwrite, json, verify;
    struct meg_given_model model; /* model options, which must agree with the source */
};
extern const struct meg_opt meg_convert_opts[];
/* Options of Megatron's merge_mp_partitions.py that have other names here. */
extern const struct meg_opt meg_convert_old_opts[];

/*
 * Check the options.  Returns MEG_EUSAGE if a required option is missing, a value is invalid, or an option cannot be
 * combined with another option or with the target format.  The message names the option and the rule.
 */
int meg_convert_check(const struct meg_convert_conf *c, struct meg_err *e);

/*
 * Convert the checkpoint in c->load_dir to the format c->saver, and write it to c->save_dir.  c must have
 * passed meg_convert_check.  The format and the parallel sizes of the source are detected.  save_dir is locked during
 * the conversion, and the checkpoint in save_dir is replaced atomically.  Returns MEG_EUSAGE if
 *   - save_dir is not empty and --overwrite is not given
 *   - save_dir contains files but no checkpoint
 *   - the target format is Hugging Face's, and meg_ckpt_check_replaceable refuses a save_dir that is not empty
 *   - the target format cannot represent the model
 * Returns MEG_EFORMAT if the format of the source is not c->loader, if its model is not of type c->model_type, or if
 * c->vocab_file is not a JSON object.  Also returns the errors of meg_ckpt_open, meg_ckpt_set_vocab_size,
 * meg_ckpt_reader_open, and the save or export function of the target format.
 */
int meg_convert(const struct meg_convert_conf *c, struct meg_err *e);

/*
 * Return the number of bytes that a value of --max-shard-size specifies, or -1 if the value is invalid.  The value is a
 * non-negative integer, optionally followed by a unit in upper or lower case: KB, MB, GB are powers of 1000, and KiB,
 * MiB, GiB powers of 1024.
 */
int64_t meg_convert_shard_nbytes(const char *size);
