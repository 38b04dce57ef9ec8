// Package controller is the service that owns a run: it plans waves, has their
// jobs run, collects what comes back, and makes each step's files.
//
// A step goes through
//
//	planned ──> queued ──> collecting ──> loaded ──> files written ──> committed ──> trimmed
//
// Plan and commit are entries of the ledger; everything between them can be done
// again and comes out the same, because results are stored once and files are a
// pure function of them. A controller that starts therefore looks at the ledger
// and goes on from there; starting anew and resuming are one path.
package controller
