// Package worker is the service that runs episodes: it leases jobs, generates,
// scores and stores results.
//
// An episode that fails is a result like any other, with the boundary and the
// reason of its failure; only a worker that cannot reach the bus at all ends
// with an error. A lease in the worker goes through
//
//	leased ──> episodes run, each in a slot ──> each result stored ──> acknowledged
//	   │ fenced: somebody newer holds the job; what runs is cancelled, nothing is stored
//	   └ stopped: the job is given back, what was stored stays
//
// A drained worker leases nothing new and finishes what it holds.
package worker
