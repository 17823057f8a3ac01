/* internal.h - what was learnt of a language. */
#ifndef MEG_SENTENCE_INTERNAL_H
#define MEG_SENTENCE_INTERNAL_H

#include "base/strtab.h"
#include "sentence/punkt.h"

enum {
    PUNKT_MID_UPPER = 4,
    PUNKT_UPPER = 2 | PUNKT_MID_UPPER | 8,
    PUNKT_BEGIN_LOWER = 16,
    PUNKT_LOWER = PUNKT_BEGIN_LOWER | 32 | 64
};

struct meg_punkt {
    struct meg_strtab abbreviations, starters;
    struct meg_strtab collocations; /* "first\tsecond" */
    struct meg_strtab words;
    unsigned char *context; /* [words.n] sum of the bits above */
    bool keep_newlines;
};

#endif
