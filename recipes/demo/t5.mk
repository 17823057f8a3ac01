# T5: as BERT, with masked spans.
include $(HERE)/bert.mk
