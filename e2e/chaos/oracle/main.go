// Command oracle judges a round of chaos from the outside. It reads what a round
// left behind and nothing else:
//
//	evidence.json   what was run: the run's name, its output folders, its shape
//	ledger.jsonl    the run's log as an observer read it, before compaction
//	engine-*.jsonl  the request logs of the engines
//	<out>/<run>/    the files of the steps
//
// and finds every way in which they contradict each other. It knows the records
// and files from their documentation (pkg/wire, docs/design.md) and has readers of
// its own; only replay.go uses the product's code, because a replay is that code
// run again.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() { os.Exit(run(os.Args[1:])) }

// Exit codes.
const (
	exitClean    = 0
	exitViolated = 1
	exitUsage    = 2
)

func run(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: oracle FOLDER")
		return exitUsage
	}
	ev, err := readEvidence(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle: the evidence cannot be read:", err)
		return exitUsage
	}
	v := judge(ev)
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		return exitUsage
	}
	fmt.Println(string(text))
	if len(v.Violations) > 0 {
		return exitViolated
	}
	return exitClean
}
