from train.benchmark.comparison import main

main()
