// Package feed is the HTTP door of a run. So far it is the part that only reads:
// what the run is doing, its engines, its workers and its metrics.
//
// Errors are problem JSON (RFC 9457). The door knows the run through the Control
// port and holds no state of its own.
package feed
