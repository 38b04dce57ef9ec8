// Command bench measures what docs/design.md promises to be cheap, and prints
// each figure beside its first bar and its goal. It is make bench.
//
// A figure is the best of several runs: neighbours on the machine only ever make
// one worse. A figure beyond its bar is no error; the table is for people.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"text/tabwriter"
)

// budget is one figure with its bars.
type budget struct {
	what string
	unit string
	// more says that more is better.
	more            bool
	firstBar, goal  float64
	measured        float64
	missing, detail string // why there is no figure; what else is worth knowing
}

// verdict puts a figure beside its bars.
func (b budget) verdict() string {
	if b.missing != "" {
		return "not measured: " + b.missing
	}
	beyond := func(bar float64) float64 { // above 1 = not met
		if b.more {
			return bar / b.measured
		}
		return b.measured / bar
	}
	switch {
	case beyond(b.goal) <= 1:
		return "goal met"
	case beyond(b.firstBar) <= 1:
		return fmt.Sprintf("first bar met, goal missed %.2f times", beyond(b.goal))
	default:
		return fmt.Sprintf("first bar missed %.2f times", beyond(b.firstBar))
	}
}

func main() {
	steps := flag.Int("steps", 24, "steps of the pipeline's long run, of 1,024 samples each")
	runs := flag.Int("runs", 3, "runs of which the best counts")
	only := flag.String("only", "", "\"go\" or \"pipeline\": measure that alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var all []budget
	if *only != "pipeline" {
		all = append(all, goBenchmarks(ctx, *runs)...)
	}
	if *only != "go" {
		found, err := pipeline(ctx, *steps, *runs)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		all = append(all, found...)
	}
	print(all)
}

func print(all []budget) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tmeasured\tfirst bar\tgoal\tunit\tverdict\t")
	for _, b := range all {
		measured := fmt.Sprintf("%.4g", b.measured)
		if b.missing != "" {
			measured = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%g\t%g\t%s\t%s\t%s\n", b.what, measured, b.firstBar, b.goal, b.unit, b.verdict(), b.detail)
	}
	if err := w.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
