// Package step turns the groups of one train step into what a trainer and a
// person need of them: every episode's disposition, the samples of the batch in
// order, their normalised rewards, the step's metrics and token books, and the
// files that hold them.
//
// It promises three things. It is pure: no clock, no random source, no I/O but
// the writer it is handed, and inputs are left as they were. It does not depend
// on order: the same groups, however they arrived, give byte-identical
// samples.jsonl and batch files, and a report that differs at most in what a
// clock said (timing and the perf/ keys). And it makes nothing up: what no
// engine, verifier or clock told is absent from the metrics and named, with the
// reason, among the unavailable ones; NaN and infinity cannot get in.
//
// The way through it is
//
//	groups → Dispose → Reduce → Result → WriteSamples, NewBatch → Batch.WriteRank
//
// docs/metrics.md lists every metric key with its formula.
package step
