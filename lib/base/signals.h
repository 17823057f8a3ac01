/* signals.h - the signal dispositions that all commands share. */
#ifndef MEG_BASE_SIGNALS_H
#define MEG_BASE_SIGNALS_H

/*
 * Ignore SIGXFSZ.  A write beyond the limit on file size (ulimit -f) then fails with EFBIG instead of ending the
 * process.  meg_opt_parse calls this function.
 */
void meg_signals_init(void);

#endif
