/* internal.h - declarations shared by the files that compute a layout from options. */
#pragma once
#include "parallel/layout.h"

/* Fail with the message "--option v: rule".  Return MEG_EUSAGE. */
int layout_refuse(const char *option, int64_t v, struct meg_err *e, const char *fmt, ...) MEG_PRINTF(4, 5);

/*
 * Set *vp to the number of chunks per stage, and *first_layer to the stage table of a model (struct meg_layout), which
 * the caller frees.  The group sizes must have been checked (meg_layout_make).  Return MEG_EUSAGE if the layers cannot
 * be divided as the options require.
 */
int stage_table_make(int64_t **first_layer, int64_t *vp, const struct meg_layout_conf *c,
                     const struct meg_layout_model *m, struct meg_err *e);

/*
 * Parse a value of --pipeline-model-parallel-layout.  Set *nlayers, which the caller frees, to the number of layers of
 * each of the *nvirtual virtual stages.  Return MEG_EUSAGE if the text is invalid.
 */
int stage_string_parse(int64_t **nlayers, int64_t *nvirtual, const char *text, struct meg_err *e);
