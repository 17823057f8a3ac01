# Plot the loss of a run: gnuplot -e "run='gpt'" loss.gp reads gpt/train.tsv and gpt/valid.tsv.
set terminal png size 960,600
set output run.'/loss.png'
set title run.': loss'
set xlabel 'iteration'
set ylabel 'nats per token'
set grid
plot run.'/train.tsv' using 1:2 with lines title 'training', \
     run.'/valid.tsv' using 1:2 with linespoints pointtype 7 title 'validation'
