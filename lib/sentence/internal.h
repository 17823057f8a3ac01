/* internal.h - what was learnt of a language. */
#ifndef MEG_SENTENCE_INTERNAL_H
#define MEG_SENTENCE_INTERNAL_H

#include "base/strtab.h"
#include "sentence/punkt.h"

enum {
    PUNKT_ORTHO_MID_UC = 4,
    PUNKT_ORTHO_UC = 2 | PUNKT_ORTHO_MID_UC | 8,
    PUNKT_ORTHO_BEG_LC = 16,
    PUNKT_ORTHO_LC = PUNKT_ORTHO_BEG_LC | 32 | 64
};

struct meg_punkt {
    struct meg_strtab abbreviations, starters;
    struct meg_strtab collocations; /* "first\tsecond" */
    struct meg_strtab words;
    unsigned char *context; /* [words.n] sum of the bits above */
    bool keep_newlines;
};

#endif
