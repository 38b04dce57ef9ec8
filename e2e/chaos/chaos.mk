# Included by the Makefile.
.PHONY: chaos chaos-bench
N ?= 50
SEED ?= 1

chaos: ## N rounds of random faults from SEED on, judged by an independent oracle
	$(GO) run ./e2e/chaos --rounds $(N) --seed $(SEED)

chaos-bench: ## how fast a run recovers from kills, beside the budgets
	$(GO) run ./e2e/chaos bench
