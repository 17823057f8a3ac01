/* What the files of this room share and nobody else needs. */
#ifndef MEG_DATA_INTERNAL_H
#define MEG_DATA_INTERNAL_H

/* .idx: 9 bytes of magic, u64 version, u8 type, u64 sequences, u64 document index entries */
#define MEG_IDX_MAGIC "MMIDIDX\0"       /* the ninth byte is the literal's own zero */
#define MEG_IDX_HEADER 34

#endif
