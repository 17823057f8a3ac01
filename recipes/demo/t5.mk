# T5: the rules of BERT; a T5 predicts a span for each mask.
include $(HERE)/bert.mk
