/* internal.h - the Punkt parameters of a language. */
#pragma once
#include "base/strtab.h"
#include "sentence/punkt.h"

/* Orthographic contexts in which a word occurs, with the names and values of NLTK. */
enum {
    PUNKT_ORTHO_MID_UC = 4,
    PUNKT_ORTHO_UC = 2 | PUNKT_ORTHO_MID_UC | 8,
    PUNKT_ORTHO_BEG_LC = 16,
    PUNKT_ORTHO_LC = PUNKT_ORTHO_BEG_LC | 32 | 64
};

struct meg_punkt {
    struct meg_strtab abbreviations, sent_starters;
    struct meg_strtab collocations; /* word pairs "first\tsecond" */
    struct meg_strtab words;
    unsigned char *ortho_context; /* [words.n] orthographic contexts of each word, as a bit mask */
    bool keep_newlines;
};
